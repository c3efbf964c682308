package leg

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Failure is one row of the failure table of ARCHITECTURE.md: what a client sees, and the
// label under which the failure is counted. The rows are values in this file; callers add
// facts to the message of a copy. Only BadBody makes another row, with the text of the
// body's scanner.
type Failure struct {
	Code    string // metric label and error.code
	Status  int
	Kind    string // error.type, OpenAI's word
	Message string
	Param   string
	// RetryAfter, if positive, is sent as Retry-After: the client may send the same
	// request again.
	RetryAfter time.Duration
	// Fresh says that another attempt may go better. About a worker that the request
	// names, it may only if whoever named that worker is asked again.
	Fresh bool
	// Answer, if any, is a worker's own error body, which is sent unchanged.
	Answer []byte
	// Queue, if any, is told in the body, for clients that pace themselves.
	Queue *Queue
	// Retry, if any, is a worker's own Retry-After, which is sent in place of RetryAfter.
	Retry string
	// OfPrefill says that the prefill worker failed; false: the one that answers.
	OfPrefill bool
	// Ends is the outcome of a request that ends with this failure; "": Refused.
	Ends Outcome
	// Header, if it has a name, is sent with the answer.
	Header wire.Header
	// Said, if any, tells those who run the router what the leg has met; see said. It is for
	// records, logs and spans, never for clients.
	Said string
	// Taint, if any, is the required taint that no worker carries; the body tells it.
	Taint string
}

