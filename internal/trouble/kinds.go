package trouble

// Kind is what is wrong. Kinds are values of a metric's label: they stay.
type Kind string

// The kinds, in the order in which people see them.
const (
	NotReady        Kind = "not_ready"
	NoWorkers       Kind = "no_workers"
	ModelUnserved   Kind = "model_unserved"
	QueueFull       Kind = "queue_full"
	BodiesFull      Kind = "bodies_full"
	SocketLost      Kind = "socket_lost"
	LegUnreachable  Kind = "leg_unreachable"
	ListenerMissing Kind = "listener_missing"

	WorkerAside      Kind = "worker_aside"
	WorkerSpared     Kind = "worker_spared"
	WorkerDoubted    Kind = "worker_doubted"
	WorkerUnheard    Kind = "worker_unheard"
	WorkerRecovering Kind = "worker_recovering"
	WorkerStale      Kind = "worker_stale"
	WorkerIneligible Kind = "worker_ineligible"
	FactsFailing     Kind = "facts_failing"

	ViewStale        Kind = "view_stale"
	DiscoveryProblem Kind = "discovery_problem"
	PoolMixed        Kind = "pool_mixed"

	KVEventsSilent Kind = "kv_events_silent"
	KVEventsLost   Kind = "kv_events_lost"
	KVChannelDown  Kind = "kv_channel_down"
	IndexShed      Kind = "index_shed"
	OverlapWrong   Kind = "overlap_wrong"

	RequestsFailing Kind = "requests_failing"
	PromptsGuessed  Kind = "prompts_estimated"
	ModelFiles      Kind = "model_files"
	PairCounts      Kind = "pair_counts"
	HandOffLost     Kind = "handoff_lost"
	RequestsHeld    Kind = "requests_held"

	ClockOff  Kind = "clock_off"
	AccessLog Kind = "access_log"

	TimeLimit   Kind = "time_limit"
	HeaderLimit Kind = "header_limit"

	ReplicaSilent    Kind = "replica_silent"
	ReplicaUnshared  Kind = "replica_unshared"
	ReplicaUnmet     Kind = "replica_unmet"
	ReplicaUntold    Kind = "replica_untold"
	ReplicaDiffers   Kind = "replica_differs"
	ReplicasUnlisted Kind = "replicas_unlisted"

	ConfigIgnored    Kind = "config_ignored"
	SchedulerIgnored Kind = "scheduler_ignored"
	Exposed          Kind = "exposed"
	KeyHidden        Kind = "key_hidden"
	IndexDump        Kind = "index_dump"
	Certificate      Kind = "certificate"
	RecordLost       Kind = "record_lost"
)

// facts is what holds for every trouble of a kind.
type facts struct {
	kind   Kind
	tag    string // one word that catches the eye; may be empty
	severe bool   // requests fail or wait because of it
	effect string
	do     string
	log    logged
}

// logged says what of a trouble the part that finds it tells the log itself.
type logged uint8

const (
	nothing  logged = iota // all is told here
	itsBegin               // and the end is told here
	both
)

