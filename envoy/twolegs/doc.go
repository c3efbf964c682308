// Package twolegs applies the patch that makes a gateway's Envoy carry both legs. It is apart from
// package envoy, which the command links: the command applies no patches.
package twolegs