// Queue is how much prefill work is queued, and how much may be.
type Queue struct{ QueuedISLTokens, MaxQueuedISLTokens int64 }

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
	FailUnknownPath  = Failure{Code: "unknown_path", Status: 404, Kind: kindNotFound, Message: "This path is not served here."}
	failMethod       = Failure{Code: "method_not_allowed", Status: 405, Kind: kindInvalid, Message: "Use POST on this path.", Header: wire.Header{Name: "allow", Value: "POST"}}
	failNoBody       = Failure{Code: "missing_body", Status: 400, Kind: kindInvalid, Message: "The request has no body."}
	failBodyTooLarge = Failure{Code: "body_too_large", Status: 413, Kind: kindInvalid, Message: "The request body is too large."}
	failEncoded      = Failure{Code: "encoded_body", Status: 415, Kind: kindInvalid, Message: "The body is encoded, as its header content-encoding says: send it as it is, without that header.", Param: "content-encoding", Header: wire.Header{Name: "accept-encoding", Value: "identity"}}
	failBodiesFull   = Failure{Code: "bodies_full", Status: 503, Kind: kindUnavailable, Message: "The router has as many bytes of requests in flight as it may; try again.", RetryAfter: time.Second}
	FailLegsFull     = Failure{Code: "legs_full", Status: 503, Kind: kindUnavailable, Message: "The router has as many prefill legs in flight as it may have open files for; try again.", RetryAfter: time.Second}
	FailUnknownModel = Failure{Code: "model_not_found", Status: 404, Kind: kindNotFound, Message: "The model does not exist here.", Param: "model"}
	failNoResponse   = Failure{Code: "response_not_found", Status: 404, Kind: kindNotFound, Message: "No worker here keeps the response: it is not of this router, or its worker has left. Send the conversation as input.", Param: "previous_response_id"}
	failTooSlow      = Failure{Code: "request_timeout", Status: 408, Kind: kindInvalid, Message: "The request did not arrive in time."}
	failProxy        = Failure{Code: "proxy_refused", Status: 400, Kind: kindInvalid, Message: "The proxy refused the request."}
	failDeadline     = Failure{Code: "deadline_exceeded", Status: 504, Kind: kindTimeout, Message: "The request did not finish before its deadline.", Ends: blame.Failed}
	failBadTimeout   = Failure{Code: "invalid_timeout", Status: 400, Kind: kindInvalid, Message: "The header x-request-timeout-ms is not a positive number of milliseconds.", Param: "x-request-timeout-ms"}

	FailNotReady     = Failure{Code: "not_ready", Status: 503, Kind: kindUnavailable, Message: "The router does not know its workers yet; try again.", RetryAfter: time.Second, Fresh: true}
	failNoWorker     = Failure{Code: "no_worker", Status: 503, Kind: kindUnavailable, Message: "The model has no worker at present; try again.", RetryAfter: time.Second}
	failPending      = Failure{Code: "prefill_not_ready", Status: 503, Kind: kindUnavailable, Message: "The model's prefill workers are still starting; try again.", RetryAfter: time.Second}
	failNoDecode     = Failure{Code: "no_decode_worker", Status: 503, Kind: kindUnavailable, Message: "No decode worker can take the request; try again.", RetryAfter: time.Second}
	failNoPrefill    = Failure{Code: "no_prefill_worker", Status: 503, Kind: kindUnavailable, Message: "No prefill worker can take the request; try again.", RetryAfter: time.Second}
	failNoAggregated = Failure{Code: "no_aggregated_worker", Status: 503, Kind: kindUnavailable, Message: "No worker can serve the request without a prefill worker; try again.", RetryAfter: time.Second}
	failNoCommon     = Failure{Code: "no_common_handoff", Status: 501, Kind: kindUnavailable, Message: "No prefill worker and no decode worker of the model have a hand-off in common: run both with one engine, version, block size, KV type, kv_group and the same weights."}
	failSidesDiffer  = Failure{Code: "sides_differ", Status: 503, Kind: kindUnavailable, Message: "The model's prefill and decode workers count the tokens of one prompt differently: give all of them one chat template, one tokenizer and one limit of a prompt's length; then try again.", RetryAfter: time.Second}
	failNeedsAlone   = Failure{Code: "needs_aggregated_worker", Status: 501, Kind: kindInvalid, Message: "Only a worker that serves whole requests (role aggregated, or decode with accepts_aggregated) could take the request, and the model has none that may."}
	failPrefillGone  = Failure{Code: "prefill_gone", Status: 503, Kind: kindUnavailable, Message: "All prefill workers of the model have left, and no worker can serve without one; try again.", RetryAfter: time.Second}
	failNoListener   = Failure{Code: "no_prefill_listener", Status: 501, Kind: kindUnavailable, Message: "The model's engine needs a prefill listener and the router has none."}
	failNoHandoff    = Failure{Code: "not_disaggregable", Status: 400, Kind: kindInvalid, Message: "The model's engine cannot serve such a request with prefill and decode apart"}
	FailSaturated    = Failure{Code: "prefill_saturated", Status: 429, Kind: kindRateLimit, Message: "The prefill workers have as much work queued as they may; try again.", RetryAfter: time.Second}
	failNoTaint      = Failure{Code: "no_worker_with_taint", Status: 503, Kind: kindUnavailable, Message: "No worker that can take the request carries a taint that it needs; try again.", RetryAfter: time.Second}
	FailOutside      = Failure{Code: "no_endpoint_in_subset", Status: 503, Kind: kindUnavailable, Message: "None of the endpoints that the gateway allows can take the request; try again.", RetryAfter: time.Second}
	failEnforced     = Failure{Code: "disaggregation_enforced", Status: 503, Kind: kindUnavailable, Message: "No prefill worker is known and aggregated serving is not allowed; try again.", RetryAfter: time.Second}

	// Failures of requests that name their workers.
	failPinMalformed = Failure{Code: "invalid_routing", Status: 400, Kind: kindInvalid, Message: "What names a worker is not as expected"}
	failPinConflict  = Failure{Code: "routing_conflict", Status: 400, Kind: kindInvalid, Message: "Two things that name a worker contradict each other"}
	failPinMissing   = Failure{Code: "worker_not_named", Status: 400, Kind: kindInvalid, Message: "The request has to name its workers here"}
	failPinUnknown   = Failure{Code: "worker_unknown", Status: 404, Kind: kindNotFound, Message: "There is no such worker"}
	failPinGone      = Failure{Code: "worker_gone", Status: 503, Kind: kindUnavailable, Message: "The named worker has left; name another", RetryAfter: time.Second, Fresh: true}
	failPinModel     = Failure{Code: "worker_wrong_model", Status: 400, Kind: kindInvalid, Message: "The named worker does not serve the model"}
	failPinRole      = Failure{Code: "worker_wrong_role", Status: 400, Kind: kindInvalid, Message: "The named worker does not do what it is named for", Fresh: true}
	failPinDraining  = Failure{Code: "worker_draining", Status: 503, Kind: kindUnavailable, Message: "The named worker takes no new requests; name another", RetryAfter: time.Second, Fresh: true}
	failPinUnusable  = Failure{Code: "worker_not_usable", Status: 503, Kind: kindUnavailable, Message: "Not all that is needed of the named worker is known; name another", RetryAfter: time.Second, Fresh: true}
	failPinNeeds     = Failure{Code: "worker_needs_prefill", Status: 503, Kind: kindUnavailable, Message: "The named worker cannot serve without a prefill worker; try again", RetryAfter: time.Second}
	failPinRank      = Failure{Code: "rank_out_of_range", Status: 400, Kind: kindInvalid, Message: "The named worker has no such rank"}
	failPinUnfit     = Failure{Code: "workers_do_not_fit", Status: 400, Kind: kindInvalid, Message: "The named workers cannot hand KV over to each other"}

	failPrefill        = Failure{Code: "prefill_failed", Status: 503, Kind: kindUnavailable, Message: "The prefill worker failed; try again.", RetryAfter: time.Second, Fresh: true, OfPrefill: true, Ends: blame.Failed}
	failStale          = Failure{Code: "handoff_stale", Status: 503, Kind: kindUnavailable, Message: "The router has stood still while the request was in it; try again.", RetryAfter: time.Second, Fresh: true, Ends: blame.Failed}
	failPrefillRefused = Failure{Code: "prefill_rejected", Status: 400, Kind: kindInvalid, Message: "The prefill worker refused the request.", OfPrefill: true, Ends: blame.OfWorker}
	failPrefillBusy    = Failure{Code: "prefill_busy", Status: 429, Kind: kindRateLimit, Message: "The prefill workers are busy; try again.", RetryAfter: time.Second, OfPrefill: true, Ends: blame.OfWorker}
	failPrefillLong    = Failure{Code: "prefill_answer_too_large", Status: 400, Kind: kindInvalid, OfPrefill: true, Ends: blame.OfWorker, Message: "The prefill worker's answer is too large to be handed on: ask for less about the prompt, such as fewer prompt_logprobs."}
	failDecodeLost     = Failure{Code: "decode_unreachable", Status: 503, Kind: kindUnavailable, Message: "The decode worker could not be reached; try again.", RetryAfter: time.Second, Fresh: true, Ends: blame.Failed}
	FailDecodesLost    = Failure{Code: "decodes_lost", Status: 500, Kind: kindInternal, Message: "Two workers were lost while they served the request, which may be the cause. Do not send it again as it is.", Header: wire.Header{Name: "x-should-retry", Value: "false"}, Ends: blame.Failed}
	FailHeldBack       = Failure{Code: "held_back", Status: 500, Kind: kindInternal, Message: "Two workers were lost under a request with members that are in no list of what their engine takes", Header: wire.Header{Name: "x-should-retry", Value: "false"}}
	failDecodeError    = Failure{Code: "decode_failed", Status: 502, Kind: kindUnavailable, Message: "The decode worker failed; try again.", RetryAfter: time.Second, Fresh: true, Ends: blame.Failed}
	failDecodeEmpty    = Failure{Code: "empty_answer", Status: 502, Kind: kindUnavailable, Message: "The decode worker answered with nothing; try again.", RetryAfter: time.Second, Ends: blame.Failed}
	failDecodeSilent   = Failure{Code: "decode_overdue", Status: 503, Kind: kindUnavailable, Message: "The decode worker did not answer in time; try again.", RetryAfter: time.Second, Ends: blame.Failed}
	failDecodeRefused  = Failure{Code: "decode_rejected", Status: 400, Kind: kindInvalid, Message: "The decode worker refused the request.", Ends: blame.OfWorker}
	failCut            = Failure{Code: "answer_cut", Status: 502, Kind: kindUnavailable, Message: "The answer broke off.", Ends: blame.Cut}

	FailLegRefused = Failure{Code: "leg_refused", Status: 403, Kind: kindPermission, Message: "This leg was not sent by the router."}
	FailLegLate    = Failure{Code: "leg_late", Status: 410, Kind: kindUnavailable, Message: "The attempt that this leg belongs to is over."}
	FailLegGone    = Failure{Code: "leg_worker_gone", Status: 503, Kind: kindUnavailable, Message: "The prefill worker has left."}
	failLegAborted = Failure{Code: "leg_aborted", Status: 499, Kind: kindUnavailable, Message: "The leg was ended by its owner."}

	FailProtocol = Failure{Code: "protocol_violation", Status: 500, Kind: kindInternal, Message: "The proxy sent a message out of order.", Ends: blame.Failed}
	FailInternal = Failure{Code: "internal_error", Status: 500, Kind: kindInternal, Message: "The router failed on this request.", Ends: blame.Failed}
)

