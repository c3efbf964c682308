// Package envoy holds the Envoy configurations that Baton ships. It renders the one of
// one's own Envoy (Standalone). Those of an Envoy that a Gateway API implementation
// configures are rendered by package twolegs. All come from templates that share their
// parts, so that the forms cannot drift apart and tests can run them on free ports. The
// files beside this one are written by `make envoy-configs`; a test holds them up to date.
//
// The package renders text. It starts nothing and checks nothing; Envoy itself
// validates each form in test/envoytest.
package envoy
