package pin

import (
	"strconv"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Scope is what Pins are checked against. All but Left and LeftFrom are required.
type Scope struct {
	Snap  *worker.Snapshot
	Key   worker.Key // that the request asks for
	Trust Trust

	// Disaggregated says that the request is to be served by a pair; Alone, that it is to
	// be served by one worker, which then needs no prefill. Neither is set for a question
	// that is asked while prefill is becoming ready: only decode is looked up.
	Disaggregated, Alone bool

	// Left reports whether an id that is not in the snapshot was in an earlier one.
	// Without it no id was.
	Left func(worker.ID) bool
	// LeftFrom reports the same for an endpoint. Without it no endpoint was.
	LeftFrom func(worker.Endpoint) bool
}

// Place is a worker that a request has named, and that can serve it.
type Place struct {
	Worker *worker.Worker
	DPRank worker.DPRank
	// AnyRank says that the request gives no rank, and that the worker has several.
	AnyRank bool
}

// Places are the places of both legs; nil for a leg that names no worker.
type Places struct{ Prefill, Decode *Place }

// Resolve finds the workers that are named. It is no fault that a worker is set aside:
// the sender may have better knowledge, and the attempt will show. A named prefill worker
// is looked up even if it will not be needed.
func (p *Pins) Resolve(s Scope) (Places, *Error) {
	var out Places
	var err *Error
	out.Prefill, err = s.place(&p.Prefill, worker.Prefill)
	if err != nil {
		return Places{}, err
	}
	out.Decode, err = s.place(&p.Decode, worker.Decode)
	if err != nil {
		return Places{}, err
	}
	if !s.Disaggregated {
		out.Prefill = nil
	}
	if a, b := out.Prefill, out.Decode; a != nil && b != nil {
		if differ := a.Worker.Fit().Difference(b.Worker.Fit()); differ != "" {
			return Places{}, &Error{
				Kind: Unfit, Param: p.Decode.by(),
				Subject: "prefill worker " + a.Worker.ID.String() + " and decode worker " + b.Worker.ID.String() + " are of different " + differ,
			}
		}
	}
	return out, nil
}

func (s *Scope) place(t *Target, r worker.Role) (*Place, *Error) {
	idHeader, rankHeader := DecodeHeader, DecodeRankHeader
	if r == worker.Prefill {
		idHeader, rankHeader = PrefillHeader, PrefillRankHeader
	}
	needed := s.Trust == Direct && (r == worker.Decode || s.Disaggregated)
	switch {
	case t.Named():
	case needed:
		return nil, &Error{Kind: NotNamed, Param: idHeader, Subject: "no " + r.String() + " worker"}
	case t.HasRank:
		return nil, &Error{Kind: NotNamed, Param: idHeader, Subject: "a rank, but no " + r.String() + " worker"}
	default:
		return nil, nil
	}
	w, err := s.find(t, r)
	if err != nil {
		return nil, err
	}
	t = t.rankOf(w)
	t, err = s.ranked(t, w)
	if err != nil {
		return nil, err
	}
	fault := func(k Kind) (*Place, *Error) {
		return nil, &Error{Kind: k, Param: t.by(), Subject: r.String() + " worker " + w.ID.String()}
	}
	switch {
	case w.Namespace != s.Key.Namespace || !w.Answers(s.Key.Model):
		return fault(WrongModel)
	case !s.does(w, r):
		return fault(WrongRole)
	case w.Draining:
		return fault(Draining)
	case r == worker.Decode && s.Alone && !w.CanServe(worker.Aggregated) && w.CanServe(worker.Decode):
		return fault(NeedsOther)
	case !w.CanServe(w.Role):
		return fault(NotUsable)
	case t.HasRank && uint32(t.DPRank) >= w.DPSize:
		return nil, &Error{
			Kind: RankTooHigh, Param: t.RankBy,
			Subject: r.String() + " worker " + w.ID.String() + " has ranks 0 to " + strconv.FormatUint(uint64(w.DPSize-1), 10),
		}
	case !t.HasRank && w.DPSize > 1 && s.Trust == Direct && needed:
		return nil, &Error{Kind: NotNamed, Param: rankHeader, Subject: "no rank of " + r.String() + " worker " + w.ID.String()}
	}
	return &Place{Worker: w, DPRank: t.DPRank, AnyRank: !t.HasRank && w.DPSize > 1}, nil
}

// does reports whether the worker may serve in the role for which it is named.
func (s *Scope) does(w *worker.Worker, r worker.Role) bool {
	return w.Role == r || r == worker.Decode && s.Alone && w.Role == worker.Aggregated
}

// ranked returns t with the rank that listens at t's address, if each of w's ranks has a
// port of its own.
func (s *Scope) ranked(t *Target, w *worker.Worker) (*Target, *Error) {
	if t.Address.IsZero() || !w.PortPerRank {
		return t, nil
	}
	_, dp := s.Snap.RankAt(t.Address.AddrPort())
	if t.HasRank && t.DPRank != dp {
		return nil, &Error{Kind: Conflict, Param: t.RankBy, Subject: "it is not the rank that " + t.AddressBy + " names"}
	}
	own := *t
	own.DPRank, own.HasRank = dp, true
	return &own, nil
}

// find looks a worker up by its id and by its address, which must name the same one.
func (s *Scope) find(t *Target, r worker.Role) (*worker.Worker, *Error) {
	var byID, byAddress *worker.Worker
	if t.ID != 0 {
		byID = s.Snap.Worker(t.ID)
		if byID == nil {
			k := Unknown
			if s.Left != nil && s.Left(t.ID) {
				k = Gone
			}
			return nil, &Error{Kind: k, Param: t.IDBy, Subject: r.String() + " worker " + t.ID.String()}
		}
	}
	if !t.Address.IsZero() {
		byAddress, _ = s.Snap.RankAt(t.Address.AddrPort())
		if byAddress == nil {
			k := Unknown
			if s.LeftFrom != nil && s.LeftFrom(t.Address) {
				k = Gone
			}
			return nil, &Error{Kind: k, Param: t.AddressBy, Subject: r.String() + " worker at " + t.Address.String()}
		}
	}
	switch {
	case byID == nil:
		return byAddress, nil
	case byAddress == nil || byAddress == byID:
		return byID, nil
	default:
		return nil, &Error{Kind: Conflict, Param: t.AddressBy, Subject: "it is not the worker that " + t.IDBy + " names"}
	}
}