// failures has every row of the failure table.
var failures = [...]*Failure{
	&FailUnknownPath, &failMethod, &failNoBody, &failBodyTooLarge, &failEncoded, &failBodiesFull, &FailLegsFull, &FailUnknownModel, &failNoResponse, &failTooSlow, &failProxy, &failDeadline, &failBadTimeout,
	&FailNotReady, &failNoWorker, &failPending, &failNoDecode, &failNoPrefill, &failNoAggregated, &failNeedsAlone, &failPrefillGone, &failNoCommon, &failSidesDiffer, &failNoListener, &failNoHandoff, &FailSaturated, &failNoTaint, &FailOutside, &failEnforced,
	&failPinMalformed, &failPinConflict, &failPinMissing, &failPinUnknown, &failPinGone, &failPinModel, &failPinRole, &failPinDraining,
	&failPinUnusable, &failPinNeeds, &failPinRank, &failPinUnfit,
	&failPrefill, &failStale, &failPrefillRefused, &failPrefillBusy, &failPrefillLong, &failDecodeLost, &FailDecodesLost, &FailHeldBack, &failDecodeError, &failDecodeEmpty,
	&failDecodeSilent, &failDecodeRefused, &failCut,
	&FailLegRefused, &FailLegLate, &FailLegGone, &failLegAborted, &FailProtocol, &FailInternal,
}

