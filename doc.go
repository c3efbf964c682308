// Package baton is the root of the module. It knows which version of Baton this is: the
// content of the file VERSION beside it, the one place where the version is written. The
// chart's appVersion and what `make dist` builds are named after it.
package baton

import (
	_ "embed" // VERSION becomes a part of every program, however it is built
	"runtime/debug"
	"strings"
)

//go:embed VERSION
var version string

// Version is the version as MAJOR.MINOR.PATCH, as semantic versioning has it.
func Version() string { return strings.TrimSpace(version) }

// Built is the version of a program of this module, which ends in +dirty if its tree had
// changes that were not committed, and the commit, as far as the toolchain recorded it.
func Built(info *debug.BuildInfo) (version, commit string) {
	version = Version()
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			version += "+dirty"
		}
	}
	return version, commit
}
