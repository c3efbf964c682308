package extproc

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// failure is one row of the failure table of ARCHITECTURE.md: what a client
// sees, and the label under which it is counted. Failures are values in this
// file only; the text a client reads never comes from an error.
type failure struct {
	code    string // metric label and error.code
	status  int
	kind    string // error.type, OpenAI's word
	message string
	param   string
	// retryAfter, where positive, is sent as Retry-After. The client may try
	// again unchanged.
	retryAfter time.Duration
	// fresh: another attempt may go better; used where attempts are left. Of what a
	// request names, only one in which it is asked again whom it names.
	fresh bool
	// answer, where set, is a worker's own error body, passed on as it is.
	answer []byte
	// queue, where set, is told in the body, for clients that pace themselves.
	queue *queue
	// retry, where set, is a worker's own Retry-After, and goes before retryAfter.
	retry string
	// ofPrefill: the prefill worker failed, else the one that answers.
	ofPrefill bool
	// ends is how the request ends with it; empty: refused by the plugin.
	ends outcome
	// allow, where set, is the header that says which methods the path takes.
	allow string
	// taint, where set, is the required one that nobody carries; told, too.
	taint string
}

// queue is how much work is queued, and may be.
type queue struct{ queuedISLTokens, maxQueuedISLTokens int64 }

const (
	kindInvalid     = "invalid_request_error"
	kindNotFound    = "not_found_error"
	kindUnavailable = "service_unavailable_error"
	kindTimeout     = "timeout_error"
	kindInternal    = "internal_server_error"
	kindPermission  = "permission_error"
	kindRateLimit   = "rate_limit_error"
)

