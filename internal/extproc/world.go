package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// refusal is the row of the failure table for a model that cannot be served, or only
// as a fallback; nil for one that can. Without a listener a request may still find
// another way: splittable judges that.
func refusal(o activation.Outlook) *failure {
	if o.Way != activation.Refused && !o.Fallback {
		return nil
	}
	switch o.Reason {
	case activation.Pending:
		return &failPending
	case activation.NoPrefill:
		return &failNoPrefill
	case activation.NoDecode:
		return &failNoDecode
	case activation.NoCommon:
		return &failNoCommon
	case activation.NoListener:
		return nil
	case activation.Enforced:
		return &failEnforced
	case activation.PrefillGone:
		return &failPrefillGone
	case activation.NoAggregated:
		return &failNoAggregated
	default:
		return &failNoWorker
	}
}

// outlook says whether a request is to be served with prefill and decode apart, and
// has the row of why it cannot be served at all, or of what one worker is to serve in
// place of.
func (srv *Server) outlook(q *question) (disagg, fallback bool, f *failure) {
	policy := srv.policy()
	rules := policy.RulesOf(q.pool)
	o := activation.Judge(q.snap.Standing(q.pool.Key).State, q.pool, rules)
	q.undivided = rules.NeverSplit
	return o.Way == activation.Apart || o.Reason == activation.NoListener, o.Fallback, refusal(o)
}

// judgeInTime is judge in the world of now, and again in a newer world while nobody can be picked
// in the one that was judged. It returns the last question.
func (srv *Server) judgeInTime(v *verdict, q *question, p tokens.Prompt, sc *scratch, prefillBooking, decodeBooking *load.Reservation) *question {
	if srv.cfg.Board.Load() != q.snap { // it has changed while tokens were counted
		if n := srv.newer(q); n != nil {
			q = n
		}
	}
	for range maxWorlds {
		*v = verdict{}
		srv.judge(v, q, p, sc, prefillBooking, decodeBooking)
		if v.fail == nil {
			break
		}
		n := srv.newer(q)
		if n == nil {
			break
		}
		q = n
	}
	srv.fallBack(v, q, sc, decodeBooking)
	return q
}

// maxWorlds bounds how often one request is judged.
const maxWorlds = 10

// worldLag bounds the wait for the board to follow the view, which it does in
// well under a millisecond.
const worldLag = 100 * time.Millisecond

// newer returns the question in a later world than q's, or nil where there is
// none or it cannot be asked there. All workers of a request may have been
// replaced while its tokens were counted, or be replaced right now: then the
// load book does not know the old ones any more, and a request must not be
// refused though the new ones could serve it.
func (srv *Server) newer(q *question) *question {
	if q.snap.Revision() < srv.view.Load().Revision() {
		select {
		case <-q.snap.Replaced():
		case <-time.After(worldLag):
		}
	}
	if srv.cfg.Board.Load() == q.snap {
		return nil
	}
	if q.passing != "" {
		n, f := srv.passingQuestion(q.wish, q.passing, q.query.Request, q.query.Body)
		if f == nil {
			n.before, n.admitted = q.before, q.admitted
		}
		return n
	}
	n, f := srv.questionOf(q.query.Request, q.query.Body, q.wish, q.instead)
	if f != nil || n.query.BlockSize != q.query.BlockSize || n.query.Eagle != q.query.Eagle {
		return nil
	}
	n.before, n.admitted = q.before, q.admitted
	return n
}
