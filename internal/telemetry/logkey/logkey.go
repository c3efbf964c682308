// Package logkey has every key of a log line, in one list.
//
// # Contract
//
// Whoever logs takes the key from here, and no other: internal/archtest refuses a key that
// is written out, and a key that nobody logs. A key means the same in every line, and its
// name stays: logs are searched for it. docs/metrics.md is generated from [All].
//
// The package imports nothing, so that packages can log that may not import the rest of
// internal/telemetry, such as pkg/kvevents.
//
// What it does not do: it logs nothing, and makes no attributes.
package logkey

// The keys.
const (
	Activated       = "activated"
	Address         = "address"
	Admin           = "admin"
	After           = "after"
	Age             = "age"
	Ahead           = "ahead"
	Answers         = "answers"
	APIKeyFile      = "engines.api_key_file"
	AtMost          = "at_most"
	Attempt         = "attempt"
	BlockSize       = "block_size"
	Blocks          = "blocks"
	By              = "by"
	Bytes           = "bytes"
	Cause           = "cause"
	Cert            = "cert"
	Changed         = "changed"
	Channel         = "channel"
	Count           = "count"
	Deactivated     = "deactivated"
	Decode          = "decode"
	DPRank          = "dp_rank"
	DrainTimeout    = "drain_timeout"
	Digest          = "digest"
	Eagle           = "eagle"
	Endpoint        = "endpoint"
	EnforceDisagg   = "enforce_disagg"
	Entries         = "entries"
	Err             = "err"
	Expired         = "expired"
	Fault           = "fault"
	File            = "file"
	Flag            = "flag"
	From            = "from"
	GoMemLimit      = "gomemlimit"
	Heard           = "heard"
	Instead         = "instead"
	ISLTokens       = "isl_tokens"
	Joined          = "joined"
	Key             = "key"
	Kind            = "kind"
	LastError       = "last_error"
	Left            = "left"
	LeftOut         = "left_out"
	Leg             = "leg"
	LegsOfOthers    = "legs_of_others"
	Life            = "life"
	Limit           = "limit"
	Listen          = "listen"
	MaxAge          = "max_age"
	MaxBodiesBytes  = "max_bodies_bytes"
	MaxBytes        = "max_bytes"
	MostFiles       = "most_files"
	MostLegs        = "most_legs"
	Metrics         = "metrics"
	Model           = "model"
	Models          = "models"
	Namespace       = "namespace"
	Of              = "of"
	Outcome         = "outcome"
	Owner           = "owner"
	Panic           = "panic"
	Path            = "path"
	Peer            = "peer"
	Poll            = "poll"
	Prefill         = "prefill"
	Prompts         = "prompts"
	PrefillLegsLeft = "prefill_legs_left"
	Probes          = "probes"
	Problem         = "problem"
	Rank            = "rank"
	Ranks           = "ranks"
	Reactivated     = "reactivated"
	Reason          = "reason"
	Replica         = "replica"
	RequestID       = "request_id"
	Revision        = "revision"
	Role            = "role"
	RuntimeLimit    = "runtime_limit"
	Silent          = "silent"
	Since           = "since"
	Source          = "source"
	Stack           = "stack"
	State           = "state"
	Status          = "status"
	Streams         = "streams"
	TLS             = "tls"
	To              = "to"
	ToldTokens      = "told_tokens"
	Took            = "took"
	URL             = "url"
	Version         = "version"
	Waited          = "waited"
	Why             = "why"
	WorkerID        = "worker_id"
	Workers         = "workers"
)

// Def describes one key.
type Def struct {
	Name, Help string
}

// All returns every key, with its meaning, in the order of the docs.
func All() []Def {
	return append(ofRequests(), ofTheRest()...)
}

