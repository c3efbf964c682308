package route

import (
	"cmp"
	"iter"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/engine/capability"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Question is one request to be decided, with all that is known before its tokens are
// counted. It belongs to the world in which it was asked.
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
	missing     string             // a required taint that no worker carries; constraints has noTaint in its place
	undivided   bool               // its model is never split
	fellBack    string             // the failure in whose place one worker is to serve
	cut         bool               // its legs may keep different parts of its prompt (CutPrompt)

	places     pin.Places      // the workers that the request names
	able       []worker.Engine // of which prefill may be picked; nil: all
	decodeOnly bool            // the request asks which workers would serve it, while prefill is becoming ready
	atPrefill  bool            // a prefill worker serves the whole request
	alone      SplitReason     // why one worker is to serve although a pair could be had
}

// Query returns what counting the request's tokens needs.
func (q *Question) Query() tokens.Query { return q.query }

// Reads has the request's tokens counted as those of t, which is what its engine makes of Query.
func (q *Question) Reads(t tokens.Query) { q.query = t }

// Asks reports whether the request only asks which workers would serve it.
func (q *Question) Asks() bool { return q.wish.query }

// preview reports whether nothing is to be booked.
func (q *Question) preview() bool { return q.wish.query || q.req.Preview }

// Prompt returns the prompt of a request whose tokens are not counted. ok is false if
// they have to be counted.
func (q *Question) Prompt() (p tokens.Prompt, ok bool) {
	switch {
	case q.req.Passing != "":
		return q.passedPrompt(), true
	case q.pool.Key.Model == worker.NoModel: // no engine is known that could count them
		return q.guessedPrompt(), true
	default:
		return tokens.Prompt{}, false
	}
}

// Ask finds the pool of a request and the picks that are to be made there.
func (rt *Router) Ask(r Request) (*Question, *Refusal) {
	w, f := r.wish()
	if f != nil {
		return nil, f
	}
	return rt.askIn(rt.cfg.Board.Load(), r.Now, &r, w)
}

// askIn is Ask in the given world; now is a time in that world.
func (rt *Router) askIn(world *activation.World, now time.Time, r *Request, w wish) (*Question, *Refusal) {
	q := &Question{req: *r, wish: w, now: now, world: world}
	if !world.Ready() {
		return nil, &Refusal{Reason: NotReady, Returning: true}
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

// askRead is Ask for a request on a path that Baton reads.
func (rt *Router) askRead(q *Question) *Refusal {
	r := &q.req
	home, f := rt.models.homeOf(q)
	if f != nil {
		return f
	}
	q.pool = home.pool
	if r.Target == 0 {
		r.Target = rt.cfg.Targets[q.pool.Key.Model]
	}
	if row := endsBy(q); row != nil {
		return badMember(openai.Error{Kind: openai.WrongType, Field: row.Member, Detail: "a value that is not " + row.Stops + ": its engine ends by one"})
	}
	f = rt.divide(q)
	if f == nil {
		f = rt.splittable(q)
	}
	if f == nil {
		f = rt.place(q)
	}
	if f == nil && r.Scan.Path == openai.Responses && r.Scan.Given(r.Body, openai.PreviousResponseID) {
		id := r.Scan.Value(openai.PreviousResponseID)
		f = q.placeKeeper(strings.Trim(string(id.Of(r.Body)), `"`))
	}
	if f != nil {
		return f
	}
	lead := q.lead()[0]
	q.query = tokens.Query{
		Key: q.pool.Key, Request: r.Scan, Body: r.Body, BlockSize: blockSizeOf(lead), Eagle: lead.Eagle,
		Renders: engines.Of(lead.Engine).TellsPictures, Engine: lead.Engine, MaxModelLen: int(q.pool.MaxModelLen), Salt: home.saltOf(lead, r),
	}
	f = rt.readOverride(q)
	if f != nil {
		return f
	}
	return rt.readConstraints(q)
}

// endsBy returns the row of the member by which an engine of the pool would end, or nil. Workers of one role are of one engine, but while a pool changes over.
func endsBy(q *Question) *capability.Row {
	for k := range kinds(q.pool) {
		if row := k.Takes.Ends(q.req.Body, q.req.Scan); row != nil {
			return row
		}
	}
	return nil
}

// kinds yields the hand-off of each role's engine in a pool.
func kinds(p *worker.Pool) iter.Seq[handoff.Kind] {
	return func(yield func(handoff.Kind) bool) {
		for _, ws := range [...][]*worker.Worker{p.Prefill, p.Decode, p.Aggregated} {
			if len(ws) == 0 {
				continue
			}
			if k := engines.HandOff(ws[0].Engine); k != nil && !yield(k) {
				return
			}
		}
	}
}

// unknownBlockSize is how many tokens a KV block of a worker counts as having if that is not
// known. Nothing is known of such a worker's blocks, so any size will do.
const unknownBlockSize = 16

func blockSizeOf(w *worker.Worker) int { return int(cmp.Or(w.BlockSize, unknownBlockSize)) }

// Shape returns the model of the request and the members of its body that its engine's list does not
// have ([capability.Table.Unlisted]), or no members: then it has no shape.
func (q *Question) Shape() (model string, unlisted []string) {
	if q.req.Passing != "" {
		return "", nil
	}
	for k := range kinds(q.pool) {
		unlisted = k.Takes.Unlisted(q.req.Body, q.req.Scan)
		if len(unlisted) > 0 {
			break
		}
	}
	return q.pool.Key.Model, unlisted
}

// divide decides whether one worker serves the request or two.
func (rt *Router) divide(q *Question) *Refusal {
	apart, fallback, why := rt.outlook(q)
	q.apart = apart
	if why != "" && !q.stillAsks(why) {
		wrong := rt.misnamed(q, why)
		switch {
		case wrong != nil:
			return wrong
		case why == NoAggregated && q.undivided:
			return q.noneAlone(true)
		case q.wish.names() || !fallback:
			return q.refuse(why)
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
