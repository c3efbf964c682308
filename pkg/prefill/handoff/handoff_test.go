package handoff_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestSGLangMembersAreWrittenWithoutLosingTheRoom(t *testing.T) {
	got := handoff.AppendSGLang([]byte("{"), "10.0.0.5", 8998, prefill.MaxRoom)
	require.Equal(t, `{"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":9223372036854775807`, string(got))
}

func TestAnIPv6BootstrapHostIsBracketedOnce(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.5": "10.0.0.5", "fd00::5": "[fd00::5]", "[fd00::5]": "[fd00::5]", "prefill-0.pool": "prefill-0.pool",
	} {
		require.Equal(t, want, handoff.SGLangHost(worker.Bootstrap{Host: in, Port: 1}))
	}
}
