// Package twolegs renders what an Envoy has that a Gateway API implementation configures
// (GatewayAPI), and what it lacks for two legs: as a patch (GatewayPatch), which it also
// applies, and as a filter of Istio (Istio). It names all files that are committed in the
// folder envoy (Committed). It is apart from package envoy, which the command links: the
// command writes the configuration of one's own Envoy alone.
package twolegs
