package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Request is what a decision is made of: what was asked, who may say what of workers,
// and what came of earlier attempts. Scan, Body and the slices must stay as they are until
// it is decided; nothing is kept of them.
type Request struct {
	Now time.Time

	// Scan is what was read of Body; nil: headers are all there is.
	Scan *openai.Request
	Body []byte
	// Passing is the path of a request that is passed on; empty: its path is read.
	Passing string

	// Trust says how far what names workers is believed. Named are the headers that do;
	// of the body it is read here, and refused with HeadersOnly.
	Trust       pin.Trust
	HeadersOnly bool
	Named       []pin.Header

	// What a data plane says besides.
	Subset    *subset.Set // who may be picked; nil: all
	Endpoints int         // how many decode workers are named at most; below 2: one
	OneLeg    bool        // nothing carries a mirrored prefill leg

	// Of earlier attempts of the request.
	Failed []worker.Rank // who may be at fault
	Keep   worker.Rank   // to be tried with another partner; of worker 0: none
	// Admitted: one was let in. Back-pressure is for new requests: a failure of ours must
	// not end in "come back later".
	Admitted bool
	// InPlaceOf is the failure that one worker is to serve in place of, whatever else
	// could be picked; empty: none.
	InPlaceOf string

	// Preview books nothing, notes nothing and takes nobody's turn.
	Preview bool
}

// wish is what a request says of workers, as far as it is believed.
type wish struct {
	pins  pin.Pins
	query bool // it asks who would serve it, and is not to be served
}

// names reports whether the request names a worker, for either leg.
func (w *wish) names() bool { return w.pins.Prefill.Named() || w.pins.Decode.Named() }

// wish reads what the request says of workers. Members of the body that name workers are
// refused where they are not believed: passed on, they could be believed by
// what stands behind a worker's address. Headers are overwritten or removed.
func (r *Request) wish() (w wish, f *Refusal) {
	var fields pin.Fields
	var err *pin.Error
	if r.Scan != nil && r.Scan.Given(r.Body, openai.NVExt) {
		fields, err = pin.ReadFields(r.Scan.Value(openai.NVExt).Of(r.Body))
		switch {
		case fields.First != "" && (r.Trust == pin.Normal || r.HeadersOnly):
			return w, badMember(openai.Error{Kind: openai.ForbiddenField, Field: fields.First})
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

// Answer is what a request says of the answer that it wants. The zero value is one
// of which nothing is known.
type Answer struct {
	Key       worker.Key
	MaxTokens int64
	Parallel  int // generations
}

func (q *Question) answer() Answer {
	a := Answer{Key: q.pool.Key, MaxTokens: outlen.NotSaid, Parallel: 1}
	if r := q.req.Scan; r != nil && q.req.Passing == "" {
		a.MaxTokens, a.Parallel = r.MaxTokens, max(r.Parallel(), 1)
	}
	return a
}