// The failure table.
var (
	failUnknownPath  = failure{code: "unknown_path", status: 404, kind: kindNotFound, message: "This path is not served here."}
	failMethod       = failure{code: "method_not_allowed", status: 405, kind: kindInvalid, message: "Use POST on this path.", allow: "POST"}
	failNoBody       = failure{code: "missing_body", status: 400, kind: kindInvalid, message: "The request has no body."}
	failBodyTooLarge = failure{code: "body_too_large", status: 413, kind: kindInvalid, message: "The request body is too large."}
	failBodiesFull   = failure{code: "bodies_full", status: 503, kind: kindUnavailable, message: "The router has as many bytes of requests in flight as it may; try again.", retryAfter: time.Second}
	failUnknownModel = failure{code: "model_not_found", status: 404, kind: kindNotFound, message: "The model does not exist here.", param: "model"}
	failTooSlow      = failure{code: "request_timeout", status: 408, kind: kindInvalid, message: "The request did not arrive in time."}
	failProxy        = failure{code: "proxy_refused", status: 400, kind: kindInvalid, message: "The proxy refused the request."}
	failDeadline     = failure{code: "deadline_exceeded", status: 504, kind: kindTimeout, message: "The request did not finish before its deadline.", ends: blame.Failed}
	failBadTimeout   = failure{code: "invalid_timeout", status: 400, kind: kindInvalid, message: "The time-out header is not a positive number of milliseconds."}

	failNotReady     = failure{code: "not_ready", status: 503, kind: kindUnavailable, message: "The router does not know its workers yet; try again.", retryAfter: time.Second, fresh: true}
	failNoWorker     = failure{code: "no_worker", status: 503, kind: kindUnavailable, message: "The model has no worker at present; try again.", retryAfter: time.Second}
	failPending      = failure{code: "prefill_not_ready", status: 503, kind: kindUnavailable, message: "The model's prefill workers are still starting; try again.", retryAfter: time.Second}
	failNoDecode     = failure{code: "no_decode_worker", status: 503, kind: kindUnavailable, message: "No decode worker can take the request; try again.", retryAfter: time.Second}
	failNoPrefill    = failure{code: "no_prefill_worker", status: 503, kind: kindUnavailable, message: "No prefill worker can take the request; try again.", retryAfter: time.Second}
	failNoAggregated = failure{code: "no_aggregated_worker", status: 503, kind: kindUnavailable, message: "No worker can serve the request without a prefill worker; try again.", retryAfter: time.Second}
	failNoCommon     = failure{code: "no_common_handoff", status: 503, kind: kindUnavailable, message: "No prefill worker and no decode worker of the model have a hand-off in common; try again.", retryAfter: time.Second}
	failPrefillGone  = failure{code: "prefill_gone", status: 503, kind: kindUnavailable, message: "All prefill workers of the model have left, and no worker can serve without one; try again.", retryAfter: time.Second}
	failNoListener   = failure{code: "no_prefill_listener", status: 503, kind: kindUnavailable, message: "The model's engine needs a prefill listener and the router has none."}
	failNoHandoff    = failure{code: "not_disaggregable", status: 400, kind: kindInvalid, message: "The model's engine cannot serve such a request with prefill and decode apart"}
	failSaturated    = failure{code: "prefill_saturated", status: 429, kind: kindRateLimit, message: "The prefill workers have as much work queued as they may; try again.", retryAfter: time.Second}
	failNoTaint      = failure{code: "no_worker_with_taint", status: 503, kind: kindUnavailable, message: "No worker that can take the request carries a taint that it needs; try again.", retryAfter: time.Second}
	failOutside      = failure{code: "no_endpoint_in_subset", status: 503, kind: kindUnavailable, message: "None of the endpoints that the gateway allows can take the request; try again.", retryAfter: time.Second}
	failEnforced     = failure{code: "disaggregation_enforced", status: 503, kind: kindUnavailable, message: "No prefill worker is known and aggregated serving is not allowed; try again.", retryAfter: time.Second}

	// What a request names, where it may.
	failPinMalformed = failure{code: "invalid_routing", status: 400, kind: kindInvalid, message: "What names a worker is not as expected"}
	failPinConflict  = failure{code: "routing_conflict", status: 400, kind: kindInvalid, message: "Two things that name a worker contradict each other"}
	failPinMissing   = failure{code: "worker_not_named", status: 400, kind: kindInvalid, message: "The request has to name its workers here"}
	failPinUnknown   = failure{code: "worker_unknown", status: 404, kind: kindNotFound, message: "There is no such worker"}
	failPinGone      = failure{code: "worker_gone", status: 503, kind: kindUnavailable, message: "The named worker has left; name another", retryAfter: time.Second, fresh: true}
	failPinModel     = failure{code: "worker_wrong_model", status: 400, kind: kindInvalid, message: "The named worker does not serve the model"}
	failPinRole      = failure{code: "worker_wrong_role", status: 400, kind: kindInvalid, message: "The named worker does not do what it is named for"}
	failPinDraining  = failure{code: "worker_draining", status: 503, kind: kindUnavailable, message: "The named worker takes no new requests; name another", retryAfter: time.Second, fresh: true}
	failPinUnusable  = failure{code: "worker_not_usable", status: 503, kind: kindUnavailable, message: "Not all that is needed of the named worker is known; name another", retryAfter: time.Second, fresh: true}
	failPinNeeds     = failure{code: "worker_needs_prefill", status: 503, kind: kindUnavailable, message: "The named worker cannot serve without a prefill worker; try again", retryAfter: time.Second}
	failPinRank      = failure{code: "rank_out_of_range", status: 400, kind: kindInvalid, message: "The named worker has no such rank"}
	failPinUnfit     = failure{code: "workers_do_not_fit", status: 400, kind: kindInvalid, message: "The named workers cannot hand KV over to each other"}

	failPrefill        = failure{code: "prefill_failed", status: 503, kind: kindUnavailable, message: "The prefill worker failed; try again.", retryAfter: time.Second, fresh: true, ofPrefill: true, ends: blame.Failed}
	failPrefillRefused = failure{code: "prefill_rejected", status: 400, kind: kindInvalid, message: "The prefill worker refused the request.", ofPrefill: true, ends: blame.OfWorker}
	failPrefillBusy    = failure{code: "prefill_busy", status: 429, kind: kindRateLimit, message: "The prefill workers are busy; try again.", retryAfter: time.Second, ofPrefill: true, ends: blame.OfWorker}
	failPrefillLong    = failure{code: "prefill_answer_too_large", status: 400, kind: kindInvalid, ofPrefill: true, ends: blame.OfWorker, message: "The prefill worker's answer is too large to be handed on: ask for less about the prompt, such as fewer prompt_logprobs."}
	failDecodeLost     = failure{code: "decode_unreachable", status: 503, kind: kindUnavailable, message: "The decode worker could not be reached; try again.", retryAfter: time.Second, fresh: true, ends: blame.Failed}
	failDecodeError    = failure{code: "decode_failed", status: 502, kind: kindUnavailable, message: "The decode worker failed; try again.", retryAfter: time.Second, fresh: true, ends: blame.Failed}
	failDecodeEmpty    = failure{code: "empty_answer", status: 502, kind: kindUnavailable, message: "The decode worker answered with nothing; try again.", retryAfter: time.Second, ends: blame.Failed}
	failDecodeSilent   = failure{code: "decode_overdue", status: 503, kind: kindUnavailable, message: "The decode worker did not answer in time; try again.", retryAfter: time.Second, ends: blame.Failed}
	failDecodeRefused  = failure{code: "decode_rejected", status: 400, kind: kindInvalid, message: "The decode worker refused the request.", ends: blame.OfWorker}
	failCut            = failure{code: "answer_cut", status: 502, kind: kindUnavailable, message: "The answer broke off.", ends: blame.Cut}

	failLegRefused = failure{code: "leg_refused", status: 403, kind: kindPermission, message: "This leg was not sent by the router."}
	failLegLate    = failure{code: "leg_late", status: 410, kind: kindUnavailable, message: "The attempt that this leg belongs to is over."}
	failLegGone    = failure{code: "leg_worker_gone", status: 503, kind: kindUnavailable, message: "The prefill worker has left."}
	failLegAborted = failure{code: "leg_aborted", status: 499, kind: kindUnavailable, message: "The leg was ended by its owner."}

	failProtocol = failure{code: "protocol_violation", status: 500, kind: kindInternal, message: "The proxy sent a message out of order.", ends: blame.Failed}
	failInternal = failure{code: "internal_error", status: 500, kind: kindInternal, message: "The router failed on this request.", ends: blame.Failed}
)

