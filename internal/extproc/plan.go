package extproc

import (
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// plan turns a decision into the machine's plan, with the limits of its legs.
func (a *asking) plan(d *route.Decision) (*leg.Plan, legLimits, error) {
	srv := a.srv
	p := &leg.Plan{
		Nonce: newNonce(), Disaggregated: d.Apart,
		PrefillNamed: d.Prefill.Named, DecodeNamed: d.Decode.Named,
		Decode: d.Decode.Rank, DecodeDPSize: d.Decode.Worker.RanksPerPort(),
		DecodeAddr: d.Destination, Several: len(d.Others) > 0,
		Prefill: d.Prefill.Rank, Kind: d.Kind,
		Spare: leg.Spare(d.Spare), Suspects: a.before.Suspects, Lost: a.before.Lost,
		Expected: leg.Expected{
			Tokens: int64(d.Prompt.ISLTokens), Exact: d.Prompt.Exact && !srv.doubts.has(d.Key.Model, time.Now()),
			Told: a.before.Told, By: a.before.By,
		},
	}
	var err error
	p.Looks = a.m.Looks()
	if p.Looks || srv.rules.Replicas && !a.filter.Gateway() {
		p.AnswerToken, err = srv.sealer.Seal(prefill.Leg{
			Kind: prefill.AnswerLeg, Owner: srv.owner, Nonce: p.Nonce, Prefill: p.Decode, Deadline: a.m.Request().Deadline,
		})
		if err != nil {
			return nil, legLimits{}, err
		}
	}
	p.NamesResponse = a.m.Request().Path == openai.Responses && engines.Of(d.Decode.Worker.Engine).NamesResponses
	body := a.question.Query().Body
	limits := a.limit(p, d.Key, body, time.Now())
	if !d.Apart {
		return p, limits, nil
	}
	w := d.Prefill.Worker
	p.PrefillAddr = d.Prefill.Address()
	if p.Kind.ByOthers() {
		return p, limits, nil
	}
	leg := prefill.Leg{Owner: srv.owner, Nonce: p.Nonce, Prefill: p.Prefill, Deadline: a.m.Request().Deadline}
	p.SentBeside = a.filter.Sends && !p.Kind.PrefillFirst()
	if p.SentBeside || p.Kind.PrefillFirst() {
		leg.Kind = prefill.SyncLeg
		leg.Deadline = time.Now().Add(min(time.Until(a.m.Request().Deadline), srv.cfg.PrefillTimeout) + srv.cfg.OrphanGrace)
	}
	together := p.Kind.Together
	if together == nil || together.NamesRank {
		p.PrefillDPSize = w.RanksPerPort()
	}
	if p.Kind.PrefillFirst() {
		p.DecodeAlone, p.HandoffID = d.Decode.Alone, d.HandoffID
	} else {
		p.Bootstrap, p.Model = w.Bootstrap, d.Key.Model
		p.InHeaders = d.Decode.Worker.HeaderOverrides && w.HeaderOverrides && slices.Contains(together.OverridesOn, a.m.Request().Path)
		p.Room = d.Room
		leg.Room = p.Room
	}
	p.Token, err = srv.sealer.Seal(leg)
	return p, limits, err
}
