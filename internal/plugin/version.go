package plugin

import "runtime/debug"

// Version is the module's version with the commit from which it was built, as far as the
// toolchain recorded them.
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
		return "unknown", ""
	}
	version = info.Main.Version
	if version == "" || version == "(devel)" {
		version = "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}