// FailureOf returns a copy of the row with a code, or of FailInternal if there is none.
func FailureOf(code string) *Failure {
	of := FailInternal
	for _, f := range failures {
		if f.Code == code {
			of = *f
		}
	}
	return &of
}

// UnknownPath returns the failure for a path that is not served. It names the path, and one
// of those served that the client may have meant; passed says that it may be one which is passed
// on.
func UnknownPath(path string, served *openai.Paths, passed bool) *Failure {
	f := FailUnknownPath
	f.Message = "The path " + PathTold(path) + " is not served here"
	near := served.Nearest(path, passed)
	if near != "" {
		f.Message += ": did you mean " + near + "?"
	} else {
		f.Message += "."
	}
	return &f
}

// PathTold returns what an error tells of a path: not its query, and at most 200 bytes.
func PathTold(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path[:min(len(path), 200)]
}

// outcome returns the outcome of a request that ends with this failure.
func (f *Failure) outcome() Outcome { return cmp.Or(f.Ends, Refused) }

// failureOfPrefill returns the failure for a prefill leg that has failed as r says.
func failureOfPrefill(r *Report) Failure {
	f := failPrefill
	switch r.Reason {
	case blame.Rejected, blame.Redirected:
		f = failPrefillRefused
		f.Status, f.Answer = r.Status, r.Answer
		if r.Location != "" {
			f.Header = wire.Header{Name: "location", Value: r.Location}
		}
	case blame.Busy:
		f = failPrefillBusy
		f.Retry = r.RetryAfter
	case blame.TooLong:
		f = failPrefillLong
	}
	f.Said = r.Said
	return f
}

