// Package eppconfig reads the scheduler's configuration of a reference picker
// (EndpointPickerConfig, in YAML or JSON), as the charts of llm-d and of the inference
// extension and KServe's controller pass it with --config-file or --config-text. With
// Baton's image in place of theirs, these arguments stay.
//
// # Contract
//
// [Read] accepts a configuration of which no part can leave a worker out that Baton would
// let serve: each part has a counterpart here, or [Config.Warning] says what Baton does
// instead, part by part ([Config.Ignored]). A scorer or a producer only orders workers, also one of
// which nothing is known; what a plugin is, its name's end says, else where the configuration uses it.
// Filters by labels are carried out: [Config.Roles] are the rules that they come to.
// [Config.Splits] reports whether the configuration has prefill and decode on separate
// workers. Read returns every fault at once, each with its line: an unknown key, apiVersion,
// kind or plugin, a reference to a plugin that is not there, and a part that leaves workers
// out or brings workers of its own, with what to do.
//
// # Invariants
//
//   - What is accepted loses no restriction of who serves: what is in the table only orders
//     workers, judges requests, or restricts workers by what Baton restricts them by as well
//     (role, adapter, labels). The caller applies the rules by labels, or refuses them.
//   - A fault shows at most 60 characters of what was read.
//
// # What it does not do
//
// It takes over no weights, and parameters only of filters by labels: Baton's own policy picks. It reads no file.
package eppconfig
