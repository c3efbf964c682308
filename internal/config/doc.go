// Package config reads Baton's configuration, from a file and from the flags of its
// commands, into plain values, validates them, and converts them to the settings of each
// part. docs/config.md describes every key.
//
// # Contract
//
// A configuration is made in this order, and each step overrides the ones before:
// [Default], the file, the endpoint picker's flags (command epp only), the flags of
// serve. [Flags], [EPP] and [RegisterFlags] add a command's flags to a set that
// [NewFlagSet] has made. They give the validated result once [ParseFlags] has parsed the
// command line. [Read] reads only a file.
//
// [Config.Validate] returns all faults at once. Each fault names its key, the flag that
// sets the key if there is one, the value that was found, and what is expected. Faults in
// a file are given with their lines, in the file's order. Faults of the command line and
// of the configuration are [ErrUsage].
//
// Methods convert to the settings of a part: [Config.Server], [Config.Tree],
// [Config.Policy], [PickConfig.Params] and others. internal/plugin, which makes the
// parts, adds the other parts that each works with, and its hooks.
//
// [Config.Effective] prints a configuration as a file.
//
// # Invariants
//
//   - An unknown key is refused, and so is a value without a meaning. A zero or an empty
//     text is used as it stands, or refused; no default takes its place.
//   - What [Config.Effective] prints reads back as itself.
//   - What Validate accepts, the parts accept: the bounds and the words of a part's
//     settings come from the part.
//   - Each key has a row in docs/config.md with its unit and its default. Each flag of
//     register has one in docs/register.md, and each flag of the endpoint picker one in
//     docs/gateway-api.md.
//
// # What it does not do
//
// It starts nothing: no goroutine, no listener, no connection. It reads the files that
// the configuration names, but no clock, no environment and no property of the machine.
// It does not import the process that uses it, and the parts do not import it.
package config
