package oncall

import (
	"slices"
	"strings"
	"time"
)

// Alert is an alert, with its section of the runbook.
type Alert struct {
	Name string
	Expr string
	For  time.Duration
	Page bool // it is worth waking somebody: requests fail or wait

	// Sentences. Summary and Meaning may have Prometheus' templates.
	Because string // why For is as long as it is
	Summary string
	Meaning string
	Users   string // what they notice
	Look    string
	Do      string
}

// byReplica are the labels that differ between replicas of one deployment: an alert is one for all of them.
const byReplica = "without (instance, pod, endpoint, container) "

// trouble is the condition that there is one of the kinds of trouble, at any replica.
func trouble(kinds ...string) string {
	return "max " + byReplica + `(baton_trouble{kind=~"` + strings.Join(kinds, "|") + `"}) > 0`
}

// Recorded are the names of recorded series.
const (
	recordedRequests = "baton:requests:rate5m"
	recordedFailing  = "baton:requests_failing:rate5m"
)

// Codes of the failure table.
const (
	// clientCodes are refusals that are the client's own doing: they are no fault of anybody on call. So is a
	// worker that the client names and that has left; prefill_saturated has an alert of its own.
	clientCodes = "unknown_path|method_not_allowed|missing_body|body_too_large|encoded_body|model_not_found|response_not_found|" +
		"request_timeout|proxy_refused|invalid_timeout|not_disaggregable|prefill_saturated|invalid_routing|routing_conflict|" +
		"worker_not_named|worker_unknown|worker_gone|worker_wrong_model|worker_wrong_role|worker_draining|worker_not_usable|" +
		"worker_needs_prefill|rank_out_of_range|workers_do_not_fit"
	// unservedCodes say that a model, or one of its roles, has no worker.
	unservedCodes = "no_worker|prefill_not_ready|no_decode_worker|no_prefill_worker|no_aggregated_worker|no_common_handoff|" +
		"sides_differ|needs_aggregated_worker|prefill_gone|no_prefill_listener|disaggregation_enforced"
)

// Alerts returns every alert, those that page first.
func Alerts() []Alert { return slices.Concat(failing(), waiting(), ofWorkersKnown(), ofBaton()) }

const (
	status = "The status page (`/` of the admin address) says what is wrong, since when, and what to do. "
	each   = "The status page names each, with since when and why. "
)

