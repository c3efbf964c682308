package extproc

import (
	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// question is one request to be decided: what is known of it before its tokens
// are.
type question struct {
	snap     *activation.World
	pool     *worker.Pool
	disagg   bool
	query    tokens.Query
	before   avoided // what is known of earlier attempts
	override picker.Override

	constraints picker.Constraints // of the request itself
	missing     string             // a required taint that no worker carries; noTaint is in its place
	undivided   bool               // its model is never split
	fellBack    string             // the failure that one worker is to serve in place of
	instead     *failure           // the same where it has happened to this request; answered if nobody can
	// admitted: an earlier attempt of the request was let in. Back-pressure is
	// for new requests: a failure of ours must not end in "come back later".
	admitted bool

	wish       wish            // what the request says of workers
	places     pin.Places      // the workers that it names
	able       []worker.Engine // who alone may prefill it; nil: all
	decodeOnly bool            // a question while prefill is becoming ready
	passing    string          // the path of a request that is passed on; empty: none
	alone      splitReason     // why one worker is to serve, where the pair could be had
}

// question is questionOf for a request that says nothing of workers.
func (srv *Server) question(r *openai.Request, body []byte) (*question, *failure) {
	return srv.questionOf(r, body, wish{}, nil)
}

// questionOf finds the pool of a request and what has to be picked in it. instead
// is decide's.
func (srv *Server) questionOf(r *openai.Request, body []byte, w wish, instead *failure) (*question, *failure) {
	q := &question{snap: srv.cfg.Board.Load(), wish: w}
	if !q.snap.Ready() {
		return nil, &failNotReady
	}
	key := worker.Key{Model: string(r.Model), Namespace: srv.cfg.Namespace}
	if key.Model == "" { // /generate names no model: right where there is one
		if key = srv.onlyModel(q.snap); key.Model == "" {
			return nil, badBody(&openai.Error{Kind: openai.MissingField, Field: "model"})
		}
	}
	home, f := homeOf(q.snap, key, r, body)
	switch {
	case f == &failUnknownModel:
		return nil, srv.unknownModel(key.Model)
	case f != nil:
		return nil, f
	}
	q.pool, key = home.pool, home.pool.Key
	var fallback bool
	if q.disagg, fallback, f = srv.outlook(q); f != nil && !q.stillAsks(f) {
		if wrong := srv.misnamed(q, f); wrong != nil {
			return nil, wrong
		}
		if q.wish.names() || !fallback {
			return nil, f
		}
		q.fellBack = f.code
	}
	if f = q.unused(); f != nil {
		return nil, f
	}
	if f = srv.carried(q); f != nil {
		return nil, f
	}
	if instead != nil {
		if len(q.pool.AggregatedRanks) == 0 {
			return nil, instead
		}
		q.disagg, q.instead, q.fellBack = false, instead, instead.code
	}
	if f = srv.splittable(q, r, body); f != nil {
		return nil, f
	}
	if f = srv.place(q); f != nil {
		return nil, f
	}
	lead := q.lead()
	q.query = tokens.Query{Key: key, Request: r, Body: body, BlockSize: int(lead[0].BlockSize), Eagle: lead[0].Eagle, Renders: lead[0].Engine.TellsPictures(), Salt: home.saltOf(lead[0], r, body)}
	if f = srv.readOverride(q, r, body); f != nil {
		return nil, f
	}
	if f = srv.readConstraints(q, r, body); f != nil {
		return nil, f
	}
	return q, nil
}