// all returns the table of kinds.
func all() []facts {
	return []facts{
		{NotReady, "NOT READY", true, "Requests are refused", "", nothing},
		{NoWorkers, "NO WORKERS", true, "Requests are refused", "Check whether engines run, and whether discovery lists them", nothing},
		{ModelUnserved, "", true, "Its requests are refused or wait", "", both},
		{QueueFull, "FULL", true, "New requests get 429", "Add prefill workers, or raise prefill.max_queued_isl_tokens", nothing},
		{BodiesFull, "FULL", true, "New requests get 503, first those with a body over 1 MiB or of unknown size", "Give the process more memory, or add replicas (request.max_bodies_bytes)", nothing},
		{SocketLost, "", true, "No new connection of Envoy reaches the plugin", "Check that the socket's folder is there, and that this user may write to it", both},
		{LegUnreachable, "", true, "Requests to engines that prefill first fail", "Compare prefill.listener with the address of sync_leg in Envoy's configuration", both},
		{ListenerMissing, "", true, "These workers get no requests", "Set prefill.listener", nothing},

		{WorkerAside, "", true, "It gets no requests until a probe is answered", "See its engine's log", both},
		{WorkerSpared, "", false, "Some of its requests may fail", "See its engine's log: it is kept in service since too many are set aside", nothing},
		{WorkerDoubted, "", false, "It is picked only where no mate is healthy", "", both},
		{WorkerUnheard, "", false, "It is not known whether it can serve", "Check whether its engine runs at that address", nothing},
		{WorkerRecovering, "", false, "It gets one request at a time until one is served", "", both},
		{WorkerStale, "", false, "It gets requests while it answers", "Check whether its register reaches the store", both},
		{WorkerIneligible, "", false, "It gets no requests", "Correct its entry in discovery", nothing},
		{FactsFailing, "", false, "Its last known facts stay in use", "Check whether its engine answers at that address", itsBegin},

		{ViewStale, "STALE", false, "The last known workers serve", "", both},
		{DiscoveryProblem, "", false, "These entries are not used, or not as written", "", itsBegin},
		{PoolMixed, "", false, "", "", nothing},

		{KVEventsSilent, "", false, "The KV blocks of these workers count for less", "Compare kv_events in discovery with the ports at which their engines publish", nothing},
		{KVEventsLost, "", false, "Their overlap may be wrong", "", nothing},
		{KVChannelDown, "", false, "The overlap of its workers may be wrong", "", nothing},
		{IndexShed, "", false, "The overlap of these ranks counts too little", "Raise index.max_bytes", nothing},
		{OverlapWrong, "", false, "Its KV events count for less until they are right again", "Check whether its publisher of KV events has stopped, whether its block size has changed, and whether its cache was reset", nothing},

		{RequestsFailing, "", false, "", "", nothing},
		{PromptsGuessed, "", false, "Their overlap is an estimate", "", nothing},
		{ModelFiles, "", false, "Engines are asked for the tokens of its prompts", "", both},
		{PairCounts, "PAIR", false, "They are no pair until one of them is started anew", "Check that both have the same chat template, tokenizer and limit of the prompt's length (--max-model-len, truncation)", itsBegin},
		{HandOffLost, "LOST", false, "", "", nothing},
		{RequestsHeld, "HELD", false, "", "See the engines' logs", both},

		{ClockOff, "CLOCK", false, "The deadline of a request through it counts from the request's arrival at the plugin", "Set that clock", itsBegin},
		{AccessLog, "", false, "The ends of answers are known late, and bookings stay until then", "Check that Envoy's access log reaches the plugin", nothing},
		{TimeLimit, "TIME", false, "Requests that take longer fail, and count as left by their clients", "Check whether the route to main_leg has timeout: 0s (extproc check --envoy says so), and which time-outs clients and other proxies have", nothing},
		{HeaderLimit, "HEADERS", false, "These requests get 431", "Raise max_headers_count and max_request_headers_kb of the legs' listeners in Envoy's configuration; extproc check --envoy names all that it lacks", nothing},

		{ReplicaSilent, "REPLICA", false, "Its bookings count less and less here", "Check whether it hangs or is cut off", nothing},
		{ReplicaUnshared, "REPLICA", false, "Each of the two picks as if it were alone", "Update it", nothing},
		{ReplicaUnmet, "REPLICA", false, "Each of the two picks as if it were alone", "Check whether it runs, whether it can reach this one at leg.advertise, and whether both have the same leg.key_file", nothing},
		{ReplicaUntold, "REPLICA", false, "It picks without the bookings of this replica", "", nothing},
		{ReplicaDiffers, "REPLICA", false, "The two replicas pick by different loads", "Check whether both know the same workers", nothing},
		{ReplicasUnlisted, "REPLICA", false, "The known replicas stay in use", "", nothing},

		{ConfigIgnored, "IGNORED", false, "The rest of the configuration holds", "Remove it, or set what the note names", nothing},
		{SchedulerIgnored, "IGNORED", false, "It neither adds nor leaves out a worker", "Remove it, or set the named counterpart", itsBegin},
		{Exposed, "OPEN", false, "", "", both},
		{KeyHidden, "", false, "", "", both},
		{IndexDump, "", false, "A restart would use an older dump, or none", "Check that this user may write to the folder of index.dump, and that there is room", itsBegin},
		{Certificate, "", false, "The old certificate stays in use", "Check that tls.cert and tls.key belong together, and that this user may read them", both},
		{RecordLost, "", false, "Records of requests are missing; requests are served", "Check whether record.dir can be written to, and whether its disk is full", nothing},
	}
}

// Kinds returns every kind, in the order in which people see them.
func Kinds() []Kind {
	rows := all()
	kinds := make([]Kind, len(rows))
	for i := range rows {
		kinds[i] = rows[i].kind
	}
	return kinds
}