// failures lists every row.
func failures() []failure {
	return []failure{
		failUnknownPath, failMethod, failNoBody, failBodyTooLarge, failBodiesFull, failUnknownModel, failTooSlow, failProxy, failDeadline, failBadTimeout,
		failNotReady, failNoWorker, failPending, failNoDecode, failNoPrefill, failNoAggregated, failPrefillGone, failNoCommon, failNoListener, failNoHandoff, failSaturated, failNoTaint, failOutside, failEnforced,
		failPinMalformed, failPinConflict, failPinMissing, failPinUnknown, failPinGone, failPinModel, failPinRole, failPinDraining,
		failPinUnusable, failPinNeeds, failPinRank, failPinUnfit,
		failPrefill, failPrefillRefused, failPrefillBusy, failPrefillLong, failDecodeLost, failDecodeError, failDecodeEmpty,
		failDecodeSilent, failDecodeRefused, failCut,
		failLegRefused, failLegLate, failLegGone, failLegAborted, failProtocol, failInternal,
	}
}

// failureRow is the row with that code.
func failureRow(code string) *failure {
	if f, ok := rows[code]; ok {
		return &f
	}
	return &failInternal
}

// rows are the failures by their codes.
var rows = func() map[string]failure {
	out := make(map[string]failure)
	for _, f := range failures() {
		out[f.code] = f
	}
	return out
}()

// outcome is how a request ends with the failure.
func (f *failure) outcome() outcome { return cmp.Or(f.ends, outcomeRefused) }

// failureOfPrefill returns the row of a prefill leg's failure.
func failureOfPrefill(r *legReport) failure {
	f := failPrefill
	switch r.reason {
	case blame.Rejected:
		f = failPrefillRefused
		f.status, f.answer = r.status, r.answer
	case blame.Busy:
		f = failPrefillBusy
		f.retry = r.retryAfter
	case blame.TooLong:
		f = failPrefillLong
	}
	return f
}

// failureOfDecode returns the row of what was seen of decode before its answer.
func failureOfDecode(s blame.Sight) failure {
	switch s {
	case blame.TimedOut:
		return failDeadline
	case blame.Errored, blame.Unfetched:
		return failDecodeError
	case blame.Empty:
		return failDecodeEmpty
	case blame.Busy, blame.Rejected:
		return failDecodeRefused
	default:
		return failDecodeLost
	}
}

// failureOfEnd returns the row of how an answer with this status ended; nil where
// nothing failed, or nobody knows.
func failureOfEnd(s blame.Sight, status int) *failure {
	var f failure
	switch s {
	case blame.Served, blame.ClientLeft, blame.Unfinished, blame.Unsent:
		return nil
	case blame.BrokeOff:
		f = failCut
	case blame.Expired:
		f = failDeadline
	default:
		f = failureOfDecode(s)
	}
	f.status = status
	return &f
}

// dropReason is what a refusal says in the header of Gateway.ReasonHeader: the
// words of llm-d's router where it has one, else our code.
func dropReason(f *failure) string {
	switch {
	case f.status == 429:
		return "rejected-saturated"
	case f.code == failDeadline.code:
		return "rejected-ttl-expired"
	case f.status != 503:
		return ""
	case strings.HasPrefix(f.code, "no_"), f.code == failNotReady.code:
		return "rejected-no-endpoints"
	default:
		return f.code
	}
}

// immediateOf returns f as an answer. retry asks Envoy for a fresh attempt.
func immediateOf(f *failure, retry bool) *wire.Immediate {
	im := &wire.Immediate{Status: f.status, Detail: "baton_" + f.code}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: "application/json"})
	if f.retry != "" {
		im.Headers = append(im.Headers, wire.Header{Name: "retry-after", Value: f.retry})
	} else if f.retryAfter > 0 {
		im.Headers = append(im.Headers, wire.Header{Name: "retry-after", Value: strconv.Itoa(int(f.retryAfter.Seconds()))})
	}
	if f.allow != "" {
		im.Headers = append(im.Headers, wire.Header{Name: "allow", Value: f.allow})
	}
	if retry {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderRetry, Value: "1"})
	}
	im.Body = f.answer
	if len(im.Body) == 0 {
		im.Body = openai.AppendError(nil, f.status, f.kind, f.code, f.message, f.param, f.members()...)
	}
	return im
}

// members are what the error object holds besides what every one does.
func (f *failure) members() []string {
	if f.taint != "" {
		return []string{`"required_taint":` + string(openai.AppendString(nil, f.taint))}
	}
	if f.queue == nil {
		return nil
	}
	return []string{
		`"reason":"prefill_queue_full"`,
		`"queued_isl_tokens":` + strconv.FormatInt(f.queue.queuedISLTokens, 10),
		`"max_queued_isl_tokens":` + strconv.FormatInt(f.queue.maxQueuedISLTokens, 10),
	}
}
