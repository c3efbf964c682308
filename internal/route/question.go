package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Question is one request to be decided: what is known of it before its tokens are. It
// belongs to the world that it was asked in.
type Question struct {
	req   Request
	wish  wish
	now   time.Time
	world *activation.World
	pool  *worker.Pool
	apart bool // prefill and decode are to be two workers
	query tokens.Query

	override    picker.Override
	constraints picker.Constraints // of the request itself
	missing     string             // a required taint that no worker carries; noTaint is in its place
	undivided   bool               // its model is never split
	fellBack    string             // the failure that one worker is to serve in place of

	places     pin.Places      // the workers that it names
	able       []worker.Engine // who alone may prefill it; nil: all
	decodeOnly bool            // it asks who would serve it while prefill is becoming ready
	alone      SplitReason     // why one worker is to serve, where the pair could be had
}

// Query is what the request's tokens are counted by.
func (q *Question) Query() tokens.Query { return q.query }

// Asks reports whether the request asks who would serve it, and is not to be served.
func (q *Question) Asks() bool { return q.wish.query }

// preview reports whether nothing is to be booked.
func (q *Question) preview() bool { return q.wish.query || q.req.Preview }

// Prompt returns what the prompt is taken to be where nobody is to count its tokens.
func (q *Question) Prompt() (p tokens.Prompt, ok bool) {
	if q.req.Passing == "" {
		return tokens.Prompt{}, false
	}
	return q.passedPrompt(), true
}

// Ask finds who may serve a request: its pool, and what is to be picked there.
func (rt *Router) Ask(r Request) (*Question, *Refusal) {
	w, f := r.wish()
	if f != nil {
		return nil, f
	}
	return rt.askIn(rt.cfg.Board.Load(), r.Now, &r, w)
}

// askIn is Ask in a world, at a time in it.
func (rt *Router) askIn(world *activation.World, now time.Time, r *Request, w wish) (*Question, *Refusal) {
	q := &Question{req: *r, wish: w, now: now, world: world}
	if !world.Ready() {
		return nil, refuse(NotReady)
	}
	var f *Refusal
	if r.Passing != "" {
		f = rt.askPassing(q)
	} else {
		f = rt.askRead(q)
	}
	if f != nil {
		return nil, f
	}
	return q, nil
}

// askRead is Ask for a request on a path that is read.
func (rt *Router) askRead(q *Question) *Refusal {
	r := &q.req
	home, f := rt.homeOf(q)
	if f != nil {
		return f
	}
	q.pool = home.pool
	f = rt.divide(q)
	if f == nil {
		f = rt.splittable(q)
	}
	if f == nil {
		f = rt.place(q)
	}
	if f != nil {
		return f
	}
	lead := q.lead()[0]
	q.query = tokens.Query{
		Key: q.pool.Key, Request: r.Scan, Body: r.Body, BlockSize: int(lead.BlockSize), Eagle: lead.Eagle,
		Renders: lead.Engine.TellsPictures(), MaxModelLen: int(lead.MaxModelLen), Salt: home.saltOf(lead, r),
	}
	f = rt.readOverride(q)
	if f != nil {
		return f
	}
	return rt.readConstraints(q)
}

// divide says whether one worker is to serve the request or two.
func (rt *Router) divide(q *Question) *Refusal {
	apart, fallback, why := rt.outlook(q)
	q.apart = apart
	if why != "" && !q.stillAsks(why) {
		wrong := rt.misnamed(q, why)
		switch {
		case wrong != nil:
			return wrong
		case q.wish.names() || !fallback:
			return refuse(why)
		}
		q.fellBack = string(why)
	}
	f := q.unused()
	if f == nil {
		f = rt.carried(q)
	}
	if f != nil || q.req.InPlaceOf == "" {
		return f
	}
	if len(q.pool.AggregatedRanks) == 0 {
		return refuse(NoAggregated)
	}
	q.apart, q.fellBack = false, q.req.InPlaceOf
	return nil
}