// failing are the alerts on requests that fail.
func failing() []Alert {
	return []Alert{
		{
			Name: "BatonAbsent", Expr: "absent(baton_ready)", For: 2 * time.Minute, Page: true,
			Because: "a scrape or two may be missed, and a single plugin restarts within seconds",
			Summary: "Prometheus has no metrics of any Baton",
			Meaning: "No plugin was scraped: none runs, or Prometheus does not reach the admin address.",
			Users:   "If none runs: 503 `router_unavailable` for all requests. Answers that had begun go on.",
			Look:    "Prometheus' page of targets, then the plugin's process or pods and the end of their log.",
			Do:      "Start the plugin, or correct the scrape. If it does not start, its last line of log says why; `extproc check` tries its configuration.",
		},
		{
			Name: "BatonNotReady", Expr: "max " + byReplica + "(baton_ready) == 0", For: time.Minute, Page: true,
			Because: "a start takes seconds, until the first view of the workers is in",
			Summary: "No Baton of {{ $labels.job }} takes requests",
			Meaning: "No replica has a view of its workers: the source of workers has not answered since they started, or the pool does not exist.",
			Users:   "503 `not_ready` for all requests.",
			Look:    status + "`/readyz` has the reason in a line.",
			Do:      "Bring back what it waits for: etcd, the workers file, the apiserver or the InferencePool, and the rights to read them.",
		},
		{
			Name: "BatonRequestsFail", For: 2 * time.Minute, Page: true,
			Expr:    recordedFailing + " / " + recordedRequests + " > 0.05 and " + recordedFailing + " > 0.02",
			Because: "one killed worker fails few requests for seconds, since others get fresh attempts",
			Summary: "{{ $value | humanizePercentage }} of requests to {{ $labels.job }} fail",
			Meaning: "More than one of 20 requests, and more than six in five minutes, failed, were cut, or were refused for want of a worker. Faults of clients do not count.",
			Users:   "Errors, and answers that break off.",
			Look:    status + "On the dashboard *Baton*, failures by code; ARCHITECTURE.md's failure table says what each code means. The page's latest decisions have the workers and what they answered.",
			Do:      "If the decisions name one worker, take it out of service. If they name all of a role, look at what they have in common: a roll-out, a network, a full disk.",
		},
		{
			Name: "BatonCutOff", Expr: trouble("socket_lost", "leg_unreachable"), For: 2 * time.Minute, Page: true,
			Because: "a restart of Envoy is over sooner",
			Summary: "{{ $labels.job }} and Envoy do not reach each other: {{ $labels.kind }}",
			Meaning: "`socket_lost`: no new connection of Envoy's reaches the plugin's socket. `leg_unreachable`: prefill legs that the plugin sends do not reach Envoy's listener `sync_leg`.",
			Users:   "503 for new requests; with `leg_unreachable`, of engines that prefill first.",
			Look:    status + "Is Envoy there, and are the sockets, with the users that may open them?",
			Do:      "Bring the socket's folder back and restart the plugin, or correct prefill.listener. A replica that is well takes the requests meanwhile.",
		},
		{
			Name: "BatonModelUnserved", For: time.Minute, Page: true,
			Expr: "sum by (job, namespace, code) (rate(baton_failures_total{code=~\"" + unservedCodes + "\"}[5m])) > 0" +
				" and on (job, namespace) max by (job, namespace) (baton_trouble{kind=~\"no_workers|model_unserved|listener_missing\"}) > 0",
			Because: "a role whose only worker restarts is back within that time, and requests wait meanwhile",
			Summary: "A model of {{ $labels.job }} cannot be served, and clients ask for it: {{ $labels.code }}",
			Meaning: "The workers of a model, or of one of its roles, are gone or all set aside, and requests for it are refused. A model that nobody asks for alerts nobody.",
			Users:   "503 or 501 with the code, for that model alone.",
			Look:    status + "Its table of models has the reason.",
			Do:      "Start workers of the missing role; if they run, see why they are not known (`kubectl get pods`, the keys in etcd) or set aside.",
		},
	}
}

// waiting are the alerts on requests that wait, or are refused since others do.
func waiting() []Alert {
	return []Alert{
		{
			Name: "BatonFull", Expr: trouble("queue_full", "bodies_full"), For: 5 * time.Minute, Page: true,
			Because: "a burst is over sooner, and clients try again",
			Summary: "{{ $labels.job }} refuses new requests: {{ $labels.kind }}",
			Meaning: "`queue_full`: prompts queued at a model's prefill workers have reached prefill.max_queued_isl_tokens. `bodies_full`: bodies in flight have reached request.max_bodies_bytes.",
			Users:   "429 `prefill_saturated`, or 503 `bodies_full`, for a part of new requests.",
			Look:    "The dashboard *Baton*: the queue in seconds by role, requests by outcome.",
			Do:      "Add prefill workers (`queue_full`), or replicas and memory (`bodies_full`). If one client causes it, limit that client in front of Envoy.",
		},
		{
			Name: "BatonRequestsWait", Expr: "max " + byReplica + "(baton_requests_waiting) > 0", For: 2 * time.Minute, Page: true,
			Because: "a request waits for request.max_wait at most, one minute: these are not the same requests any more",
			Summary: "{{ $value }} requests to {{ $labels.job }} wait for a worker to come back",
			Meaning: "All workers of a role are silent or set aside, and one may come back.",
			Users:   "No first token; after request.max_wait 503.",
			Look:    status + "Its table of workers has the reason of each.",
			Do:      "Restart the workers of that role, or start others.",
		},
		{
			Name: "BatonPromptsQueue", Expr: "max " + byReplica + "(baton_least_backlog_seconds) > 30", For: 10 * time.Minute, Page: true,
			Because: "an autoscaler needs minutes to bring a worker",
			Summary: "Each new prompt for {{ $labels.model }} waits {{ $value | humanizeDuration }} and more",
			Meaning: "Even the least busy {{ $labels.role }} rank has 30 s of prompts booked: clients give up, and ask again.",
			Users:   "A first token after half a minute and more.",
			Look:    "The dashboard *Baton*: the queue in seconds, workers by state. Is a part of the workers set aside? Has traffic grown?",
			Do:      "Add workers of that role. Set prefill.max_queued_isl_tokens, if a refusal is better than the wait.",
		},
	}
}
