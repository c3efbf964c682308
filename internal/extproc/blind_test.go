package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// A replica that does not know its workers would refuse the legs of the other replicas'
// attempts. Their owners would not be told, and would wait.
func TestAReplicaWithoutAViewTakesNoStream(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Board = activation.New() })
	for _, filter := range []string{filterMain, filterPrefill, filterSync} {
		p := r.open(filter)
		_, err := p.s.Recv()
		require.Equal(t, codes.Unavailable, status.Code(err), filter)
		p.cancel()
	}
}

// Without other replicas the client gets the reason.
func TestAPluginAloneWithoutAViewSaysSo(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Board, c.Advertise, c.MaxWait = activation.New(), "", 100*time.Millisecond })
	p := r.open(filterMain)
	p.requestHeaders()
	require.NotNil(t, p.recv().GetRequestHeaders())
	p.requestBody(someBody)
	im := p.recv().GetImmediateResponse()
	require.NotNil(t, im)
	require.Contains(t, string(im.GetBody()), leg.FailNotReady.Code)
	p.cancel()
}
