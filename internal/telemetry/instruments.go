package telemetry

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Values of the leg label.
const (
	LegMain    = "main"
	LegPrefill = "prefill"
	LegFirst   = "first_token" // a stream that reads the first events of decode's answer
)

// Values of the token_source label.
const (
	SourceRequestIDs     = "request_ids"
	SourceLocal          = "local_tokenizer"
	SourceEngineTokenize = "engine_tokenize"
	SourceByteEstimate   = "byte_estimate"
)

// Instruments counts and measures. Its methods are safe for concurrent use, and do not
// block. A label value of "" counts as None. The zero value counts nothing.
type Instruments struct {
	// Set at construction, read-only.
	requests, attempts, workerAttempts, charges, decisions, servedAlone, servedElsewhere, subsetFaults, freshPicks, failures, panics *counter
	legs, tokenize, firstEvents, targets, proofs, pairCounts, promptTokens, overlapLost, blame, clockOff, logBreaks, recordLost      *counter
	replicas, kvEvents, kvRefused, kvGaps, kvReplays, kvResets                                                                       *counter
	kvRestores, indexDumps                                                                                                           *counter
	aside, activation, traceFailures, engineReports, handOffLosses, factReadings, modelFiles, compared                               *counter

	decisionSeconds, prefillWait, tokenizeSeconds histogram

	whole, firstByte, firstTokenSeconds, perToken, handOffAge, expected *latency

	streams     *counter
	observables observables
	hour        *hour.Hour // is told the same; may be nil
}

// RequestEnded counts one client request. code is the failure table's label if Baton has
// answered it.
func (i *Instruments) RequestEnded(outcome, code string) {
	i.requests.add(1, labels{outcome, code})
	i.hour.Ended(time.Now(), outcome)
}

// workersByName is how many workers a counter counts by name; kindsOfPromptTokens is how many
// values the label kind has.
const workersByName, kindsOfPromptTokens = 256, 6

// Whether a prefill and a decode worker count the tokens of a prompt alike.
const (
	PairAlike   = "alike"
	PairDiffers = "differ"
)

// ChargeHandoff is the charge for both workers of a pair whose hand-off has failed.
const ChargeHandoff = "handoff_failed"

// WorkerAttempt counts one attempt for the worker that was picked.
func (i *Instruments) WorkerAttempt(id worker.ID, role worker.Role, outcome string) {
	i.workerAttempts.add(1, labels{id.String(), role.String(), outcome})
}

// Charged counts a charge against a worker.
func (i *Instruments) Charged(id worker.ID, charge string) {
	i.charges.add(1, labels{id.String(), charge})
}

// AttemptEnded counts one attempt.
func (i *Instruments) AttemptEnded(outcome string) { i.attempts.add(1, labels{outcome}) }

// ServedAlone counts a request that one worker serves although the model has prefill
// workers.
func (i *Instruments) ServedAlone(reason string) { i.servedAlone.add(1, labels{reason}) }

// ServedElsewhere counts a request that another endpoint has answered than the picked
// one: one of ours, or an unknown one.
func (i *Instruments) ServedElsewhere(where string) { i.servedElsewhere.add(1, labels{where}) }

// ClockOff counts a request from a proxy whose clock is wrong.
func (i *Instruments) ClockOff() { i.clockOff.add(1, labels{}) }

// LogBroke counts a stream of a proxy's access log that broke off.
func (i *Instruments) LogBroke() { i.logBreaks.add(1, labels{}) }

// RecordLost counts a decision, or an end, that was not recorded.
func (i *Instruments) RecordLost() { i.recordLost.add(1, labels{}) }

// SubsetFault counts a request whose subset hint cannot be read in full.
func (i *Instruments) SubsetFault(reason string) { i.subsetFaults.add(1, labels{reason}) }

// Decided counts one pick.
func (i *Instruments) Decided(role, mode, reason, tokenSource string) {
	i.decisions.add(1, labels{role, mode, reason, tokenSource})
}

// DecisionTook measures one decision, with both of its picks.
func (i *Instruments) DecisionTook(d time.Duration) { i.decisionSeconds.record(d) }

