package plugin

import (
	"runtime/debug"

	"github.com/seed-60ae5743/baton"
)

// Version is Baton's version with the commit from which it was built, as far as the
// toolchain recorded it.
func Version() string {
	v, rev := buildVersion()
	if rev != "" {
		return v + " (" + rev + ")"
	}
	return v
}

func buildVersion() (version, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return baton.Version(), ""
	}
	return baton.Built(info)
}
