package activation

import (
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Way says how a model's requests are served.
type Way uint8

// The ways.
const (
	Refused Way = iota
	Apart       // prefill and decode by two workers
	Alone       // the whole request by one worker
)

// Reason says why a model is refused, or why one worker serves it.
type Reason uint8

// The reasons.
const (
	NoReason     Reason = iota
	NoWorker            // no worker serves the model
	Foreign             // the model is in another namespace than the plugin serves
	Pending             // a prefill worker is known, and not all of its facts
	NoPrefill           // no prefill worker takes new requests
	NoDecode            // no decode worker takes new requests
	NoCommon            // no prefill and decode worker are a pair: see worker.Fit
	NoListener          // the hand-off needs a prefill listener
	Enforced            // no prefill worker, and one worker may not serve
	PrefillGone         // the prefill workers have left
	NoAggregated        // no prefill worker was known, and no worker can serve alone
	Off                 // the model is never split
)

// Rules are the settings by which a model is judged.
type Rules struct {
	Enforced   bool // one worker may not serve: enforce_disagg
	Fallback   bool // one worker serves if no pair can: fallback
	Listener   bool // Envoy has a listener for the legs that the plugin begins: prefill.listener
	Sidecar    bool // decode workers have a sidecar that sends the prefill leg: routing.headers llm-d
	NeverSplit bool // one worker always serves: models.NAME.disaggregation
}

// Outlook says whether and how a model can be served, and why not.
type Outlook struct {
	Way    Way
	Reason Reason // why Refused, or why Alone
	// Fallback says that one worker serves in place of an error, whose reason is Reason.
	Fallback bool
	// Aside says that Reason would not hold if no worker was set aside ([Policy.Now]).
	Aside bool
}

// Judge says whether and how a model can be served, from the standing of its prefill
// workers, the ranks that may be picked, and the settings. It makes those checks of "Who
// serves a request" in docs/behaviour.md that need no request. A nil pool has no workers.
func Judge(s prefill.State, p *worker.Pool, r Rules) Outlook {
	if p == nil {
		return Outlook{Reason: NoWorker}
	}
	alone := len(p.AggregatedRanks) > 0
	if r.NeverSplit {
		if !alone {
			return Outlook{Reason: NoAggregated}
		}
		return Outlook{Way: Alone, Reason: Off}
	}
	if s == prefill.PrefillPending {
		return Outlook{Reason: Pending}
	}
	if s == prefill.PrefillReady {
		why := apart(p, r.Listener || r.Sidecar)
		switch {
		case why == NoReason:
			return Outlook{Way: Apart}
		case r.Fallback && alone && why != NoListener:
			return Outlook{Way: Alone, Reason: why, Fallback: true}
		}
		return Outlook{Reason: why}
	}
	why := NoAggregated
	if s == prefill.Deactivated {
		why = PrefillGone
	}
	switch {
	case r.Enforced:
		return Outlook{Reason: Enforced}
	case alone:
		return Outlook{Way: Alone, Reason: why}
	}
	return Outlook{Reason: why}
}

// apart says why no pair of the pool can serve, NoReason if one can.
func apart(p *worker.Pool, listener bool) Reason {
	switch {
	case len(p.PrefillRanks) == 0:
		return NoPrefill // all are draining, which does not allow one worker to serve
	case len(p.DecodeRanks) == 0:
		return NoDecode
	}
	why := NoCommon
	for _, e := range p.PairedEngines {
		if listener || !engines.HandOff(e).PrefillFirst() {
			return NoReason
		}
		why = NoListener
	}
	return why
}

// Why says in words why the model is refused, "" if it is not. p is the pool that was
// judged.
func (o Outlook) Why(p *worker.Pool) string {
	if o.Way != Refused {
		return ""
	}
	return o.because(p)
}

// How says in words how the model is served, "" if it is refused. p is the pool that was
// judged.
func (o Outlook) How(p *worker.Pool) string {
	switch {
	case o.Way == Refused:
		return ""
	case o.Way == Apart:
		var engines []string
		for _, e := range p.PairedEngines {
			engines = append(engines, string(e))
		}
		return "prefill and decode apart (" + strings.Join(engines, ", ") + ")"
	case o.Fallback:
		return "one worker, as the fallback: " + o.because(p)
	case o.Reason == Off:
		return "one worker: its disaggregation is off"
	case o.Reason == PrefillGone:
		return "one worker: all prefill workers have left"
	default:
		return "one worker: no prefill worker is known"
	}
}

func (o Outlook) because(p *worker.Pool) string {
	if o.Aside {
		return o.aside(p)
	}
	switch {
	case o.Reason == NoCommon:
		return because[NoCommon] + NoPair(p)
	case o.Reason == NoAggregated && len(p.Prefill) > 0:
		return because[Off] + ", and no worker can serve it alone"
	default:
		return because[o.Reason]
	}
}

var because = [...]string{
	NoReason: "", NoWorker: "it has no worker", Foreign: "it is of another namespace than this plugin serves",
	Pending:      "its prefill workers are known, but not all that is needed of one",
	NoPrefill:    "its prefill workers take no new requests",
	NoDecode:     "no decode worker takes new requests",
	NoCommon:     "no common hand-off: its ",
	NoListener:   "its engine needs a prefill listener (prefill.listener), and there is none",
	Enforced:     "no prefill worker, and disaggregation is enforced (enforce_disagg)",
	PrefillGone:  "all prefill workers have left, and no worker can do without one",
	NoAggregated: "no prefill worker, and no worker that can do without",
	Off:          "its disaggregation is off",
}

// aside says in words which workers are set aside, so that the model is refused, or served
// in another way.
func (o Outlook) aside(p *worker.Pool) string {
	n, which := len(o.Needs(p)), "workers that could serve it as a pair"
	switch o.Reason {
	case NoPrefill:
		which = "prefill workers"
	case NoDecode:
		which = "decode workers"
	case NoAggregated, PrefillGone:
		which = "workers that can serve it alone"
	}
	return "all its " + which + " (" + strconv.Itoa(n) + ") are set aside"
}

// Needs returns the workers of the pool that would have to take new requests again, so that
// the model is not refused.
func (o Outlook) Needs(p *worker.Pool) []*worker.Worker {
	switch o.Reason {
	case NoPrefill:
		return p.Prefill
	case NoDecode:
		return p.Decode
	case NoAggregated, PrefillGone:
		return p.Aggregated
	default:
		return slices.Concat(p.Prefill, p.Decode)
	}
}

// Policy is the part of the configuration by which models are judged. Read-only.
type Policy struct {
	Namespace string // whose models are served
	Rules     Rules  // of every model
	// NeverSplit are the models for which Rules.NeverSplit is set, by name. An adapter is
	// judged as the base model with which its worker serves it.
	NeverSplit map[string]bool
}

// RulesOf returns the rules of the pool's model.
func (p *Policy) RulesOf(pool *worker.Pool) Rules {
	r := p.Rules
	if len(p.NeverSplit) == 0 || pool == nil {
		return r
	}
	r.NeverSplit = p.NeverSplit[pool.Key.Model]
	if r.NeverSplit {
		return r
	}
	for _, ws := range [][]*worker.Worker{pool.Prefill, pool.Decode, pool.Aggregated} {
		if len(ws) > 0 && slices.Contains(ws[0].Adapters, pool.Key.Model) {
			r.NeverSplit = slices.ContainsFunc(ws[0].Models, func(m string) bool { return p.NeverSplit[m] })
			return r
		}
	}
	return r
}

// Now is Outlook for people: it leaves out the workers that are set aside, of which free
// returns false. A decision learns of them only when it picks.
func (p *Policy) Now(w *World, k worker.Key, free func(*worker.Worker) bool) Outlook {
	all := p.Outlook(w, k)
	if all.Way == Refused {
		return all
	}
	pool := w.Pool(k)
	aside := func(w *worker.Worker) bool { return !free(w) }
	if !slices.ContainsFunc(pool.Prefill, aside) && !slices.ContainsFunc(pool.Decode, aside) && !slices.ContainsFunc(pool.Aggregated, aside) {
		return all
	}
	now := Judge(w.Standing(k).State, pool.Only(free), p.RulesOf(pool))
	now.Aside = now.Way != all.Way
	return now
}

// Outlook says whether and how the key can be served in the world.
func (p *Policy) Outlook(w *World, k worker.Key) Outlook {
	pool := w.Pool(k)
	if pool != nil && k.Namespace != p.Namespace {
		return Outlook{Reason: Foreign}
	}
	return Judge(w.Standing(k).State, pool, p.RulesOf(pool))
}
