package extproc

import (
	"unicode/utf8"

	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is for the endpoint picker protocol of the Gateway API inference
// extension (GAIE proposal 004, version 1.0.0).

// Gateway configures the endpoint picker protocol. With the zero value, only filters speak
// it whose metadata says so.
type Gateway struct {
	// Enabled serves the protocol also on streams without metadata of Baton's, as a
	// Gateway API implementation opens them. If false, such streams are refused.
	Enabled bool
	// Endpoints is how many endpoints an answer names at most, best first, for
	// proxies that try the next one if an endpoint cannot be reached: 1 to MaxEndpoints.
	// Some proxies read no more than one. A filter whose Envoy carries two legs gets
	// one endpoint, since its clusters take a single address.
	Endpoints int
	// ReasonHeader names the header that says on refusals why, for gateways that count
	// refused requests. If empty, refusals have no such header.
	ReasonHeader string
	// PassUnknown passes a request for a model that no worker is known to serve to the
	// workers whose models are not known, while there are such; see
	// [route.Config.PassUnknown].
	PassUnknown bool
	// SelectionHeader obeys the request header test-epp-endpoint-selection, and adds to
	// answers a header that names the endpoint which has served: the conformance suite
	// needs both. Every client can then choose among the workers.
	SelectionHeader bool
}

// MaxEndpoints is the most that Gateway.Endpoints may be.
const MaxEndpoints = 8

// answererOf returns which worker has answered, by the endpoint that the data plane names
// beside the response headers. It returns nil if the data plane names none, or the picked
// one.
func (s *mainStream) answererOf(ev *notice) *leg.Answerer {
	p := s.m.Plan()
	if ev.hints == nil || p == nil {
		return nil
	}
	at := s.answered.by(ev.hints)
	first, _, _ := strings.Cut(p.DecodeAddr, ",")
	if at == "" || at == first {
		return nil
	}
	for _, o := range s.decided.others {
		if o.Address == at {
			return &leg.Answerer{Rank: o.Rank, Known: true}
		}
	}
	e, err := worker.ParseEndpoint(at)
	if err != nil || e.String() == first {
		return nil
	}
	if w, dp := s.srv.view.Load().RankAt(e.AddrPort()); w != nil {
		r := worker.Rank{ID: w.ID, DPRank: dp}
		if n := w.RanksPerPort(); n > 1 && n > uint32(p.Decode.DPRank) { // the request names its rank in a header
			r.DPRank = p.Decode.DPRank
		}
		return &leg.Answerer{Rank: r, Known: true}
	}
	return &leg.Answerer{}
}

// served moves decode's booking to the worker that has answered in place of the picked one.
// An ID of 0 means that the worker is not known: the booking then stays.
func (s *mainStream) served(now time.Time, by worker.Rank) {
	where := "unknown"
	if by.ID != 0 && s.decided.decode.Move(by, now) == nil { // an error: the worker has left
		where = "other"
	}
	s.srv.cfg.Journal.Update(s.decided.note, func(r *decision.Record) {
		c := &r.Decode
		c.Replaced = "in place of " + c.Rank.String() + ", by the gateway's word"
		if where == "other" {
			c.Rank = by
		}
		c.Endpoint = s.answered.servedBy
	})
	s.srv.cfg.Telemetry.ServedElsewhere(where)
	s.srv.log.Debug("another endpoint has answered than was picked", logkey.RequestID, s.m.Request().Headers.RequestID, logkey.By, by.String())
}

// conform adds the header in which the conformance suite reads which endpoint has served.
func (s *mainStream) conform(set []wire.Header) []wire.Header {
	if !s.srv.cfg.Gateway.SelectionHeader || !s.filter.Gateway() {
		return set
	}
	return append(set, wire.Header{Name: "x-conformance-test-served-endpoint", Value: cmp.Or(s.answered.told, "fail: missing destination endpoint served metadata")})
}

// strangeIn lists the headers of a worker's answer that name workers or attempts. They are
// to be removed, since a client, or a proxy before this one, would believe that the router
// has set them. Baton's Envoy configurations remove them near the worker; those of a gateway
// do not.
func (f *filter) strangeIn(h *wire.Headers) []string {
	if !f.Plain() || len(h.Named) == 0 && len(h.Strange) == 0 {
		return nil
	}
	out := make([]string, 0, len(h.Named)+len(h.Strange))
	for _, n := range h.Named {
		out = append(out, n.Name)
	}
	out = append(out, h.Strange...)
	out = slices.DeleteFunc(out, func(name string) bool { return !utf8.ValidString(name) }) // nobody reads such a name
	slices.Sort(out)
	return slices.Compact(out)
}

// subsetOf returns the endpoints that the data plane, or else the conformance suite, allows;
// nil: all. A part of the hint that cannot be read allows no endpoint, and is counted.
func (srv *Server) subsetOf(ev *notice, gateway bool) *subset.Set {
	var set *subset.Set
	switch {
	case ev.hints != nil && ev.hints.Subset != nil:
		set = subset.Parse(ev.hints.Subset)
	case gateway && srv.cfg.Gateway.SelectionHeader && len(ev.Headers.Selection) > 0:
		set = subset.ParseHeader(ev.Headers.Selection)
	default:
		return nil
	}
	if fault := set.Fault(); !fault.IsZero() {
		srv.cfg.Telemetry.SubsetFault(string(fault.Kind))
		srv.log.Debug("a subset hint is not as the protocol has it", logkey.Fault, fault.String())
	}
	return set
}
