// Package istiotest holds the configuration for Istio (envoy/istio-two-legs.yaml) to a real
// istiod: what it makes of the EnvoyFilter is what an Envoy runs here, with a picker that
// follows a pool of a real apiserver (test/kubetest) and simulated workers.
//
// Contract. The tests run with the build tag kube, as root on Linux, in a network of their
// own: the test binary starts itself again in a new network namespace, where the addresses
// of pods are addresses of the loopback device. Nothing outside is reached, and the machine
// stays as it was. The parts come from `make tools-kube` and `make tools-istio`.
//
// What it does not do: there is no kubelet, no controller and no kube-proxy. The tests
// write what these would: pods' addresses, and the EndpointSlices of Services. The gateway
// is a plain Envoy with a bootstrap of the tests', not Istio's proxy image. Nothing is
// encrypted but what goes to the picker.
package istiotest
