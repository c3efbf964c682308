package prefill

import "fmt"

// Headers between Baton and Envoy. They are not configurable, since the shipped Envoy
// configurations name them. They reach no worker and no client, unless noted below.
const (
	HeaderLeg             = "x-baton-leg"                    // the sealed decision, main leg → prefill leg
	HeaderRetry           = "x-baton-retry"                  // set on our answer: asks Envoy for a fresh attempt
	HeaderStart           = "x-baton-start"                  // when Envoy received the request, Unix milliseconds
	HeaderAttempt         = "x-attempt-id"                   // the attempt nonce, for Envoy's access log; workers receive it as well
	HeaderLocalReply      = "x-baton-local-reply"            // response flags, and details, of an answer that Envoy made itself
	HeaderPrefillCluster  = "x-prefill-cluster"              // Envoy mirrors the request if this names a cluster
	HeaderDestination     = "x-gateway-destination-endpoint" // GAIE endpoint picker protocol, section 4.2
	HeaderPrefillEndpoint = "x-prefill-destination-endpoint"
	HeaderPrefiller       = "x-prefiller-host-port" // the prefill worker's endpoint, for the sidecar of an llm-d decode pod
	HeaderFirstToken      = "x-baton-first-token"   // makes Envoy send us the first events of the answer
	HeaderError           = "x-baton-error"         // the body of a worker's error, in base64, on its way to the main leg
	HeaderCachedTokens    = "x-baton-cached-tokens" // on the client's answer, if it is configured
	HeaderDecision        = "x-baton-decision"      // on the client's answer, if the client has sent HeaderDebug
	HeaderDebug           = "x-debug-decision"      // from a client that wants to see the decision
	HeaderTarget          = "x-ttft-target-ms"      // from a client: within which time it wants the first token
	HeaderTargetLLMD      = "x-llm-d-slo-ttft-ms"   // the same in llm-d's words
	HeaderAnsweredBy      = "x-answered-by"         // on what we answer without a worker, for whoever takes us for one
)

// AnsweredByBaton is the value of HeaderAnsweredBy.
const AnsweredByBaton = "baton"

// Names are the names of the headers that tell workers and observers what was chosen.
// Each list may have several names: all of them are set.
type Names struct {
	WorkerID      []string
	PrefillID     []string
	DPRank        []string
	PrefillDPRank []string
	BootstrapHost []string
	BootstrapPort []string
	BootstrapRoom []string
}

// The dialects that NamesOf knows.
const (
	DialectPlain  = "plain"  // x-worker-instance-id and the like, read by all versions of Dynamo and by SGLang's tools
	DialectDynamo = "dynamo" // the x-dynamo-… names of Dynamo 1.6 and later
	DialectBoth   = "both"
	// DialectLLMD is plain, for decode workers with llm-d's sidecar: where a data plane
	// carries one leg, HeaderPrefiller tells that sidecar the prefill worker.
	DialectLLMD = "llm-d"
)

// NamesOf returns the header names of a dialect.
func NamesOf(dialect string) (Names, error) {
	plain := Names{
		WorkerID:      []string{"x-worker-instance-id"},
		PrefillID:     []string{"x-prefill-instance-id"},
		DPRank:        []string{"x-dp-rank"},
		PrefillDPRank: []string{"x-prefill-dp-rank"},
		BootstrapHost: []string{"x-bootstrap-host"},
		BootstrapPort: []string{"x-bootstrap-port"},
		BootstrapRoom: []string{"x-bootstrap-room"},
	}
	dynamo := plain
	dynamo.WorkerID = []string{"x-dynamo-worker-instance-id"}
	dynamo.PrefillID = []string{"x-dynamo-prefill-instance-id"}
	dynamo.DPRank = []string{"x-dynamo-dp-rank"}
	dynamo.PrefillDPRank = []string{"x-dynamo-prefill-dp-rank"}
	switch dialect {
	case DialectPlain, DialectLLMD:
		return plain, nil
	case DialectDynamo:
		// Every dialect has x-prefill-instance-id, as Baton promises.
		dynamo.PrefillID = append(dynamo.PrefillID, plain.PrefillID...)
		return dynamo, nil
	case DialectBoth:
		both := plain
		both.WorkerID = append(both.WorkerID, dynamo.WorkerID...)
		both.PrefillID = append(both.PrefillID, dynamo.PrefillID...)
		both.DPRank = append(both.DPRank, dynamo.DPRank...)
		both.PrefillDPRank = append(both.PrefillDPRank, dynamo.PrefillDPRank...)
		return both, nil
	default:
		return Names{}, fmt.Errorf("prefill: header dialect %q: expected plain, dynamo, both or llm-d", dialect)
	}
}
