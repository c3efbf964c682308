// Command dist builds what people install: extproc for Linux on amd64 and arm64, an OCI
// image that has both, and their checksums.
//
// # Contract
//
// It writes extproc-VERSION-linux-ARCH, the folder image-VERSION (an OCI image layout with
// one index), and SHA256SUMS into the folder of -out, which it empties first. A binary is
// static and stripped, or the command fails. VERSION is the content of the module's file of
// that name; a binary says it with the commit that Go's toolchain has recorded, and +dirty
// for a tree with changes that are not committed.
//
// The image has the binary as /extproc, and the names by which endpoint pickers are started
// elsewhere, /app/epp (llm-d, KServe) and /lwepp (the inference extension), as links to it.
// It has no shell, no other file but an empty /tmp, and runs as user 65532.
//
// # Invariants
//
// The same binaries and the same time give the same image, byte for byte: the time is that
// of the commit, or of -time. make dist takes SOURCE_DATE_EPOCH for it, as
// https://reproducible-builds.org asks.
//
// # What it does not do
//
// It pushes nothing, signs nothing, and needs no daemon and no network but for modules.
package main
