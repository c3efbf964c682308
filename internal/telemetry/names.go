package telemetry

import "slices"

// Metric names, exactly as Prometheus shows them.
const (
	MetricRequests        = "baton_requests_total"
	MetricAttempts        = "baton_attempts_total"
	MetricWorkerAttempts  = "baton_worker_attempts_total"
	MetricWorkerCharges   = "baton_worker_charges_total"
	MetricDecisions       = "baton_decisions_total"
	MetricServedAlone     = "baton_served_alone_total"
	MetricServedElsewhere = "baton_served_elsewhere_total"
	MetricSubsetFaults    = "baton_subset_faults_total"
	MetricDecisionSeconds = "baton_decision_seconds"
	MetricFreshPicks      = "baton_fresh_picks_total"
	MetricFailures        = "baton_failures_total"
	MetricStreams         = "baton_streams_in_flight"
	MetricPanics          = "baton_panics_recovered_total"
	MetricClockOff        = "baton_proxy_clock_off_total"
	MetricLogBreaks       = "baton_access_log_breaks_total"
	MetricRecordLost      = "baton_record_lost_total"

	MetricFirstEvents = "baton_first_events_total"
	MetricProofs      = "baton_prefill_proofs_total"
	MetricPairCounts  = "baton_pair_counts_total"
	MetricBlame       = "baton_blame_total"

	// Names of OpenTelemetry's GenAI conventions for servers of models, in Prometheus'
	// spelling.
	MetricRequestSeconds    = "gen_ai_server_request_duration_seconds"
	MetricFirstTokenSeconds = "gen_ai_server_time_to_first_token_seconds"
	MetricPerTokenSeconds   = "gen_ai_server_time_per_output_token_seconds"
	MetricFirstByteSeconds  = "baton_time_to_first_byte_seconds"
	MetricPromptTokens      = "baton_prompt_tokens_total"
	MetricOverlapLost       = "baton_overlap_lost_tokens_total"

	MetricLegs               = "baton_prefill_legs_total"
	MetricPrefillWaitSeconds = "baton_prefill_wait_seconds"
	MetricExpectedRatio      = "baton_prompt_expected_ratio"
	MetricTargets            = "baton_ttft_targets_total"
	MetricHandOffAge         = "baton_handoff_age_seconds"

	MetricTokenize        = "baton_tokenize_total"
	MetricTokenizeSeconds = "baton_tokenize_seconds"

	MetricKVEvents  = "baton_kv_events_total"
	MetricKVRefused = "baton_kv_refused_total"
	MetricKVGaps    = "baton_kv_gaps_total"
	MetricKVReplays = "baton_kv_replays_total"
	MetricKVResets  = "baton_kv_resets_total"
	MetricKVStreams = "baton_kv_event_streams"
	MetricKVSilent  = "baton_kv_events_silent_workers"

	MetricKVRestores = "baton_kv_restores_total"
	MetricIndexDumps = "baton_index_dumps_total"

	MetricEngineReports = "baton_engine_reports_total"
	MetricHandOffLosses = "baton_engine_handoff_losses_total"
	MetricFactReadings  = "baton_fact_readings_total"
	MetricModelFiles    = "baton_model_files_total"
	MetricCompared      = "baton_tokens_compared_total"
	MetricFacts         = "baton_worker_facts"

	MetricReplicas        = "baton_replicas"
	MetricReplicaMessages = "baton_replica_messages_total"

	MetricAside      = "baton_aside_transitions_total"
	MetricActivation = "baton_activation_transitions_total"

	MetricTrouble      = "baton_trouble"
	MetricIgnored      = "baton_scheduler_ignored"
	MetricReady        = "baton_ready"
	MetricViewRevision = "baton_view_revision"
	MetricViewAge      = "baton_view_age_seconds"
	MetricViewStale    = "baton_view_stale"
	MetricWorkers      = "baton_workers"
	MetricWorkerInfo   = "baton_worker_info"
	MetricLeftOut      = "baton_worker_info_left_out"
	MetricStaleWorkers = "baton_stale_workers"
	MetricKeys         = "baton_keys"
	MetricProblems     = "baton_discovery_problems"

	MetricQueuedTokens = "baton_prefill_queued_tokens"
	MetricQueueLimit   = "baton_prefill_queue_limit_tokens"

	MetricBacklog        = "baton_backlog_seconds"
	MetricLeastBacklog   = "baton_least_backlog_seconds"
	MetricFreeBlocks     = "baton_decode_free_blocks"
	MetricCapacityBlocks = "baton_decode_capacity_blocks"

	MetricBodyBytes = "baton_body_bytes_in_flight"
	MetricWaiting   = "baton_requests_waiting"
	MetricStill     = "baton_streams_silent"
	MetricBodyLimit = "baton_body_bytes_limit"

	MetricPrefillTokens   = "baton_worker_prefill_tokens"
	MetricPrefillRequests = "baton_worker_prefill_requests"
	MetricDecodeBlocks    = "baton_worker_decode_blocks"
	MetricDecodingBlocks  = "baton_worker_decoding_blocks"
	MetricDecodeRequests  = "baton_worker_decode_requests"
	MetricIndexBlocks     = "baton_worker_index_blocks"
	MetricIndexShed       = "baton_worker_index_shed_blocks_total"

	MetricTraceFailures = "baton_trace_export_failures_total"
	MetricBuildInfo     = "baton_build_info"
)

