// Package kubeparts says where make has put the parts of real clusters that tests run.
//
// Contract. Each function returns a path below .tools/ of the repository, or an error that
// names the make target that is still to be run. Nothing is built or fetched here.
package kubeparts

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/test/stack"
)

// The parts' versions, as the Makefile has them.
const (
	kubeVersion        = "1.36.3"
	helmVersion        = "v4.3.1"
	istioVersion       = "eed52ebb66ad" // a commit
	eppVersion         = "v1.5.0"       // of the inference extension
	sidecarVersion     = "v0.5.1"       // of llm-d's inference scheduler
	conformanceVersion = "v1.6.0"       // of the inference extension
	nodeVersion        = "v2.4.2"       // containerd's
)

// Kube is Kubernetes' programs as one; its first argument says which.
func Kube() (string, error) { return part("tools-kube", "kube-"+kubeVersion, "kube") }

// Helm is the program helm.
func Helm() (string, error) { return part("tools-kube", "kube-"+kubeVersion, "helm-"+helmVersion) }

// Definitions is the folder of the CustomResourceDefinitions of others: of the inference
// extension, the Gateway API, Istio and the Prometheus operator.
func Definitions() (string, error) {
	return whole("tools-kube", "kube-"+kubeVersion, "crds")
}

// Istio is the folder of Istio's parts: pilot-discovery, pilot-agent, the chart of the
// control plane, and the template of a gateway's bootstrap.
func Istio() (string, error) { return whole("tools-istio", "istio-"+istioVersion) }

// EPP is the inference extension's own picker.
func EPP() (string, error) { return part("tools-epp", "epp-"+eppVersion) }

// Sidecar is llm-d's routing sidecar.
func Sidecar() (string, error) { return part("tools-sidecar", "pd-sidecar-"+sidecarVersion) }

// Node is the folder of what runs containers: bin has the programs, lib the libraries of
// those that need some.
func Node() (string, error) { return whole("tools-node", "node-"+nodeVersion) }

// Conformance is the folder of the inference extension's conformance suite: the program
// conformance, its objects, and the server echo-basic that its pods run.
func Conformance() (string, error) {
	return whole("tools-conformance", "conformance-"+conformanceVersion)
}

// whole returns a folder, which has a mark once it is whole.
func whole(target string, path ...string) (string, error) {
	mark, err := part(target, append(path, ".whole")...)
	return filepath.Dir(mark), err
}

func part(target string, path ...string) (string, error) {
	root, err := stack.Root()
	if err != nil {
		return "", err
	}
	at := filepath.Join(append([]string{root, ".tools"}, path...)...)
	if _, err := os.Stat(at); err != nil {
		return "", fmt.Errorf("a part of the cluster is missing: run `make %s`: %w", target, err)
	}
	return at, nil
}