// failureOfDecode returns the row for a decode leg that has failed before its answer.
func failureOfDecode(s blame.Sight) Failure {
	switch s {
	case blame.TimedOut:
		return failDeadline
	case blame.Errored, blame.Unfetched:
		return failDecodeError
	case blame.Empty:
		return failDecodeEmpty
	case blame.Busy, blame.Rejected, blame.Redirected:
		return failDecodeRefused
	default:
		return failDecodeLost
	}
}

// failureOfEnd returns the failure for an answer with this status that ended as s says.
// It returns nil if nothing failed, or if nobody knows.
func failureOfEnd(s blame.Sight, status int) *Failure {
	var f Failure
	switch s {
	case blame.Served, blame.ClientLeft, blame.Unfinished, blame.Unsent:
		return nil
	case blame.BrokeOff, blame.Stalled, blame.Failing:
		f = failCut
	case blame.Expired:
		f = failDeadline
	default:
		f = failureOfDecode(s)
	}
	f.Status = status
	return &f
}

// dropReason returns what a refusal says in the header of Rules.ReasonHeader: a word of
// llm-d's router if that has one, else our code, or "" if the header is left out.
func dropReason(f *Failure) string {
	switch {
	case f.Status == 429:
		return "rejected-saturated"
	case f.Code == failDeadline.Code:
		return "rejected-ttl-expired"
	case f.Status != 503:
		return ""
	case strings.HasPrefix(f.Code, "no_"), f.Code == FailNotReady.Code:
		return "rejected-no-endpoints"
	default:
		return f.Code
	}
}

// ImmediateOf returns f as an answer to a request on the path. If retry is set, the answer asks Envoy
// for a fresh attempt.
func ImmediateOf(f *Failure, path string, retry bool) *wire.Immediate {
	im := &wire.Immediate{Status: f.Status, Detail: "baton_" + f.Code}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: "application/json"})
	if f.Retry != "" {
		im.Headers = append(im.Headers, wire.Header{Name: "retry-after", Value: f.Retry})
	} else if f.RetryAfter > 0 {
		im.Headers = append(im.Headers, wire.Header{Name: "retry-after", Value: strconv.Itoa(int(f.RetryAfter.Seconds()))})
	}
	if f.Status == 501 { // clients' libraries send again what got a 5xx, and this stays as it is
		im.Headers = append(im.Headers, wire.Header{Name: "x-should-retry", Value: "false"})
	}
	if f.Header.Name != "" {
		im.Headers = append(im.Headers, f.Header)
	}
	if retry {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderRetry, Value: "1"})
	}
	im.Body = f.Answer
	if len(im.Body) == 0 {
		im.Body = openai.AppendErrorAt(nil, path, f.Status, f.Kind, f.Code, f.Message, f.Param, f.members()...)
	}
	return im
}

// members returns the members that the error object has only for this failure.
func (f *Failure) members() []string {
	if f.Taint != "" {
		return []string{`"required_taint":` + string(openai.AppendString(nil, f.Taint))}
	}
	if f.Queue == nil {
		return nil
	}
	return []string{
		`"reason":"prefill_queue_full"`,
		`"queued_isl_tokens":` + strconv.FormatInt(f.Queue.QueuedISLTokens, 10),
		`"max_queued_isl_tokens":` + strconv.FormatInt(f.Queue.MaxQueuedISLTokens, 10),
	}
}
