package oncall

import "time"

// ofWorkersKnown are the tickets on workers, and on what is known of them.
func ofWorkersKnown() []Alert {
	return []Alert{
		{
			Name: "BatonWorkersOut", Expr: trouble("worker_aside", "worker_recovering", "worker_spared", "worker_doubted", "worker_unheard", "facts_failing"), For: 10 * time.Minute,
			Because: "a worker that restarts is out for as long as it loads its model",
			Summary: "{{ $value }} workers of {{ $labels.job }}: {{ $labels.kind }}",
			Meaning: "They failed requests or do not answer. `worker_aside` gets none; `worker_recovering` one at a time; `worker_spared` fails, too, and is kept since too many are out; `worker_doubted` is picked last; `worker_unheard` has not answered yet; `facts_failing` no longer says what it runs.",
			Users:   "Nothing, while the others have room; longer queues.",
			Look:    each + "Then the engine's own log.",
			Do:      "Restart the worker, or take it away. One that is well again comes back by itself.",
		},
		{
			Name: "BatonDiscoveryStale", Expr: trouble("view_stale", "worker_stale"), For: 10 * time.Minute,
			Because: "etcd's elections and an apiserver's upgrade are over sooner",
			Summary: "{{ $labels.job }} cannot confirm its workers: {{ $labels.kind }}",
			Meaning: "`view_stale`: the source of workers does not answer. `worker_stale`: half or more of a role lost their records together, and still answer.",
			Users:   "Nothing yet: requests go on with the workers known last. New ones are not found.",
			Look:    each + "Is etcd, or the apiserver, reached from the plugin, and from the workers' `register`?",
			Do:      "Bring the store back; restart `register` beside workers whose records are gone.",
		},
		{
			Name: "BatonKVEventsSilent", For: 5 * time.Minute,
			Expr: "max " + byReplica + "(baton_kv_events_silent_workers) > 0 or " +
				trouble("kv_events_silent", "kv_events_lost", "kv_channel_down"),
			Because: "an engine that starts opens its port for events late",
			Summary: "KV events of workers of {{ $labels.job }} do not come",
			Meaning: "The KV blocks of these workers count for less, so prompts go to workers that have to compute them.",
			Users:   "A later first token; everything is served.",
			Look:    each + "The dashboard *Baton*: the hit rate, KV event streams by state.",
			Do:      "Compare kv_events in discovery with the ports at which the engines publish, and with what the network lets through.",
		},
		{
			Name: "BatonOverlapWrong", Expr: trouble("overlap_wrong", "index_shed", "index_dump"), For: 15 * time.Minute,
			Because: "after a restart of engines the index needs minutes of traffic",
			Summary: "{{ $labels.job }} knows caches wrongly: {{ $labels.kind }}",
			Meaning: "`overlap_wrong`: engines compute prompts that the index says they hold. `index_shed`: the index has no memory for all blocks. `index_dump`: it is not written, so a restart begins without it.",
			Users:   "A later first token; everything is served.",
			Look:    each + "The dashboard *Baton*: predicted against delivered hit rate, losses by cause.",
			Do:      "`overlap_wrong`: compare block size and tokenizer of the engine with its record. `index_shed`: raise index.max_bytes. `index_dump`: make room on the disk of index.dump.",
		},
	}
}

// ofBaton are the tickets on Baton's settings, replicas and insight.
func ofBaton() []Alert {
	return []Alert{
		{
			Name: "BatonConfiguration", For: 15 * time.Minute,
			Expr: trouble("discovery_problem", "pool_mixed", "listener_missing", "config_ignored", "scheduler_ignored", "time_limit", "header_limit", "worker_ineligible",
				"model_files", "pair_counts", "replicas_unlisted", "key_hidden", "certificate"),
			Because: "a roll-out mixes old and new for that long",
			Summary: "{{ $labels.job }} has a setting to correct: {{ $labels.kind }}",
			Meaning: "Entries of discovery that cannot be used, workers that do not fit together or do not say what they are, keys of the configuration that do nothing or are missing.",
			Users:   "Nothing, or no prefill and decode apart for the workers concerned.",
			Look:    each + "`extproc check` finds the same before a start.",
			Do:      "What the page says beside it.",
		},
		{
			Name: "BatonReplicas", For: 10 * time.Minute,
			Expr:    trouble("not_ready", "replica_silent", "replica_unshared", "replica_unmet", "replica_untold", "replica_differs"),
			Because: "an upgrade of all replicas takes that long",
			Summary: "Replicas of {{ $labels.job }} do not share what they book: {{ $labels.kind }}",
			Meaning: "A replica is away, stands still, has another version, or does not hear the others: each picks by a part of the load.",
			Users:   "Longer queues under load.",
			Look:    "The status page of each replica has a table of the others. Do their pods run, and reach each other's port of ext_proc?",
			Do:      "Restart the one that stands still; give all of them one version and one key.",
		},
		{
			Name: "BatonHandOffs", Expr: trouble("handoff_lost", "requests_held"), For: 10 * time.Minute,
			Because: "a restart of an engine loses the hand-offs of a moment",
			Summary: "Requests to {{ $labels.job }} go wrong between workers: {{ $labels.kind }}",
			Meaning: "`handoff_lost`: engines count KV that did not get across. `requests_held`: requests of one shape lost two workers, and are held back.",
			Users:   "Fresh attempts, so later first tokens; some errors.",
			Look:    each + "The engines' logs about NIXL, Mooncake or bootstrap.",
			Do:      "Check that prefill and decode reach each other. Take a pair away that fails alone.",
		},
		{
			Name: "BatonBlind", Expr: trouble("clock_off", "access_log", "record_lost"), For: 15 * time.Minute,
			Because: "nothing is served worse by it meanwhile",
			Summary: "What {{ $labels.job }} tells of requests is not whole: {{ $labels.kind }}",
			Meaning: "A proxy's clock is off, no access log tells how answers end, or records cannot be written.",
			Users:   "Nothing.",
			Look:    each,
			Do:      "Set the clock; have Envoy's access log reach the plugin; make room on the disk.",
		},
		{
			Name: "BatonPanics",
			// The first panic of a place begins its series, of which increase sees nothing.
			Expr: "sum " + byReplica + "(increase(baton_panics_recovered_total[15m])) > 0 or " +
				"sum " + byReplica + "(baton_panics_recovered_total unless baton_panics_recovered_total offset 15m) > 0",
			Because: "each is a fault of Baton's to report",
			Summary: "{{ $labels.job }} recovered from a panic",
			Meaning: "One stream or one task ended by a fault of Baton's. Nothing else did.",
			Users:   "One request failed, at most.",
			Look:    "The log has the panic with its stack.",
			Do:      "Report it, with the log.",
		},
	}
}
