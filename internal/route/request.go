package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Request is what a decision is made from: what was asked, how far to trust the workers
// that it names, and what became of earlier attempts. Scan, Body and the slices must not
// change until the decision is made; no reference to them is kept after it.
type Request struct {
	Now time.Time

	// Scan is what was read of Body; nil: the request has only headers.
	Scan *openai.Request
	Body []byte
	// Target is within which time the request's first token is wanted; 0: there is none.
	Target time.Duration
	// Passing is the path if Baton passes the request on unread; empty: the request is
	// read.
	Passing string

	// Trust says how far names of workers are believed. Named are the headers that name
	// workers. Names in the body are read from Scan; HeadersOnly refuses them.
	Trust       pin.Trust
	HeadersOnly bool
	Named       []pin.Header

	// What a data plane says besides.
	Subset    *subset.Set // the endpoints that may be picked; nil: all
	Endpoints int         // how many decode workers to list at most; below 2: one
	OneLeg    bool        // the gateway cannot carry a mirrored prefill leg
	Sends     bool        // the data plane mirrors no leg: the plugin sends each prefill leg itself
	Sidecar   bool        // with OneLeg: decode's sidecar sends the prefill leg

	// What earlier attempts of the request have left.
	Failed []worker.Rank // ranks that may be at fault
	Keep   worker.Rank   // to be tried with another partner; ID 0: none
	// Admitted says that an earlier attempt was let in. Back-pressure is for new
	// requests: a failure of ours must not end in "come back later".
	Admitted bool
	// InPlaceOf is the failure in whose place one worker is to serve, even if a pair could
	// be picked; empty: none.
	InPlaceOf string

	// Preview books nothing, notes nothing and moves no cursor.
	Preview bool
}

// wish is what a request says of workers, as far as it is trusted.
type wish struct {
	pins  pin.Pins
	query bool // the request only asks which workers would serve it
}

// names reports whether the request names a worker, for either leg.
func (w *wish) names() bool { return w.pins.Prefill.Named() || w.pins.Decode.Named() }

// namesUntold reports whether the request names a worker whose models are not known.
func (w *wish) namesUntold(world *activation.World) bool {
	for _, t := range [...]*pin.Target{&w.pins.Decode, &w.pins.Prefill} {
		if named := t.Worker(world.Snapshot); named != nil && len(named.Models) == 0 {
			return true
		}
	}
	return false
}

// wish reads what the request says of workers. A body that names workers, or asks for them,
// without trust is refused: passed on, its names could be believed behind a worker's address. Headers need
// no refusal, since they are overwritten or removed.
func (r *Request) wish() (w wish, f *Refusal) {
	var fields pin.Fields
	var err *pin.Error
	if r.Scan != nil && r.Scan.Given(r.Body, openai.NVExt) {
		fields, err = pin.ReadFields(r.Scan.Value(openai.NVExt).Of(r.Body))
		believed := r.Trust != pin.Normal && !r.HeadersOnly
		switch {
		case fields.First != "" && !believed:
			return w, badMember(openai.Error{Kind: openai.ForbiddenField, Field: fields.First})
		case fields.Query && !believed: // the answer tells whether somebody has sent such a prompt before
			return w, badMember(openai.Error{Kind: openai.ForbiddenField, Field: "nvext.annotations", Detail: "ask who would serve the request (query_instance_id:) here"})
		case err != nil:
			return w, &Refusal{Reason: BadName, Pin: err}
		}
		w.query = fields.Query
	}
	if r.Trust == pin.Normal {
		return w, nil
	}
	w.pins, err = pin.Read(r.Named, fields)
	if err != nil {
		return w, &Refusal{Reason: BadName, Pin: err}
	}
	return w, nil
}

// Answer is what a request says of the answer that it wants. The zero value says nothing.
type Answer struct {
	Key       worker.Key
	MaxTokens int64
	Parallel  int // number of generations
	// Target is within which time the first token is wanted; 0: there is none. Late says that no worker was
	// believed to keep it.
	Target time.Duration
	Late   bool
}

func (q *Question) answer() Answer {
	a := Answer{Key: q.pool.Key, MaxTokens: outlen.NotSaid, Parallel: 1, Target: q.req.Target}
	if r := q.req.Scan; r != nil && q.req.Passing == "" {
		a.MaxTokens, a.Parallel = r.MaxTokens, max(r.Parallel(), 1)
	}
	return a
}