// ofRequests are the keys of lines about requests, workers and the index.
func ofRequests() []Def {
	return []Def{
		{RequestID, "Envoy's x-request-id; attempts of one request share it"},
		{Attempt, "number of the attempt, from 1"},
		{Leg, "`main` or `prefill`; of an attempt that ended, the state of its prefill leg"},
		{Prefill, "prefill rank picked, as id/rank"},
		{Decode, "decode rank picked, as id/rank"},
		{Outcome, "how it ended"},
		{Prompts, "which prompts: `text` or `messages`"},
		{ISLTokens, "tokens that a prompt was expected to have"},
		{ToldTokens, "tokens that an engine has counted in it"},
		{By, "the rank that has answered, as id/rank"},
		{Fault, "what is wrong with a subset hint"},
		{Ahead, "how far our clock is ahead of another"},
		{Owner, "the replica that owns an attempt"},
		{Replica, "address of another replica"},
		{Answers, "number of answers told of"},
		{Streams, "requests whose streams are open"},
		{LegsOfOthers, "legs that run here for other replicas"},
		{PrefillLegsLeft, "attempts with a leg that still ran at the end of a drain"},

		{Model, "model name"},
		{Models, "names of the models that a worker serves"},
		{Namespace, "namespace of the workers"},
		{WorkerID, "instance id"},
		{DPRank, "data-parallel rank"},
		{Rank, "a rank, as id/rank"},
		{Role, "role of the worker"},
		{Endpoint, "ip:port of the worker"},
		{Life, "number of the engine's lives that a record counts"},
		{Workers, "number of workers"},
		{Joined, "workers that have come"},
		{Left, "workers that have gone"},
		{Changed, "workers whose facts have changed"},
		{Expired, "workers whose records have expired, or had"},
		{Silent, "workers whose KV events do not come"},
		{Heard, "workers whose KV events did not come before"},
		{Activated, "decode sides that were activated"},
		{Reactivated, "decode sides that were activated again"},
		{Deactivated, "decode sides that were deactivated"},
		{EnforceDisagg, "the setting of this name"},
		{After, "why the model could not be served before"},

		{Blocks, "number of blocks"},
		{BlockSize, "tokens of a block, as the worker is registered"},
		{Digest, "digest of a model's files"},
		{Eagle, "whether the worker's blocks are hashed in pairs of tokens (EAGLE)"},
		{Ranks, "number of ranks whose blocks are used"},
		{Of, "number of ranks in the dump"},
		{LeftOut, "number of blocks that were not taken"},
		{Channel, "channel of the event plane"},
		{LastError, "the last error of a stream"},
		{Peer, "address of who has dialled"},
	}
}

// ofTheRest are the keys of lines about discovery and the process, and those of all.
func ofTheRest() []Def {
	return []Def{
		{Source, "where it comes from: a discovery source; of the memory, what limits it"},
		{Kind, "kind of a discovery problem"},
		{Key, "key of an entry in discovery"},
		{Problem, "what is wrong with the entry"},
		{Revision, "revision of discovery"},
		{Entries, "number of entries listed"},
		{Instead, "what is served meanwhile"},
		{Since, "since when"},
		{Age, "how old it is"},
		{MaxAge, "how old it may be"},
		{Poll, "how often the file is looked at"},
		{Waited, "how long was waited"},

		{Version, "Baton's version"},
		{Listen, "address on which the plugin answers Envoy"},
		{Admin, "URL of the status page"},
		{Probes, "address of the health service"},
		{Metrics, "URL of the metrics"},
		{TLS, "whether TLS is on"},
		{Cert, "file of the certificate"},
		{APIKeyFile, "the setting of this name"},
		{Flag, "name of a flag"},
		{AtMost, "the longest time that a drain may take"},
		{DrainTimeout, "the setting of `register` of this name"},
		{Bytes, "memory that the process may use"},
		{MaxBytes, "the budget of the index"},
		{MostFiles, "files that this process may have open"},
		{MostLegs, "prefill legs that it sends at once"},
		{MaxBodiesBytes, "the limit for request bodies"},
		{GoMemLimit, "GOMEMLIMIT, if set"},
		{RuntimeLimit, "memory limit given to Go's runtime"},

		{Err, "the error"},
		{Reason, "why, as a short code or a phrase"},
		{Why, "why, as a phrase"},
		{Cause, "what caused a transition"},
		{From, "state before"},
		{To, "state after"},
		{State, "state now"},
		{Status, "HTTP status"},
		{Path, "path of a request, without its query, or of a file"},
		{File, "file name"},
		{URL, "URL of an engine or a page"},
		{Address, "address listened on or connected to"},
		{Count, "how many"},
		{Limit, "how many there may be"},
		{Took, "time taken"},
		{Panic, "value of a recovered panic"},
		{Stack, "stack of a recovered panic"},
	}
}