// Label names.
const (
	LabelOutcome     = "outcome"
	LabelModel       = "model"
	LabelCode        = "code"
	LabelReason      = "reason"
	LabelRole        = "role"
	LabelMode        = "mode"
	LabelTokenSource = "token_source"
	LabelLeg         = "leg"
	LabelWhere       = "where"
	LabelFinding     = "finding"
	LabelExpected    = "expected"
	LabelResult      = "result"
	LabelSeen        = "seen"
	LabelCharge      = "charge"
	LabelKind        = "kind"
	LabelPart        = "part"
	LabelOperation   = "gen_ai_operation_name"
	LabelGenAIModel  = "gen_ai_request_model"
	LabelErrorType   = "error_type"
	LabelSource      = "source"
	LabelState       = "state"
	LabelActivation  = "activation"
	LabelCanServe    = "can_serve"
	LabelFrom        = "from"
	LabelTo          = "to"
	LabelCause       = "cause"
	LabelWorker      = "worker_id"
	LabelEndpoint    = "endpoint"
	LabelHost        = "host"
	LabelDPRank      = "dp_rank"
	LabelVersion     = "version"
	LabelRevision    = "revision"
	LabelGoVersion   = "go_version"
)

// None is the value of a label that does not apply. Other is the value for what is not
// counted by itself any more, since a counter has seen too many label combinations or
// workers.
const (
	None  = "none"
	Other = "other"
)

// Kinds of prompt tokens.
const (
	PromptAsked         = "asked"
	PromptAvailable     = "available"
	PromptPredicted     = "predicted"
	PromptTold          = "told"
	PromptToldPredicted = "told_predicted"
	PromptDelivered     = "delivered"
)

// Kind is the type of a metric in Prometheus.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Metric describes one metric. Unit is a UCUM unit as OpenTelemetry writes it.
type Metric struct {
	Name    string
	Kind    Kind
	Unit    string
	Labels  []string
	Help    string
	Buckets []float64 // of a histogram: upper bounds, in Unit
}

// Metrics returns every metric of Baton's own, in the order of the docs. Those of the Go
// runtime and of the process (go_*, process_*) are served beside them.
func Metrics() []Metric {
	return slices.Concat(requestMetrics(), stateMetrics())
}

func l(names ...string) []string { return names }

