// Package file is the discovery source for a watched YAML or JSON file that
// lists workers.
//
//	workers:
//	  - id: 7                       # uint64, as a number or a string; no limit at 2^53
//	    role: prefill               # prefill, decode, aggregated
//	    engine: sglang
//	    models: [qwen]
//	    namespace: prod             # default ""
//	    endpoint: 10.0.0.7:30000    # ip:port; names are not resolved here
//	    dp_size: 1                  # default 1
//	    port_per_rank: false        # rank r listens at the endpoint's port plus r
//	    block_size: 64              # tokens per KV block
//	    capacity_blocks: 4096       # per rank; default 0, unknown
//	    max_model_len: 40960        # tokens of prompt and answer; default 0, unknown
//	    eagle: false                # KV blocks of token pairs (SGLang with EAGLE)
//	    adapters: []                # those of models that are LoRA adapters
//	    bootstrap: {port: 8998}     # host: default the endpoint's IP; engine_ids: of vllm-mooncake
//	    kv_events: {port: 5557, replay_port: 5558, topic: kv}  # host: as above
//	    taints: [gpu=h200]          # what requests may ask a worker to carry
//	    topology_domains: {zone: us-east-1a}  # each is a taint, too: dynamo.topology/zone=us-east-1a
//	    kv_transfer: {domain: zone, enforcement: required}  # or preferred, with weight: 0.5
//	    accepts_aggregated: false
//	    header_overrides: false
//	    draining: false
//	    facts_unknown: false        # engine, models or block_size may be absent: see worker.Worker
//	    engine_rank: 0              # its rank, if each rank of the engine is a worker of its own
//	    facts: false                # true: what is left out is asked of the engine (see below)
//	    facts_port: 8200            # where the engine is asked; default the endpoint's port
//
// Contract. The file is one listing: either all of it is taken or nothing. Unknown and
// repeated keys, YAML anchors, aliases, tags and merge keys, a second document,
// repeated ids or endpoints and values of the wrong form are refused; the error names
// the line. `bootstrap` or `kv_events` without a port counts as absent. A byte order
// mark at the beginning is ignored. The `domain` of `kv_transfer` needs a value in
// `topology_domains`: a worker without that value is shown as a problem and not picked.
//
// With `facts: true` only the endpoint has to be given. What else is given holds, and the
// engine is asked for the rest by internal/facts; until it has answered, the worker is an
// aggregated one, or what `role` says. Without `id` the worker has one that is made from
// its endpoint, the same in each process.
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
// resolves no names.
package file
