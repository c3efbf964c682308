package nats_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConfigNamesItsFaultsAndNoPassword(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:4222", "http://user:secret@h:1", "nats://user:secret@h:1,nats://"} {
		_, err := nats.New(nats.Config{URL: url})
		require.ErrorContains(t, err, "expected nats://")
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := nats.New(nats.Config{URL: "nats://h:1", Subject: "a..b", Timeout: -1})
	require.ErrorContains(t, err, "subject")
	require.ErrorContains(t, err, "timeout")
}
