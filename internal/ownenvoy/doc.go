// Package ownenvoy writes and checks one's own Envoy's configuration for the commands: it takes
// from the plugin's configuration what Envoy's must agree with, reads and writes files, and asks a
// running Envoy what it has. What is in the files is internal/envoyfile's.
//
// Contract: a file is replaced as a whole or not at all; an Envoy is asked once, within ten seconds,
// and changed never. What it prints is for people. It is used by one goroutine.
package ownenvoy
