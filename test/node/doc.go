// Package node is a real cluster of one node: etcd, Kubernetes' control plane, a kubelet,
// containerd and kube-proxy, and with [Node.Istio] an istiod and the image of its gateways.
// Tests and the demonstration run what people install on it.
//
// Contract. [Apart] runs a program in namespaces of its own: network, mounts, processes and
// cgroups. [Start] starts a cluster there. Nothing outside is reached, and when the program
// ends, however it ends, every process that it has started ends with it; the machine is as
// it was. What a program leaves that is killed, an empty folder for each hierarchy of cgroups
// and a folder of temporary files, the next one removes.
//
// The parts come from `make tools-node` and `make tools-istio`. A missing part is an error
// that says so. Images are made here, of programs that are here ([Image]); no registry is
// asked.
//
// What it needs of the machine is [Place]'s to say: a value, made of what [Here] reads, of which
// [Place.Lacks] tells all that is lacking at once, and how to get it. Command check asks before anything is
// built, and [Apart] again. Of cgroups it takes v1's hierarchies, with the one of v2 that may stand beside them,
// or v2 alone: there the groups of pods have all controllers that the machine's root hands on; those that it did
// not hand on before, it no longer does at the end. What it does not say is whether the kernel has the parts that
// are modules elsewhere: veth, the expressions of nftables.
//
// With v2 alone it has been tried on an emulated machine of Linux 6.1: the node was ready, a pod with limits
// ran, was killed and came again. The tests and the demonstration run on v1 where they were made; Istio and
// load have not been tried on v2.
//
// There is no volume plugin and no cloud. What stands in for the rest is small: a server that knows the
// names of Services alone, and a loop that gives a Service of the type LoadBalancer an address of the
// node's own network.
//
// What it does not do: several nodes, and anything that a test of a picker does not ask of a cluster.
package node
