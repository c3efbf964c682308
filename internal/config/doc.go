// Package config is what Baton is told: the configuration file, and the flags of its
// commands. It reads both into plain values, judges them, and says to each part what the
// file says of it. docs/config.md describes every key.
//
// # Contract
//
// A configuration is made in this order, the later over the earlier: [Default], the file,
// for the endpoint picker its flags, the flags of serve. [Flags], [EPP] and [RegisterFlags]
// add a command's flags to a set of [NewFlagSet] and give what came of them, judged;
// [ParseFlags] reads the command line. [Read] reads a file alone.
//
// [Config.Validate] returns every fault at once. Each begins with its key, and with the
// flag that sets it where there is one, says what was found and what is expected; faults
// of a file are told with their line, in the file's order. Faults of the command line and
// of the configuration are [ErrUsage].
//
// What a part is told is a value of the part's own type: [Config.Server], [Config.Tree],
// [Config.Policy], [PickConfig.Params] and so on. Whom the part works with, and whom it
// tells, is added by who makes it.
//
// [Config.Effective] prints a configuration as a file.
//
// # Invariants
//
//   - A key that there is not is refused, and so is a value that means nothing. A zero and
//     an empty text are what they say, or refused: never a default.
//   - What [Config.Effective] prints reads back as itself.
//   - What Validate passes, the parts take: bounds and words that are a part's own come
//     from the part.
//   - Each key has a row in docs/config.md with its unit and its default, and each flag one
//     in docs/register.md or docs/gateway-api.md.
//
// # What it does not do
//
// It starts nothing: no goroutine, no listener, no connection. It reads the files that are
// named to it, and no clock, no environment and nothing of the machine. It does not know
// the process that is made of what it says, and the parts do not know it.
package config
