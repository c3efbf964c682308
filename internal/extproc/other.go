package extproc

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is for requests on paths that are not read here: one worker serves them.

// passingQuestion finds who may serve a request on such a path: one worker of the model
// that its body names. r is nil where headers are all there is: then one of any model.
func (srv *Server) passingQuestion(w wish, path string, r *openai.Request, body []byte) (*question, *failure) {
	q := &question{snap: srv.cfg.Board.Load(), wish: w, passing: path}
	if !q.snap.Ready() {
		return nil, &failNotReady
	}
	q.query.Request, q.query.Body = r, body
	anyPart := r == nil || tokenizes(path)
	f := srv.passingPool(q, r, body, anyPart)
	if f != nil {
		return nil, f
	}
	rules := srv.policy()
	if of := rules.RulesOf(q.pool); of.Enforced && !of.NeverSplit && !anyPart {
		return nil, &failEnforced
	}
	q.decodeOnly = anyPart && len(q.pool.AggregatedRanks) == 0
	lead := q.lead()
	if len(lead) == 0 {
		return nil, &failNoAggregated
	}
	q.query.Key, q.query.BlockSize = q.pool.Key, int(lead[0].BlockSize)
	if f = srv.place(q); f != nil {
		return nil, f
	}
	return q, nil
}

// passingPool finds the pool of the model that the body names, or of the worker that
// the request names, or of the only model; without a body one in which somebody may serve.
func (srv *Server) passingPool(q *question, r *openai.Request, body []byte, anyPart bool) *failure {
	named := q.wish.pins.Decode.Worker(q.snap.Snapshot)
	if r != nil && (len(r.Model) > 0 || named == nil) {
		key := worker.Key{Model: string(r.Model), Namespace: srv.cfg.Namespace}
		if key.Model == "" {
			if key = srv.onlyModel(q.snap); key.Model == "" {
				return badBody(&openai.Error{Kind: openai.MissingField, Field: "model"})
			}
		}
		home, f := homeOf(q.snap, key, r, body)
		if q.pool = home.pool; f == &failUnknownModel {
			f = srv.unknownModel(key.Model)
		}
		return f
	}
	for key := range srv.keys(q.snap) {
		pool := q.snap.Pool(key)
		if named != nil && !slices.Contains(named.Models, key.Model) {
			continue // the request has no model: that of who is named
		}
		ranks := pool.AggregatedRanks
		if anyPart && len(ranks) == 0 {
			ranks = pool.DecodeRanks
		}
		if _, some := within(q.snap.Snapshot, q.wish.subset, ranks); q.pool == nil || some && len(ranks) > 0 {
			q.pool = pool
		}
	}
	if q.pool == nil {
		return &failNoWorker
	}
	return nil
}

// tokenizes reports whether a path asks for tokens or their text alone, which a decode
// worker answers as well: it needs no KV for it.
func tokenizes(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	switch strings.TrimPrefix(path, "/v1") {
	case "/tokenize", "/detokenize":
		return true
	}
	return false
}

// What a request that is passed on is booked with: its tokens are guessed by its size,
// up to a bound, since pictures and sounds are long as text.
const (
	passedBytesPerToken = 4
	passedTokensMost    = 16 << 10
)

func (q *question) passedPrompt() tokens.Prompt {
	if q.query.Request == nil || q.query.Request.End() == 0 { // headers alone, or a form
		return tokens.Prompt{}
	}
	return tokens.Prompt{ISLTokens: min(len(q.query.Body)/passedBytesPerToken, passedTokensMost), Estimated: true}
}
