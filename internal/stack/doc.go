// Package stack starts the real parts of a Baton deployment on loopback: Envoy,
// the plugin, simulated workers, etcd and the registrars beside the workers,
// each a process of its own that can be killed. The demo, the benchmarks and the
// end-to-end tests all run on it, so what a newcomer sees is what the tests
// check.
//
// Every process it starts ends when its Kill or Stop is called, with the context
// it was started under, or with this process, whichever is first. Ports are held
// from when they are chosen to the end of this process, so that nobody else gets
// one ([FreePorts]). It talks to nothing but
// loopback addresses and files below its own folder. It installs nothing:
// `make tools` does.
package stack
