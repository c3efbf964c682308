// Package sources knows the kinds of sources of workers: what each is called, its part of the
// configuration, and how it is opened.
//
// Contract. [Config] is the part `discovery` of the configuration file. A kind is an entry of
// kinds: who has a source of a new kind writes the source (pkg/discovery/<name>), a file here
// with its settings and its opener, the settings' field in Config, and the entry. Who validates
// the configuration, prints where workers come from or opens the sources walks that list and
// names no kind.
//
// Invariants:
//
//   - The sources are in the order of the list, which is that of precedence.
//   - Every worker passes a [discovery.Guard]: no source adds one at an address where it may
//     not be.
//
// What this package does not do: it runs no source and has no flags. Of a source itself it
// knows the settings alone.
package sources
