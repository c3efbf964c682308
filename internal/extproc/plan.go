package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
)

// plan turns a decision into what the machine needs.
func (a *asking) plan(d *route.Decision) (*plan, error) {
	srv := a.srv
	p := &plan{
		nonce: newNonce(), disaggregated: d.Apart,
		prefillNamed: d.Prefill.Named, decodeNamed: d.Decode.Named,
		decode: d.Decode.Rank, decodeDPSize: d.Decode.Worker.RanksPerPort(),
		decodeAddr: d.Destination, several: len(d.Others) > 0,
		prefill: d.Prefill.Rank, kind: d.Kind,
		spare: spare(d.Spare), suspects: a.suspects,
	}
	var err error
	p.looks = a.m.looks()
	if p.looks || srv.rules.replicas && !a.filter.gateway {
		p.answerToken, err = srv.sealer.Seal(prefill.Leg{
			Kind: prefill.AnswerLeg, Owner: srv.owner, Nonce: p.nonce, Prefill: p.decode, Deadline: a.m.request().deadline,
		})
		if err != nil {
			return nil, err
		}
	}
	body := a.question.Query().Body
	a.limit(p, d.Key, body, time.Now())
	if !d.Apart {
		return p, nil
	}
	w := d.Prefill.Worker
	leg := prefill.Leg{Owner: srv.owner, Nonce: p.nonce, Prefill: p.prefill, Deadline: a.m.request().deadline}
	if p.kind.PrefillFirst() {
		leg.Kind = prefill.SyncLeg
		leg.Deadline = time.Now().Add(min(time.Until(a.m.request().deadline), srv.cfg.PrefillTimeout) + srv.cfg.OrphanGrace)
		p.prefillDPSize, p.decodeAlone = w.RanksPerPort(), d.Decode.Alone
		p.handoffID = d.HandoffID
	} else {
		p.prefillAddr = d.Prefill.Address()
		p.bootstrap, p.model = w.Bootstrap, d.Key.Model
		p.bootstrapHost, p.bootstrapPort = handoff.SGLangHost(w.Bootstrap), w.Bootstrap.Port
		p.inHeaders = p.kind == handoff.Rendezvous && d.Decode.Worker.HeaderOverrides && w.HeaderOverrides && a.m.request().path != openai.Completions
		p.room = d.Room
		leg.Room = p.room
	}
	p.token, err = srv.sealer.Seal(leg)
	return p, err
}
