// Package kubetest is the apiserver that tests of Kubernetes talk to: a simulated one
// (test/kubesim), and with the build tag kube a real one. So the simulated one is held
// to what the real one does: the same tests pass on both.
//
// Contract. [Clusters.New] returns a [Cluster] without pods and without pools, that serves.
// What a test does to it is over when the test ends. The real cluster is one, shared by all
// tests of a package: one test has it at a time, and [Main] ends it.
//
// The real cluster is an etcd and two apiservers on it. Clients reach the front one, which
// may be stopped, may hang, and is asked what it was asked (its audit log). Objects are
// written through the other one, so that they change while the front one is away, as in a
// control plane with several members. Nothing else of Kubernetes runs: there is no
// controller, no scheduler and no kubelet, so a pod has the status that a test writes.
//
// The parts come from `make tools-kube`, at the versions of test/kubeparts/kube/go.mod. A
// missing part is an error that says so; nothing is skipped for it.
//
// What it does not do: the real cluster ends no watch before its time, and pages no list
// that a watch can begin with. Tests of these faults say with [Real] that they are the
// simulated one's.
package kubetest
