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
// It needs root, Linux, cgroup v1 and the program ip. There is no volume plugin and
// no cloud. What stands in for the rest is small: a server that knows the names of Services
// alone, and a loop that gives a Service of the type LoadBalancer an address of the node's
// own network.
//
// What it does not do: cgroup v2 (its rules of delegation are others), several nodes, and
// anything that a test of a picker does not ask of a cluster.
package node
