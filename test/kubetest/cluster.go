package kubetest

import (
	"fmt"
	"testing"

	"github.com/seed-60ae5743/baton/test/kubesim"
)

// Cluster is an apiserver, with its objects and its faults. Its methods do what those of
// [kubesim.Server] do, but that a real apiserver gives UIDs and times of deletion itself,
// that the last state of a deleted object is as it is, and that a pool has the picker that
// its schema asks for. A step that fails ends the test.
type Cluster interface {
	// URL is where clients reach it.
	URL() string
	// Token is what clients authenticate with; "": nothing.
	Token() string

	Start() error
	Stop()
	Hang() (goOn func())
	Compact()
	Refuse(verb, plural string)
	Allow(verb, plural string)
	Requests() []kubesim.Request

	Put(r kubesim.Resource, object map[string]any)
	Delete(r kubesim.Resource, namespace, name string, final map[string]any)
}

// Main runs the tests of a package, and then ends what their clusters share.
type Main struct {
	*testing.M
	Clusters *Clusters
}

// Run implements goleak.TestingM.
func (m Main) Run() int {
	defer m.Clusters.end()
	return m.M.Run()
}

// Kubeconfig is a file for the cluster's clients. Their token is that of the file
// tokenFile, or the cluster's own if that is "".
func Kubeconfig(c Cluster, tokenFile string) []byte {
	credential := fmt.Sprintf("token: %q", c.Token())
	if tokenFile != "" {
		credential = fmt.Sprintf("tokenFile: %q", tokenFile)
	}
	return kubesim.Kubeconfig(c.URL(), credential)
}
