// Package config reads what Baton is configured with, the configuration file and the flags
// of its commands, into plain values, validates them, and converts them to the settings of
// each part. docs/config.md describes every key.
//
// # Contract
//
// A configuration is made in this order, the later over the earlier: [Default], the file,
// the endpoint picker's flags for that command, the flags of serve. [Flags], [EPP] and
// [RegisterFlags] add a command's flags to a set of [NewFlagSet] and give the validated
// result once the command line is parsed; [ParseFlags] parses it. [Read] reads a file alone.
//
// [Config.Validate] returns all faults at once. Each names its key, and the flag that sets
// it if there is one, what was found and what is expected. Faults of a file are given with
// their lines, in the file's order. Faults of the command line and of the configuration
// are [ErrUsage].
//
// Methods convert to a part's own type: [Config.Server], [Config.Tree], [Config.Policy],
// [PickConfig.Params] and others. Whoever makes the part adds the other parts that it works
// with, and its hooks.
//
// [Config.Effective] prints a configuration as a file.
//
// # Invariants
//
//   - An unknown key is refused, and so is a value without a meaning. A zero or an empty
//     text is never another value: it is used as it stands, or refused.
//   - What [Config.Effective] prints reads back as itself.
//   - What Validate accepts, the parts accept: the bounds and words of a part's settings
//     come from the part.
//   - Each key has a row in docs/config.md with its unit and its default, and each flag of
//     register and of the endpoint picker one in docs/register.md or docs/gateway-api.md.
//
// # What it does not do
//
// It starts nothing: no goroutine, no listener, no connection. It reads the files that the
// configuration names, and no clock, no environment and no property of the machine. It does
// not import the process that uses it, and the parts do not import it.
package config