// FreshPick counts a fresh attempt of a request.
func (i *Instruments) FreshPick(reason string) { i.freshPicks.add(1, labels{reason}) }

// Failure counts one error that Baton has answered.
func (i *Instruments) Failure(code string) { i.failures.add(1, labels{code}) }

// Panic counts a recovered panic.
func (i *Instruments) Panic(where string) { i.panics.add(1, labels{where}) }

// Leg counts an event of a prefill leg. There is a reason if the leg has failed, or was
// refused or aborted.
func (i *Instruments) Leg(outcome, reason string) { i.legs.add(1, labels{outcome, reason}) }

// Seen counts one sight of a leg, by its row of the blame table.
func (i *Instruments) Seen(leg, seen string) { i.blame.add(1, labels{leg, seen}) }

// PrefillProof counts a whole answer of a prefill worker, by what its usage proves.
func (i *Instruments) PrefillProof(proof string) { i.proofs.add(1, labels{proof}) }

// PairCounted counts a prompt of which both workers of a pair have told the tokens, by whether they
// count alike.
func (i *Instruments) PairCounted(alike bool) {
	reason := PairDiffers
	if alike {
		reason = PairAlike
	}
	i.pairCounts.add(1, labels{reason})
}

// FirstEvents counts a streamed answer by what its first events were.
func (i *Instruments) FirstEvents(finding string) { i.firstEvents.add(1, labels{finding}) }

// PrefillWaited measures how long response headers were held back.
func (i *Instruments) PrefillWaited(d time.Duration) { i.prefillWait.record(d) }

// Tokenized counts one attempt to get token ids, and measures how long an engine took for
// it; 0: no engine was asked.
func (i *Instruments) Tokenized(source, outcome string, took time.Duration) {
	i.tokenize.add(1, labels{source, outcome})
	if took > 0 {
		i.tokenizeSeconds.record(took)
	}
}

// KVEvents counts n events that the index has applied.
func (i *Instruments) KVEvents(n int) {
	if n > 0 {
		i.kvEvents.add(int64(n), labels{})
	}
}

// KVRefused counts n events or batches that could not be used.
func (i *Instruments) KVRefused(reason string, n uint64) {
	if n > 0 {
		i.kvRefused.add(int64(n), labels{reason})
	}
}

// Replica counts a message of what replicas share.
func (i *Instruments) Replica(outcome string) { i.replicas.add(1, labels{outcome}) }

// KVGap counts a gap in the sequence numbers of a stream.
func (i *Instruments) KVGap() { i.kvGaps.add(1, labels{}) }

// KVReplay counts a replay.
func (i *Instruments) KVReplay(outcome string) { i.kvReplays.add(1, labels{outcome}) }

// KVReset counts a rank whose blocks were dropped from the index.
func (i *Instruments) KVReset(reason string) { i.kvResets.add(1, labels{reason}) }

// KVRestored counts a rank whose blocks from before a restart were taken into the index.
func (i *Instruments) KVRestored() { i.kvRestores.add(1, labels{}) }

// IndexDump counts a dump of the index.
func (i *Instruments) IndexDump(outcome string) { i.indexDumps.add(1, labels{outcome}) }

// Aside counts a change of a worker's health to the given state.
func (i *Instruments) Aside(to, reason string) { i.aside.add(1, labels{to, reason}) }

// EngineReport counts one question to an engine about what it runs.
func (i *Instruments) EngineReport(outcome string) { i.engineReports.add(1, labels{outcome}) }

// HandOffsLost counts n hand-offs that an engine says to have gone wrong.
func (i *Instruments) HandOffsLost(reason string, n uint64) {
	i.handOffLosses.add(int64(n), labels{reason}) //nolint:gosec // internal/loads bounds it
}

// FactReading counts one question to an engine about its facts.
func (i *Instruments) FactReading(outcome string) { i.factReadings.add(1, labels{outcome}) }

// ModelFiles counts one set of a model's files that a worker serves.
func (i *Instruments) ModelFiles(outcome string) { i.modelFiles.add(1, labels{outcome}) }

// Compared counts one prompt whose tokens were compared with what its engine has told.
func (i *Instruments) Compared(outcome string) { i.compared.add(1, labels{outcome}) }

