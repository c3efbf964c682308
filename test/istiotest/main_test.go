//go:build kube

package istiotest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/test/kubetest"
)

var clusters kubetest.Clusters

func TestMain(m *testing.M) {
	own, err := alone()
	if err == nil && !own {
		os.Exit(again())
	}
	if err == nil {
		err = raise()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "istiotest: a network of its own:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(kubetest.Main{M: m, Clusters: &clusters})
}
