// Package envoytest holds the tests that need a real Envoy: each configuration
// of envoy/, each mode, each row of the failure table. They run with the build
// tag e2e, which `make test` sets, and fail where there is no Envoy.
//
// A fleet is made of real processes: one Envoy, one plugin and simulated
// workers that enforce the engine's rules. Tests look at what workers received
// and still hold, not only at what clients got.
package envoytest
