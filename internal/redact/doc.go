// Package redact removes users and passwords from addresses in texts: of what a setting is
// refused with, and of all that a command prints, but for a user's own file.
//
// Contract. [Text] replaces what stands before the last @ of an address: of
// scheme://user:password@host, and of user:password@host. A value that begins with a scheme and
// is cut off before its @ has something else than a port behind a colon; that is replaced, too.
// Rather too much is replaced than too little. [Writer] does so with each piece that is written.
//
// What it does not do: it knows no settings, and no other secrets than these.
package redact
