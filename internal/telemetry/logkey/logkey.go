// Package logkey has every key of a log line, in one list.
//
// # Contract
//
// Whoever logs takes the key from here, and no other: test/archtest refuses a key that
// is written out, and a key that nobody logs. A key means the same in every line, and its
// name stays: logs are searched for it. The comment behind a key is its meaning:
// docs/metrics.md is generated from both, in this order.
//
// The package imports nothing, so that packages can log that may not import the rest of
// internal/telemetry, such as pkg/kvevents.
//
// What it does not do: it logs nothing, and makes no attributes.
package logkey

// The keys of lines about requests, about workers, about the index, about discovery and about
// the process, and those of all lines.
const (
	RequestID       = "request_id"        // Envoy's x-request-id; attempts of one request share it
	Attempt         = "attempt"           // number of the attempt, from 1
	Leg             = "leg"               // `main` or `prefill`; of an attempt that ended, the state of its prefill leg
	Prefill         = "prefill"           // prefill rank picked, as id/rank
	Decode          = "decode"            // decode rank picked, as id/rank
	Outcome         = "outcome"           // how it ended
	Prompts         = "prompts"           // which prompts: `text` or `messages`
	ISLTokens       = "isl_tokens"        // tokens that a prompt was expected to have
	ToldTokens      = "told_tokens"       // tokens that an engine has counted in it
	PrefillTokens   = "prefill_tokens"    // tokens that the prefill worker has counted in it
	DecodeTokens    = "decode_tokens"     // tokens that the decode worker has
	Alone           = "alone"             // the worker that nobody else counts alike
	Members         = "members"           // names of members of a request's body
	By              = "by"                // the rank that has answered, as id/rank
	Fault           = "fault"             // what is wrong with a subset hint
	Ahead           = "ahead"             // how far our clock is ahead of another
	Owner           = "owner"             // the replica that owns an attempt
	Replica         = "replica"           // address of another replica
	Answers         = "answers"           // number of answers told of
	Streams         = "streams"           // requests whose streams are open
	LegsOfOthers    = "legs_of_others"    // legs that run here for other replicas
	PrefillLegsLeft = "prefill_legs_left" // attempts with a leg that still ran at the end of a drain

	Model         = "model"          // model name
	Models        = "models"         // names of the models that a worker serves
	Namespace     = "namespace"      // namespace of the workers
	WorkerID      = "worker_id"      // instance id
	DPRank        = "dp_rank"        // data-parallel rank
	Rank          = "rank"           // a rank, as id/rank
	Role          = "role"           // role of the worker
	Endpoint      = "endpoint"       // ip:port of the worker
	Life          = "life"           // number of the engine's lives that a record counts
	Workers       = "workers"        // number of workers
	Joined        = "joined"         // workers that have come
	Left          = "left"           // workers that have gone
	Changed       = "changed"        // workers whose facts have changed
	Expired       = "expired"        // workers whose records have expired, or had
	Activated     = "activated"      // decode sides that were activated
	Reactivated   = "reactivated"    // decode sides that were activated again
	Deactivated   = "deactivated"    // decode sides that were deactivated
	EnforceDisagg = "enforce_disagg" // the setting of this name
	After         = "after"          // why the model could not be served before

	Blocks    = "blocks"     // number of blocks
	BlockSize = "block_size" // tokens of a block, as the worker is registered

	EventBlockSize = "event_block_size" // tokens of a block, as the worker's KV events say
	PairFacts      = "pair_facts"       // what the worker's partner must share with it
	Digest         = "digest"           // digest of a model's files
	Eagle          = "eagle"            // whether the worker's blocks are hashed in pairs of tokens (EAGLE)
	Ranks          = "ranks"            // number of ranks whose blocks are used
	Of             = "of"               // number of ranks in the dump
	LeftOut        = "left_out"         // number of blocks that were not taken
	Channel        = "channel"          // channel of the event plane
	LastError      = "last_error"       // the last error of a stream
	Peer           = "peer"             // address of who has dialled

	Source   = "source"   // where it comes from: a discovery source; of the memory, what limits it
	Kind     = "kind"     // kind of a trouble or of a discovery problem
	Key      = "key"      // key of an entry in discovery
	Problem  = "problem"  // what is wrong
	Effect   = "effect"   // what it does to requests
	Do       = "do"       // what to do about it
	Revision = "revision" // revision of discovery
	Entries  = "entries"  // number of entries listed
	Instead  = "instead"  // what is served meanwhile
	Since    = "since"    // since when
	Age      = "age"      // how old it is
	MaxAge   = "max_age"  // how old it may be
	Poll     = "poll"     // how often the file is looked at
	Waited   = "waited"   // how long was waited

	Version        = "version"              // Baton's version
	Listen         = "listen"               // address on which the plugin answers Envoy
	Admin          = "admin"                // URL of the status page
	Probes         = "probes"               // address of the health service
	Metrics        = "metrics"              // URL of the metrics
	TLS            = "tls"                  // whether TLS is on
	Cert           = "cert"                 // file of the certificate
	APIKeyFile     = "engines.api_key_file" // the setting of this name
	Flag           = "flag"                 // name of a flag
	Header         = "header"               // name of a header that clients send
	AtMost         = "at_most"              // the longest time that a drain may take
	DrainTimeout   = "drain_timeout"        // the setting of `register` of this name
	Bytes          = "bytes"                // memory that the process may use
	MaxBytes       = "max_bytes"            // the budget of the index
	MostFiles      = "most_files"           // files that this process may have open
	MostLegs       = "most_legs"            // prefill legs that it sends at once
	MaxBodiesBytes = "max_bodies_bytes"     // the limit for request bodies
	GoMemLimit     = "gomemlimit"           // GOMEMLIMIT, if set
	RuntimeLimit   = "runtime_limit"        // memory limit given to Go's runtime

	Err     = "err"     // the error
	Reason  = "reason"  // why, as a short code or a phrase
	Why     = "why"     // why, as a phrase
	Cause   = "cause"   // what caused a transition
	From    = "from"    // state before
	To      = "to"      // state after
	State   = "state"   // state now
	Status  = "status"  // HTTP status
	Path    = "path"    // path of a request, without its query, or of a file
	File    = "file"    // file name
	URL     = "url"     // URL of an engine or a page
	Address = "address" // address listened on or connected to
	Count   = "count"   // how many
	Limit   = "limit"   // how many there may be
	Took    = "took"    // time taken
	Panic   = "panic"   // value of a recovered panic
	Stack   = "stack"   // stack of a recovered panic
)
