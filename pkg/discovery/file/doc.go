// Package file is the discovery source for a watched YAML or JSON file that lists
// workers, each a record as pkg/discovery/record has it:
//
//	workers:
//	  - {id: 7, role: prefill, engine: sglang, models: [qwen], endpoint: "10.0.0.7:30000", block_size: 64}
//
// Contract. The file is one listing: either all of it is taken or nothing.
//
// A file that is missing, empty or wrong leaves the last good set in place, marked
// stale, with the error as the cause. To say that there are no workers, write `workers:
// []`.
//
// Changes are seen at once through the file system's notifications for the folder. So
// atomic renames, editors and Kubernetes' swaps of symbolic links are seen. Without
// notifications changes are seen within [Config.Poll]. A file that is still being
// written may be valid and lack its end, so it is read only when it has not changed for
// [Config.Settle]. Writers should replace it by rename, as [Write] does.
//
// What this package does not do: it keeps no set (pkg/discovery does), and
// does not know the form of a record.
package file
