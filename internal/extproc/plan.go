package extproc

import (
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// plan turns a verdict into what the machine needs.
func (srv *Server) plan(s *mainStream, q *question, v *verdict, rng *rand.Rand) (*plan, error) {
	decode := q.snap.Worker(v.decode.decision.Rank.ID)
	p := &plan{
		nonce: newNonce(), disaggregated: q.disagg,
		prefillNamed: q.places.Prefill != nil, decodeNamed: q.places.Decode != nil,
		decode: v.decode.decision.Rank, decodeDPSize: decode.RanksPerPort(), subset: q.wish.subset,
	}
	p.decodeAddr, p.others = q.destinations(&v.decode)
	var err error
	if p.looks = s.m.looks(); p.looks || srv.rules.replicas && !s.m.way.gateway {
		if p.answerToken, err = srv.sealer.Seal(prefill.Leg{
			Kind: prefill.AnswerLeg, Owner: srv.owner, Nonce: p.nonce, Prefill: p.decode, Deadline: s.m.deadline,
		}); err != nil {
			return nil, err
		}
	}
	if !q.disagg {
		srv.limit(s, q, p, time.Now())
		return p, nil
	}
	w := q.snap.Worker(v.prefill.decision.Rank.ID)
	p.prefill, p.kind = v.prefill.decision.Rank, handoff.KindOf(w.Engine)
	srv.limit(s, q, p, time.Now())
	leg := prefill.Leg{Owner: srv.owner, Nonce: p.nonce, Prefill: p.prefill, Deadline: s.m.deadline}
	if p.kind.PrefillFirst() {
		leg.Kind = prefill.SyncLeg
		leg.Deadline = time.Now().Add(min(time.Until(s.m.deadline), srv.cfg.PrefillTimeout) + srv.cfg.OrphanGrace)
		p.prefillDPSize, p.decodeAlone = w.RanksPerPort(), srv.mayDecodeAlone(decode)
		params := v.decode.params
		p.decodeRequest = load.Request{
			Key: q.pool.Key, Params: &params, Filter: srv.cfg.Health, Exclude: q.before.ranks,
			Constraints: q.bound(new(picker.Constraints), worker.Decode, p.prefill.ID),
			Pick:        picker.Request{Role: worker.Decode, ISLTokens: v.prompt.ISLTokens, NewBlocks: v.newBlocks()},
		}
		p.handoffID = handoff.DrawRequestID(rng)
	} else {
		p.prefillAddr = w.EndpointOf(p.prefill.DPRank).String()
		p.bootstrap, p.model = w.Bootstrap, q.pool.Key.Model
		p.bootstrapHost, p.bootstrapPort = handoff.SGLangHost(w.Bootstrap), w.Bootstrap.Port
		p.inHeaders = p.kind == handoff.Rendezvous && decode.HeaderOverrides && w.HeaderOverrides && s.m.path != openai.Completions
		p.room = prefill.DrawRoom(rng, p.prefill.DPRank, w.DPSize, s.m.scan.Parallel())
		leg.Room = p.room
	}
	p.token, err = srv.sealer.Seal(leg)
	return p, err
}

// appendMembers appends the members that the body of both legs gets.
func (p *plan) appendMembers(dst []byte) []byte {
	if p.kind == handoff.Mooncake {
		return handoff.AppendMooncake(dst, p.bootstrap, p.prefill.DPRank, p.room)
	}
	return handoff.AppendSGLang(dst, p.bootstrapHost, p.bootstrapPort, p.room)
}
