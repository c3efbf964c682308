package extproc

import (
	"encoding/json"
	"iter"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// keys ranges over what this plugin serves.
func (srv *Server) keys(snap *activation.World) iter.Seq[worker.Key] {
	return func(yield func(worker.Key) bool) {
		for _, k := range snap.Keys() {
			if k.Namespace == srv.cfg.Namespace && !yield(k) {
				return
			}
		}
	}
}

// Outlook says whether and how requests for the key are served, and why not: what a
// request is judged by, for probes and pages.
func (srv *Server) Outlook(world *activation.World, k worker.Key) activation.Outlook {
	policy := srv.policy()
	return policy.Judge(world, k)
}

// policy is what models are judged by.
func (srv *Server) policy() activation.Policy {
	c := &srv.cfg
	return activation.Policy{
		Namespace: c.Namespace, NeverSplit: c.NeverSplit,
		Rules: activation.Rules{Enforced: c.EnforceDisagg, Fallback: c.FallbackAggregated, Listener: srv.legClient != nil},
	}
}

// Backlog returns how many prompt tokens are queued at the prefill workers of
// the key, as Config.MaxQueuedISLTokens counts them, and that limit; 0 is none.
func (srv *Server) Backlog(world *activation.World, k worker.Key) (queued, limit int64) {
	if p := world.Pool(k); p != nil {
		queued = srv.cfg.Book.QueuedISLTokens(p.PrefillRanks, srv.cfg.Health, time.Now())
	}
	return queued, srv.cfg.MaxQueuedISLTokens
}

func (srv *Server) onlyModel(snap *activation.World) worker.Key {
	only := worker.Key{}
	for _, k := range snap.DepartedKeys(time.Now()) { // away, but not unknown
		if k.Namespace == srv.cfg.Namespace {
			if only.Model != "" {
				return worker.Key{}
			}
			only = k
		}
	}
	for k := range srv.keys(snap) {
		if adapterAlone(snap.Pool(k)) {
			continue // its base model is here, too
		}
		if only.Model != "" {
			return worker.Key{}
		}
		only = k
	}
	return only
}

// known lists the models for somebody who asked for another one.
func (srv *Server) known(f *failure) string {
	if f != &failUnknownModel {
		return ""
	}
	var names []string
	for k := range srv.keys(srv.cfg.Board.Load()) {
		if len(names) == 20 {
			break
		}
		names = append(names, k.Model)
	}
	return " Known: " + strings.Join(names, ", ") + "."
}

// models answers GET /v1/models with the models that can be served (B9). The
// plugin answers since no worker knows of the others, and one without its other
// half can serve nothing of what it would list. A model whose workers are away
// for a moment stays on the list while it is not enforced: clients take one
// that is missing for one that does not exist. retry: a replica without a view asks
// for a fresh attempt.
func (srv *Server) models(retry bool) *immediate {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		OwnedBy string `json:"owned_by"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	world := srv.cfg.Board.Load()
	if !world.Ready() {
		return immediateOf(&failNotReady, retry)
	}
	for k := range srv.keys(world) {
		if !world.Standing(k).CanServe(srv.cfg.EnforceDisagg) {
			continue
		}
		list.Data = append(list.Data, model{ID: k.Model, Object: "model", OwnedBy: "baton"})
	}
	body, err := json.Marshal(list)
	if err != nil {
		return immediateOf(&failInternal, false)
	}
	return &immediate{status: 200, set: []kv{{"content-type", "application/json"}}, body: body, detail: "baton_models"}
}

func isModels(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return path == "/v1/models"
}