// Activation counts a change of a key's prefill activation.
func (i *Instruments) Activation(from, to, cause string) {
	i.activation.add(1, labels{from, to, cause})
}

// StreamOpened adds one to the open streams of the leg.
func (i *Instruments) StreamOpened(leg string) { i.stream(leg, 1) }

// StreamClosed takes one away.
func (i *Instruments) StreamClosed(leg string) { i.stream(leg, -1) }

func (i *Instruments) stream(leg string, n int64) {
	if leg != LegPrefill && leg != LegFirst {
		leg = LegMain
	}
	i.streams.add(n, labels{leg})
}

func newInstruments(m metric.Meter, reg prometheus.Registerer) (*Instruments, error) {
	b := builder{meter: m, reg: reg, defs: make(map[string]Metric)}
	for _, d := range Metrics() {
		b.defs[d.Name] = d
	}
	i := &Instruments{
		requests:        b.counter(MetricRequests),
		workerAttempts:  b.counter(MetricWorkerAttempts),
		charges:         b.counter(MetricWorkerCharges),
		attempts:        b.counter(MetricAttempts),
		decisions:       b.counter(MetricDecisions),
		servedAlone:     b.counter(MetricServedAlone),
		servedElsewhere: b.counter(MetricServedElsewhere), subsetFaults: b.counter(MetricSubsetFaults),
		freshPicks: b.counter(MetricFreshPicks),
		failures:   b.counter(MetricFailures),
		panics:     b.counter(MetricPanics),
		clockOff:   b.counter(MetricClockOff),
		logBreaks:  b.counter(MetricLogBreaks),
		recordLost: b.counter(MetricRecordLost),
		legs:       b.counter(MetricLegs),
		tokenize:   b.counter(MetricTokenize), firstEvents: b.counter(MetricFirstEvents), targets: b.counter(MetricTargets), proofs: b.counter(MetricProofs), pairCounts: b.counter(MetricPairCounts), blame: b.counter(MetricBlame),
		replicas:   b.counter(MetricReplicaMessages),
		kvEvents:   b.counter(MetricKVEvents),
		kvRefused:  b.counter(MetricKVRefused),
		kvGaps:     b.counter(MetricKVGaps),
		kvReplays:  b.counter(MetricKVReplays),
		kvResets:   b.counter(MetricKVResets),
		kvRestores: b.counter(MetricKVRestores),
		indexDumps: b.counter(MetricIndexDumps),
		aside:      b.counter(MetricAside), engineReports: b.counter(MetricEngineReports), handOffLosses: b.counter(MetricHandOffLosses), factReadings: b.counter(MetricFactReadings), modelFiles: b.counter(MetricModelFiles), compared: b.counter(MetricCompared),
		activation: b.counter(MetricActivation),

		traceFailures: b.counter(MetricTraceFailures),
		promptTokens:  b.counter(MetricPromptTokens), overlapLost: b.counter(MetricOverlapLost),

		whole: b.latency(MetricRequestSeconds), firstByte: b.latency(MetricFirstByteSeconds),
		firstTokenSeconds: b.latency(MetricFirstTokenSeconds), perToken: b.latency(MetricPerTokenSeconds), handOffAge: b.latency(MetricHandOffAge), expected: b.latency(MetricExpectedRatio),

		decisionSeconds: b.histogram(MetricDecisionSeconds),
		prefillWait:     b.histogram(MetricPrefillWaitSeconds),
		tokenizeSeconds: b.histogram(MetricTokenizeSeconds),
		streams:         b.upDown(MetricStreams),
	}
	i.observables = b.observables()
	if b.err != nil {
		return nil, fmt.Errorf("telemetry: make instruments: %w", b.err)
	}
	i.promptTokens.most, i.overlapLost.most = maxSets*kindsOfPromptTokens, maxSets*len(LossCauses())
	for _, c := range []*counter{i.workerAttempts, i.charges} {
		c.ofWorkers, c.most = true, workersByName
	}
	i.stream(LegMain, 0)
	i.stream(LegPrefill, 0)
	return i, nil
}
