// Package envoyfile writes and checks the configuration of one's own Envoy: it
// merges what Baton needs into a file (Merge), gives the same as parts for who
// serves listeners and clusters from elsewhere (Split), and says of a file, or of
// what a running Envoy has, which part is missing or differs and what follows
// (Check). One list of parts (Parts) is behind the check and behind the page.
//
// What a part must be is read from package envoy's templates, so that the two
// cannot drift apart: the list says only where in the configuration a part is,
// which of its values are one's own, and what happens without it.
//
// Contract: bytes and values in, bytes and values out; nothing is fetched, and no
// file is written. Merge leaves alone what it need not change: order, comments and
// anchors stay, but that a copy takes the place of an alias of what is changed; merging
// twice gives the same as merging once. Check never takes a configuration for right
// of which it could not read a needed part: it says so.
//
// What it does not do: validate against Envoy's schema (`envoy --mode validate`
// does), read a gateway's configuration, or judge parts that are not Baton's.
package envoyfile
