package extproc

import (
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
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

// Unservable says why requests for the key would be refused, or "" if they
// would not: what a request is judged by, for probes and pages. Row B9 and
// what follows from who is there.
func (srv *Server) Unservable(world *activation.World, k worker.Key) string {
	pool := world.Pool(k)
	if pool == nil {
		return "it has no worker"
	}
	if k.Namespace != srv.cfg.Namespace {
		return "it is of another namespace than this plugin serves"
	}
	disagg, f := outlook(world.Standing(k).State, srv.cfg.EnforceDisagg, pool)
	if disagg && f == nil && srv.legClient == nil &&
		!slices.ContainsFunc(pool.PrefillEngines, func(e worker.Engine) bool { return !handoff.KindOf(e).PrefillFirst() }) {
		return "its engine needs a prefill listener (prefill.listener), and there is none"
	}
	if f != nil && srv.mayFallBack(f, pool) {
		return ""
	}
	switch f {
	case nil:
		return ""
	case &failPending:
		return "its prefill workers are known, but not all that is needed of one"
	case &failNoPrefill:
		return "its prefill workers take no new requests"
	case &failNoDecode:
		return "no decode worker"
	case &failEnforced:
		return "no prefill worker, and disaggregation is enforced"
	default:
		return "no prefill worker, and no worker that can do without"
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
