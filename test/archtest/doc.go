// Package archtest holds the laws of the house as tests: which package may
// import which, and what no file may do. Each law carries its reason, and the
// failure prints it.
//
// The laws are checked on the parsed source of every build tag, which is read once, so
// they need no build, no network and some seconds. Only those of what pkg exports build it:
// one asks the compiler which types that are, one compiles the examples in another module.
// Each law is also run over a small made-up tree that breaks it: a law that cannot fail is a
// defect.
//
// Laws about our own packages and about modules count what is reached through
// our other packages, too; laws about the standard library count only what is
// written in the package itself. Test files are held to the laws of tests and
// not to the import laws.
//
// What this package does not do: it judges no style (linters do) and runs no
// linter.
package archtest
