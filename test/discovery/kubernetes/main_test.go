package kubernetes_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
	"github.com/seed-60ae5743/baton/test/kubetest"
)

var clusters kubetest.Clusters

func TestMain(m *testing.M) {
	kubernetes.Quiet()
	goleak.VerifyTestMain(kubetest.Main{M: m, Clusters: &clusters})
}
