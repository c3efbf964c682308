// Package clustertest runs what people install on a real cluster of one node
// (test/node), with a real Istio: the inference extension's conformance suite, the
// chart with Baton's image, and simulated workers as pods.
//
// Contract. The tests run with the build tag kube, as root on Linux; `make test-kube` runs
// them. They share one cluster; those of the suite share its namespaces, and every other has one of its own. Nothing outside is
// reached, and the machine stays as it was.
//
// The image is what `make dist` writes. The gateways are Istio's own pods, with the pinned
// Envoy in place of Istio's proxy.
package clustertest
