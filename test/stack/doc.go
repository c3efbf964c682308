// Package stack starts the real parts of a Baton deployment on loopback: Envoy, the
// plugin, simulated workers, etcd, and the registrars beside the workers. Each is a
// process of its own that can be killed. The demo, the benchmarks and the end-to-end
// tests all use this package, so that the tests check what a newcomer sees.
//
// A process ends when its Kill or Stop is called, when the context ends that it was
// started with, or when this process ends. A chosen port stays bound until this process
// ends, so that no other process gets it ([FreePorts]). The package uses only loopback
// addresses and files below its own folder. It installs nothing: `make tools` does.
package stack
