// Package record is the form in which a worker is written down: an item of a workers file,
// a value in etcd, the line that a simulated worker prints when it is ready.
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
//	    kv_group: blue              # any text: workers of two groups are no pair
//	    engine_version: 0.32.0      # no pair either if both tell these, and they differ
//	    weights: /models/qwen       # path and revision, as the engine names them
//	    kv_dtype: auto              # of the KV cache
//	    adapters: []                # those of models that are LoRA adapters
//	    bootstrap: {port: 8998}     # host: default the endpoint's IP; engine_ids: of vllm-mooncake
//	    kv_events: {port: 5557, replay_port: 5558, topic: kv}  # host: as above; rank r is r ports higher, unless
//	                                # ranks: has {host, port, replay_port} of each, the first of them as above
//	    taints: [gpu=h200]          # what requests may ask a worker to carry
//	    topology_domains: {zone: us-east-1a}  # each is a taint, too: dynamo.topology/zone=us-east-1a
//	    kv_transfer: {domain: zone, enforcement: required}  # or preferred, with weight: 0.5
//	    accepts_aggregated: false
//	    header_overrides: false
//	    draining: false
//	    facts_unknown: false        # engine, models or block_size may be absent: see worker.Worker
//	    engine_rank: 0              # what the engine calls the worker's rank 0, if others have the ranks before it
//	    facts: false                # true: what is left out is asked of the engine (see below)
//	    facts_port: 8200            # where the engine is asked; default the endpoint's port
//
// Contract. A list is read whole or not at all: [ParseList] returns every worker, or an error
// that names each fault with its line, its worker and its key. Unknown and repeated keys, YAML
// anchors, aliases, tags and merge keys, a second document, repeated ids or endpoints and
// values of the wrong form are refused. [ParseKnown] alone passes over unknown keys, since
// newer versions of Baton write to the same store. `bootstrap` or `kv_events` without a port
// counts as absent, and so does a key without a value. A byte order mark at the beginning is
// ignored. The `domain` of `kv_transfer` needs a value in `topology_domains`: a worker without
// that value is shown as a problem and not picked.
//
// With `facts: true` only the endpoint has to be given. What else is given holds, and the
// engine is asked for the rest by internal/facts; until it has answered, the worker is an
// aggregated one, or what `role` says. Without `id` the worker has one that is made from
// its endpoint, the same in each process.
//
// Invariants:
//
//   - What [Marshal] and [MarshalList] write, [Parse] and [ParseList] read back as the same
//     workers in the same order; what would not read back is refused.
//   - What a text makes the reader allocate is bounded by [MaxBytes] and by its depth.
//
// What this package does not do: it opens nothing and watches nothing, which the sources do
// that import it, and resolves no names.
package record
