package nats_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An empty file is a secret that was not mounted: a server's "Authorization Violation" would not say so.
func TestAPasswordFileThatIsEmptyIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	for text, good := range map[string]bool{"": false, "\r\n": false, "secret\n": true} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := nats.New(nats.Config{URL: "nats://h:1", Username: "u", PasswordFile: file})
		if good {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, "nats: password file "+file+": expected a password, it is empty")
	}
}

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
