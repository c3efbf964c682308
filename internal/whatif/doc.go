// Package whatif says what other settings, or another fleet, would have made of requests that were recorded.
//
// # Contract
//
// An [Input] is made from a record ([FromRecord]), Mooncake's trace or Dynamo's request trace ([Read] finds out
// which). [Options.Fleet] makes the simulated fleet of it, and [Play] plays the requests over the fleet with
// [Plugin], which chooses with the very parts of the plugin: internal/overlap asks pkg/kvindex, and internal/load
// books what pkg/picker decides, with answers that grow as internal/outlen expects them to. It books,
// releases and learns at the moments at which the plugin does. A [Report] has the figures.
//
// Where the record has them, speeds are those that the plugin had learned of each rank, of decode and of
// hand-offs, and caches have the ranks' capacity. What is missing, and what a fleet of another size has, is the
// median of the role; what no rank has is stated by the options. The report's head says which is which.
//
// # The error
//
// A record's requests are also played with the very picks that were recorded. What differs from what was measured
// then is the error of the simulation, not of a policy: [Report.Error] states it. The median by which first tokens
// were measured later than simulated (Envoy, the network, the engine's own overhead) is added to all simulated
// ones: [Report.Path].
//
// # What holds
//
//   - Equal arguments give equal reports. The package reads no clock and does no I/O.
//   - No more than [mostBlocks] blocks of prompts are played; requests beyond are left out, and it is said.
//
// # What it does not do
//
// It knows the workers of one moment: those that came, left, failed or were set aside are there, and well, all
// the time. Caches begin empty ([Options.Warm]). Requests that one worker of a fleet with prefill workers served
// are played as pairs. What else is simplified is in internal/replay's doc.go.
package whatif
