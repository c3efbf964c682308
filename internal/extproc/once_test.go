package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A token is good for one leg. At the owner this is checked for collecting legs, too.
func TestACollectingLegComesOnce(t *testing.T) {
	r := newReplicaOf(t, "a", prefillFirst(t, nil), func(c *Config) { c.PrefillListener = "unix:///nowhere/prefill.sock" })
	admitted := func(owner string, nonce uint64, by worker.ID) bool {
		token, err := r.srv.sealer.Seal(prefill.Leg{
			Kind: prefill.CollectLeg, Owner: owner, Nonce: nonce, Deadline: time.Now().Add(time.Minute), Prefill: worker.Rank{ID: by},
		})
		require.NoError(t, err)
		p := r.open(filterSync)
		defer p.cancel()
		p.requestHeaders(prefill.HeaderLeg, token)
		m := p.recv()
		if im := m.GetImmediateResponse(); im != nil {
			require.EqualValues(t, 410, im.GetStatus().GetCode())
		}
		return m.GetRequestHeaders() != nil
	}
	require.True(t, admitted(r.srv.owner, 5, 3))
	require.False(t, admitted(r.srv.owner, 5, 3))
	require.True(t, admitted(r.srv.owner, 5, 4), "another decode worker was asked, since the first could not be reached")
	require.False(t, admitted(r.srv.owner, 5, 4))
	require.True(t, admitted(r.srv.owner, 6, 3))
	require.True(t, admitted("another replica", 5, 3), "its owner is not asked")
	require.True(t, admitted("another replica", 5, 3))
}

func TestWhichLegsHaveComeIsForgottenWithTheirTokens(t *testing.T) {
	o := newOnce()
	now := time.Now()
	for i := range uint64(onceMost) {
		require.True(t, o.first(collecting{nonce: i}, now))
	}
	require.False(t, o.first(collecting{nonce: onceMost}, now), "nobody comes who cannot be remembered")
	later := now.Add(3 * collectTimeout)
	require.True(t, o.first(collecting{nonce: onceMost}, later))
	require.Equal(t, 1, o.seen.Len())
}
