// Package apikey shows engines the API key that they ask for.
//
// vLLM and SGLang that are started with --api-key refuse requests without
// "Authorization: Bearer KEY": vLLM those below /v1, /v2, /inference and /cohere, SGLang
// all but those below /health, /ready and /metrics. Clients bring theirs with each request,
// which passes as it is; what this package is for is what our own programs ask of engines.
//
// Contract. A [File] is read again for each request, so that a key is changed by writing
// the file. Where it cannot be read, the key that was read last is shown, and [File.Err]
// says why. [Transport] adds the key to requests and says in the log, once in a while, that
// an engine refuses it or asks for one.
//
// The key is in no log, no error and no page. A Transport shows it only to engines that its
// owner trusts.
//
// What this package does not do: it checks no key of anybody's.
package apikey
