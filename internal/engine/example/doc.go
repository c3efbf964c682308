//go:build example

// Package example is an engine that nobody runs. It shows what it takes to add one: this folder,
// its name in pkg/worker, a line in package engines. The tests are built with it (the tag
// example), and serve a request by it through a real Envoy.
//
// Its prefill keeps the KV of a request under a number, and answers where. Decode's body has that
// answer; it fetches the KV over HTTP, once.
package example
