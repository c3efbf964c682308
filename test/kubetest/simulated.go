//go:build !kube

package kubetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/kubesim"
)

// Real says which of the two the clusters of this build are.
const Real = false

// Simulated is a simulated cluster.
type Simulated struct {
	*kubesim.Server
	token func() string
}

// Token is what clients authenticate with; "" if none is checked.
func (s Simulated) Token() string {
	if s.token == nil {
		return ""
	}
	return s.token()
}

// Clusters gives the tests of a package their clusters. The zero value is ready.
type Clusters struct{}

// New returns a cluster that serves until the test ends.
func (*Clusters) New(t testing.TB, cfg kubesim.Config) Cluster {
	s := Simulated{kubesim.New(cfg), cfg.Token}
	require.NoError(t, s.Start())
	t.Cleanup(s.Stop)
	return s
}

func (*Clusters) end() {}
