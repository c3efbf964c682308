package extproc

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Outlook says whether and how requests for the key can be served in the world, and why not.
// It is for probes and pages, and judges by the same policy as decisions do, without the
// workers that are set aside at present.
func (srv *Server) Outlook(world *activation.World, k worker.Key) activation.Outlook {
	policy := srv.policy()
	return policy.Now(world, k, func(w *worker.Worker) bool { return srv.cfg.Health.AllowsSome(w.ID) })
}

// policy returns the settings by which it is judged how a model can be served.
func (srv *Server) policy() activation.Policy {
	c := &srv.cfg
	return activation.Policy{
		Namespace: c.Namespace, NeverSplit: c.NeverSplit,
		Rules: activation.Rules{Enforced: c.EnforceDisagg, Fallback: c.FallbackAggregated, Listener: srv.legClient != nil, Sidecar: c.Sidecar},
	}
}

// Backlog returns how many prompt tokens are queued at the prefill workers of the key, as
// Config.MaxQueuedISLTokens counts them, and the limit; 0 means that there is no limit.
func (srv *Server) Backlog(world *activation.World, k worker.Key) (queued, limit int64) {
	if p := world.Pool(k); p != nil {
		queued = srv.cfg.Book.QueuedISLTokens(p.PrefillRanks, srv.cfg.Health, time.Now())
	}
	return queued, srv.cfg.MaxQueuedISLTokens
}

// An error names at most mostKnown models, and shows at most mostNameText characters of a
// name that a client or a worker chose.
const (
	mostKnown    = 20
	mostNameText = 100
)

// unknownModel returns the failure for a model that no worker serves. Its message names the
// model and known ones.
func (srv *Server) unknownModel(model string) *leg.Failure {
	f := leg.FailUnknownModel
	f.Message = "The model " + shown(model) + " does not exist here."
	var names []string
	n := 0
	for k := range route.Keys(srv.cfg.Board.Load(), srv.cfg.Namespace) {
		n++
		if n <= mostKnown {
			names = append(names, shown(k.Model))
		}
	}
	switch {
	case n == 0:
		f.Message += " No model has a worker."
	case n > mostKnown:
		f.Message += " Known: " + strings.Join(names, ", ") + " and " + strconv.Itoa(n-mostKnown) + " more."
	default:
		f.Message += " Known: " + strings.Join(names, ", ") + "."
	}
	return &f
}

// shown quotes a name, cut after mostNameText characters.
func shown(name string) string {
	if r := []rune(name[:min(len(name), 4*mostNameText)]); len(r) > mostNameText {
		return strconv.Quote(string(r[:mostNameText]) + "…")
	}
	return strconv.Quote(name)
}

// ownAnswer answers what needs no worker: a question about models, or GET /health. Each
// answer says whose it is: a plugin that gets it from the address of a worker knows by it
// that the address leads back (internal/health).
func ownAnswer(srv *Server, e *leg.Effect) *wire.Immediate {
	var im *wire.Immediate
	if e.Op == leg.OpModels {
		im = srv.models(e.Model, e.Retry)
	} else {
		im = healthAnswer(srv, e.Retry)
	}
	im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderAnsweredBy, Value: prefill.AnsweredByBaton})
	return im
}

// healthAnswer answers GET /health, as /readyz of the admin address. Its reason, which may name
// addresses, is not for clients.
func healthAnswer(srv *Server, retry bool) *wire.Immediate {
	ready := srv.cfg.Board.Load().Ready()
	if srv.cfg.Ready != nil {
		ready, _ = srv.cfg.Ready()
	}
	if !ready {
		return leg.ImmediateOf(&leg.FailNotReady, "", retry)
	}
	return &wire.Immediate{Status: 200, Detail: "baton_health"}
}

// modelJSON is a model in the form that clients' libraries read.
type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// MaxModelLen is the smallest limit of the model's workers. vLLM and SGLang use this
	// name.
	MaxModelLen uint32 `json:"max_model_len,omitempty"`
	// Status says why requests are refused at present. Libraries ignore this member.
	Status string `json:"status,omitempty"`
}

// models answers GET /v1/models with the models that can be served
// (docs/behaviour.md#can-serve), or, if only is not empty, with that model. The plugin
// answers, since a worker lists only its own models, and a prefill or decode worker could
// not serve them alone. Unless disaggregation is enforced, a model whose workers are away
// for a moment, or set aside, stays on the list, with the reason why it cannot be served: clients would
// conclude from a missing model that it does not exist. If retry is true, a replica without
// a view asks for a fresh attempt.
func (srv *Server) models(only string, retry bool) *wire.Immediate {
	list := struct {
		Object string      `json:"object"`
		Data   []modelJSON `json:"data"`
	}{Object: "list", Data: []modelJSON{}}
	world := srv.cfg.Board.Load()
	if !world.Ready() {
		return leg.ImmediateOf(&leg.FailNotReady, "", retry)
	}
	for k := range route.Keys(world, srv.cfg.Namespace) {
		policy, pool := srv.policy(), world.Pool(k)
		rules := policy.RulesOf(pool)
		if only != "" && k.Model != only || !world.Standing(k).CanServe(rules.Enforced && !rules.NeverSplit) {
			continue
		}
		o := srv.Outlook(world, k)
		m := modelJSON{ID: k.Model, Object: "model", Created: world.Since(k).Unix(), OwnedBy: "baton", MaxModelLen: pool.MaxModelLen}
		if why := o.Why(pool); why != "" {
			m.Status = "cannot be served: " + why
		}
		list.Data = append(list.Data, m)
	}
	var what any = list
	switch {
	case only == "":
	case len(list.Data) == 0:
		return leg.ImmediateOf(srv.unknownModel(only), "", false)
	default:
		what = list.Data[0]
	}
	body, err := json.Marshal(what)
	if err != nil {
		return leg.ImmediateOf(&leg.FailInternal, "", false)
	}
	return &wire.Immediate{Status: 200, Headers: []wire.Header{{Name: "content-type", Value: "application/json"}}, Body: body, Detail: "baton_models"}
}