// requestMetrics are those of requests, of the work for them, and of KV events.
func requestMetrics() []Metric {
	return []Metric{
		{MetricRequests, Counter, "{request}", l(LabelOutcome, LabelCode), "Client requests that have ended.", nil},
		{MetricAttempts, Counter, "{attempt}", l(LabelOutcome), "Attempts that have ended: one for each request, one more for each fresh attempt.", nil},
		{MetricWorkerAttempts, Counter, "{attempt}", l(LabelWorker, LabelRole, LabelOutcome), "Attempts that have ended, by the worker picked to answer (`ok`, `rejected`, `failed` …) and, with role prefill, to prefill (`well`, `failed`). From the 257th on, workers count together as `other`.", nil},
		{MetricWorkerCharges, Counter, "{charge}", l(LabelWorker, LabelCharge), "Charges to workers, by the blame table of ARCHITECTURE.md. From the 257th on, workers count together as `other`.", nil},
		{MetricDecisions, Counter, "{decision}", l(LabelRole, LabelMode, LabelReason, LabelTokenSource), "Picks made, by role.", nil},
		{MetricServedAlone, Counter, "{request}", l(LabelReason), "Requests served by one worker although prefill workers are known: `lower_cost` (routing.conditional), `fallback`, `one_leg` (a gateway's), `cut_prompt`, `one_token`.", nil},
		{MetricServedElsewhere, Counter, "{request}", l(LabelWhere), "Requests that, by a gateway's report, another endpoint has answered than the picked one: `other`, a worker of ours, which then has the booking; or `unknown`.", nil},
		{MetricSubsetFaults, Counter, "{request}", l(LabelReason), "Requests whose subset hint breaks the endpoint picker protocol. A part that cannot be read allows no endpoint.", nil},
		{MetricDecisionSeconds, Histogram, "s", nil, "Time from the complete request to the decision, tokenizing and queueing included.", fastBuckets()},
		{MetricFreshPicks, Counter, "{pick}", l(LabelReason), "Fresh attempts, with another pair or one worker as a fallback, by what had failed; `decode_left`: another decode worker only; `envoy`: begun by Envoy, or after another replica's attempt.", nil},
		{MetricFailures, Counter, "{failure}", l(LabelCode), "Errors answered by Baton, by their row of the failure table.", nil},
		{MetricStreams, Gauge, "{stream}", l(LabelLeg), "Envoy streams open now.", nil},
		{MetricPanics, Counter, "{panic}", l(LabelWhere), "Panics that ended one stream or one task and nothing else.", nil},
		{MetricClockOff, Counter, "{request}", nil, "Requests whose x-baton-start was not used, because the clock of their proxy is known to be more than 2 s off.", nil},
		{MetricLogBreaks, Counter, "{stream}", nil, "Streams of a proxy's access log that broke off. Ends of answers that were on their way are lost; see outcome `unfinished`.", nil},
		{MetricRecordLost, Counter, "{entry}", nil, "Decisions, and ends of requests, that were not recorded, because the recorder's queue was full or a file could not be written ([replay](replay.md)).", nil},
		{MetricLegs, Counter, "{event}", l(LabelOutcome, LabelReason), "Events of prefill legs; one leg has several.", nil},
		{MetricBlame, Counter, "{leg}", l(LabelLeg, LabelSeen), "What was seen of legs, by the rows of the blame table in ARCHITECTURE.md, which says who is charged.", nil},
		{MetricFirstEvents, Counter, "{answer}", l(LabelFinding), "Streamed answers whose first events Baton has read, by what they were: a token; an error, or the end, before any token; or other, if they could not be read.", nil},
		{MetricProofs, Counter, "{answer}", l(LabelReason), "Whole answers of prefill workers, by what they prove: `proven`, `no_usage`, `too_long`, `no_token`, `miscounted`, `believed`, `unrepeated` ([prefill-proof](behaviour.md#prefill-proof)).", nil},
		{MetricPairCounts, Counter, "{prompt}", l(LabelReason), "Prompts of which prefill and decode have both told the tokens, by whether the two count them alike: `alike`, `differ` ([sides](behaviour.md#sides)).", nil},
		{MetricRequestSeconds, Histogram, "s", l(LabelOperation, LabelGenAIModel, LabelErrorType), "Time from the data plane's receipt of a request to the last byte that it sent, over all attempts, of requests for which a worker was picked.", requestBuckets()},
		{MetricFirstByteSeconds, Histogram, "s", l(LabelOperation, LabelGenAIModel), "Time to the first byte of a worker's answer that was sent on. The headers alone are not a token.", firstTokenBuckets()},
		{MetricFirstTokenSeconds, Histogram, "s", l(LabelOperation, LabelGenAIModel), "Time to the first token of a streamed answer, where its first events are read (answer.first_token).", firstTokenBuckets()},
		{MetricPerTokenSeconds, Histogram, "s", l(LabelOperation, LabelGenAIModel), "Time from the first token of a streamed answer to its end, for each token after the first, where its usage is known.", perTokenBuckets()},
		{MetricPromptTokens, Counter, "{token}", l(LabelModel, LabelRole, LabelKind), "Prompt tokens of requests that were served, by how far caches held them.", nil},
		{MetricOverlapLost, Counter, "{token}", l(LabelModel, LabelCause), "Prompt tokens that a rank was believed to hold and that were computed all the same, by cause ([lost-overlap](behaviour.md#lost-overlap)).", nil},
		{MetricHandOffAge, Histogram, "s", l(LabelKind), "Age of prefill's hand-off at decode's first token, or its head where first tokens are not read, where decode needs prefill's answer ([hand-off-age](behaviour.md#hand-off-age)).", requestBuckets()},
		{MetricExpectedRatio, Histogram, "1", l(LabelRole), "Time from a pick until the prompt is computed, over what the pick expected, where its cost is in seconds ([cost](config.md#cost)); 1: as expected.", ratioBuckets()},
		{MetricTargets, Counter, "{request}", l(LabelModel, LabelExpected, LabelResult), "Requests with a target for the first token, by what the pick expected and by what came of it: `kept` or `missed` ([targets](config.md#targets)).", nil},
		{MetricPrefillWaitSeconds, Histogram, "s", nil, "Time that response headers were held back until prefill was well.", slowBuckets()},

		{MetricTokenize, Counter, "{request}", l(LabelSource, LabelOutcome), "Attempts to get the token ids of a request.", nil},
		{MetricTokenizeSeconds, Histogram, "s", nil, "Time that an engine took to tokenize.", slowBuckets()},

		{MetricReplicaMessages, Counter, "{message}", l(LabelOutcome), "Messages by which replicas share what they have booked ([outcomes](../ARCHITECTURE.md#replicas-messages)).", nil},

		{MetricKVEvents, Counter, "{event}", nil, "KV events applied to the index.", nil},
		{MetricKVRefused, Counter, "{event}", l(LabelReason), "KV events or batches that could not be used.", nil},
		{MetricKVGaps, Counter, "{gap}", nil, "Gaps seen in the sequence numbers of KV event streams.", nil},
		{MetricKVReplays, Counter, "{replay}", l(LabelOutcome), "Replays that have ended: asked for when a stream connects, after a gap, and in quiet times.", nil},
		{MetricKVResets, Counter, "{reset}", l(LabelReason), "Ranks whose blocks were dropped from the index.", nil},
		{MetricKVRestores, Counter, "{restore}", nil, "Ranks whose blocks from before a restart were proved to be held still, and taken into the index.", nil},
		{MetricIndexDumps, Counter, "{dump}", l(LabelOutcome), "Times the index was written to index.dump.", nil},
	}
}

