// Package extproctest makes what stands around a server of internal/extproc, for tests of
// that server on either side of its API.
//
// Contract. [NewParts] makes the parts that a server uses, small and without files. Their
// workers come from a source of the test's, for example [Lists]. [Parts.Serve] has a server
// serve until the function is called that it returns. After that none of their goroutines
// runs. A call that cannot be met panics.
//
// What it does not do: it does not import internal/extproc, whose tests use it, so the test
// makes the server's Config. It makes no messages of Envoy's (internal/wire/wiretest).
package extproctest