// stateMetrics are those of workers, models and the process.
func stateMetrics() []Metric {
	return []Metric{
		{MetricReplicas, Gauge, "{replica}", l(LabelState), "Other replicas by how far they are heard: `sharing`, `silent`, `away`, `not shared` (of a version before 0.2), `not met`.", nil},
		{MetricHandOffLosses, Counter, "{handoff}", l(LabelReason), "Hand-offs that went wrong, as engines count them: `expired`, `read_late`, `failed` ([handoff-losses](behaviour.md#handoff-losses)).", nil},
		{MetricEngineReports, Counter, "{report}", l(LabelOutcome), "Times an engine was asked what it runs (engines.report_interval).", nil},
		{MetricFactReadings, Counter, "{reading}", l(LabelOutcome), "Times an engine was asked for the facts that discovery leaves open: `ok`, `failed`.", nil},
		{MetricModelFiles, Counter, "{set}", l(LabelOutcome), "Sets of models' files that workers serve: `fetched`; `kept`, read from tokens.files_dir; `failed`, of no worker; `refused`, not understood.", nil},
		{MetricCompared, Counter, "{prompt}", l(LabelOutcome), "Prompts whose tokens were made from a model's files, and compared with those of the engine that computed them.", nil},
		{MetricFacts, Gauge, "{worker}", l(LabelState), "Workers whose engines are asked for facts, by what is known: `unknown`, no answer yet; `known`; `failing`, the last questions brought no answer.", nil},

		{MetricKVStreams, Gauge, "{rank}", l(LabelState), "Ranks by their KV events: `none` are expected; `connecting`, none has come yet; `lost`, not connected any more; `replaying`, catching up; `degraded`, some are missing; `connected`.", nil},

		{MetricKVSilent, Gauge, "{worker}", nil, "Workers whose KV events have been expected for 5 s or more and do not come: what they hold counts for less. The page and the log name them.", nil},

		{MetricAside, Counter, "{transition}", l(LabelTo, LabelReason), "Changes of a worker's health.", nil},
		{MetricActivation, Counter, "{transition}", l(LabelFrom, LabelTo, LabelCause), "Changes of a key's prefill activation.", nil},

		{MetricTrouble, Gauge, "{trouble}", l(LabelKind), "What is wrong now, as the page lists it: how many troubles of each kind there are. 0: none of that kind.", nil},
		{MetricIgnored, Gauge, "1", l(LabelPart), "1 for each part of another picker's scheduler (`--config-file`, `--config-text`) that has no counterpart, the first 64 by name. The page and the log say what Baton does instead.", nil},
		{MetricReady, Gauge, "1", nil, "1 when Baton takes requests, else 0.", nil},
		{MetricViewRevision, Gauge, "1", nil, "Discovery revision of the present view of the workers.", nil},
		{MetricViewAge, Gauge, "s", nil, "Time since the view was last confirmed by its source.", nil},
		{MetricViewStale, Gauge, "1", nil, "1 when the view cannot be confirmed by its source, else 0.", nil},
		{MetricWorkers, Gauge, "{worker}", l(LabelRole, LabelState), "Workers in the view.", nil},
		{MetricWorkerInfo, Gauge, "1", l(LabelWorker, LabelEndpoint, LabelRole, LabelModel, LabelHost), "Always 1, for each worker and model; the labels say where the worker is ([below](#joins)).", nil},
		{MetricLeftOut, Gauge, "{entry}", nil, "Workers' models that baton_worker_info leaves out: of each worker those after the 16th, of all those after the 16,384th.", nil},
		{MetricStaleWorkers, Gauge, "{worker}", nil, "Workers that are served although their records have expired: half or more of a role have together, and they still answer.", nil},
		{MetricKeys, Gauge, "{key}", l(LabelActivation, LabelCanServe), "Models that are served here, by prefill activation and whether requests for them can be served. A model counts until 30 minutes after its last worker has left.", nil},
		{MetricProblems, Gauge, "{entry}", nil, "Entries of discovery that cannot be used: unreadable, in conflict, or of a worker that cannot be picked; and pools whose workers have blocks of different kinds.", nil},

		{MetricQueuedTokens, Gauge, "{token}", l(LabelModel), "Prompt tokens booked on the eligible prefill workers of a model, and not yet done as far as is known: bounded by prefill.max_queued_isl_tokens.", nil},
		{MetricQueueLimit, Gauge, "{token}", nil, "prefill.max_queued_isl_tokens: from so many queued tokens on, new requests for the model get 429. 0: no limit.", nil},

		{MetricBacklog, Gauge, "s", l(LabelModel, LabelRole), "How long the ranks in service are believed to be busy with prompts, their mean: it grows with the load and shrinks with each worker more ([autoscaling](../examples/autoscaling/README.md)).", nil},
		{MetricLeastBacklog, Gauge, "s", l(LabelModel, LabelRole), "The same of the rank that is busy for the shortest time: how long a new prompt waits at least.", nil},
		{MetricFreeBlocks, Gauge, "{block}", l(LabelModel, LabelRole), "KV blocks of ranks in service that picks count for no answer, where engines tell how many they have.", nil},
		{MetricCapacityBlocks, Gauge, "{block}", l(LabelModel, LabelRole), "KV blocks that these ranks have.", nil},

		{MetricBodyBytes, Gauge, "By", nil, "Bytes of request bodies in flight, both legs included, from a request's headers to its answer's end: bounded by request.max_bodies_bytes; see `bodies_full` in baton_failures_total.", nil},
		{MetricWaiting, Gauge, "{request}", nil, "Requests that wait for a worker to return, since none of a role is in service and one may come back: each for request.max_wait at most.", nil},
		{MetricStill, Gauge, "{request}", nil, "Streamed answers whose bytes stand still, seen for five seconds or more in Envoy's access log.", nil},
		{MetricBodyLimit, Gauge, "By", nil, "request.max_bodies_bytes, or the limit used if it is not set: beyond it new requests get 503; those over 1 MiB once large ones have three quarters of it.", nil},

		{MetricPrefillTokens, Gauge, "{token}", perWorker(), "Prompt tokens booked for prefill and not yet done.", nil},
		{MetricPrefillRequests, Gauge, "{request}", perWorker(), "Prefill legs booked.", nil},
		{MetricDecodeBlocks, Gauge, "{block}", perWorker(), "KV blocks booked for the prompts of running answers.", nil},
		{MetricDecodingBlocks, Gauge, "{block}", perWorker(), "KV blocks that picks count for the rank: those booked and those that answers have grown by, corrected by KV events and the engine's latest report.", nil},
		{MetricDecodeRequests, Gauge, "{request}", perWorker(), "Answers booked.", nil},
		{MetricIndexBlocks, Gauge, "{block}", perWorker(), "Blocks that the index knows on the rank.", nil},
		{MetricIndexShed, Counter, "{block}", perWorker(), "Blocks of the rank that the index dropped because it had reached index.max_bytes, since the worker was last found.", nil},

		{MetricTraceFailures, Counter, "{span}", nil, "Spans that could not be sent.", nil},
		{MetricBuildInfo, Gauge, "1", l(LabelVersion, LabelRevision, LabelGoVersion), "Always 1; the labels say what runs.", nil},
	}
}

func perWorker() []string { return []string{LabelWorker, LabelDPRank, LabelRole} }

// Span names. The trace of one request has the client's and Envoy's spans, and under them
// one SpanRequest for each attempt, with the decision and both legs.
const (
	SpanRequest    = "baton.request"
	SpanDecision   = "baton.decision"
	SpanDecodeLeg  = "baton.decode_leg"
	SpanPrefillLeg = "baton.prefill_leg"
)

// Span attribute keys. Worker ids are strings: they exceed what a double holds.
const (
	AttrRequestID     = "baton.request_id"
	AttrAttempt       = "baton.attempt"
	AttrModel         = "gen_ai.request.model"
	AttrPath          = "url.path"
	AttrISLTokens     = "baton.isl_tokens"
	AttrTokenSource   = "baton.token_source"
	AttrMode          = "baton.mode"
	AttrReason        = "baton.reason"
	AttrPrefill       = "baton.prefill"
	AttrDecode        = "baton.decode"
	AttrOverlapBlocks = "baton.overlap_blocks"
	AttrCost          = "baton.cost"
	AttrEndpoint      = "server.address"
	AttrError         = "baton.error"
	AttrOutcome       = "baton.outcome"
	AttrStatus        = "http.response.status_code"
)
