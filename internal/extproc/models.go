package extproc

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Outlook says whether and how requests for the key are served, and why not: what a
// request is judged by, for probes and pages.
func (srv *Server) Outlook(world *activation.World, k worker.Key) activation.Outlook {
	policy := srv.policy()
	return policy.Outlook(world, k)
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

// What an error or a page shows of names that others chose.
const (
	mostKnown    = 20
	mostNameText = 100
)

// unknownModel is the row for a model that nobody serves. It names the model and the
// known ones, as far as they fit.
func (srv *Server) unknownModel(model string) *leg.Failure {
	f := leg.FailUnknownModel
	f.Message = "The model " + shown(model) + " does not exist here."
	var names []string
	n := 0
	for k := range route.Keys(srv.cfg.Board.Load(), srv.cfg.Namespace) {
		if n++; n <= mostKnown {
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

// shown quotes a name, bounded.
func shown(name string) string {
	if r := []rune(name[:min(len(name), 4*mostNameText)]); len(r) > mostNameText {
		return strconv.Quote(string(r[:mostNameText]) + "…")
	}
	return strconv.Quote(name)
}

// modelJSON is a model as clients' libraries know it.
type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// MaxModelLen is the least that a worker of it takes, as vLLM and SGLang call it.
	MaxModelLen uint32 `json:"max_model_len,omitempty"`
	// Status says why requests are refused at present; libraries pass it over.
	Status string `json:"status,omitempty"`
}

// models answers GET /v1/models with the models that can be served
// (docs/behaviour.md#can-serve), or of one of them. The plugin answers since no worker
// knows of the others, and one without its other half can serve nothing of what it
// would list. A model whose workers are away for a moment stays on the list while it is
// not enforced: clients take one that is missing for one that does not exist; it says
// why it cannot be served. retry: a replica without a view asks for a fresh attempt.
func (srv *Server) models(only string, retry bool) *wire.Immediate {
	list := struct {
		Object string      `json:"object"`
		Data   []modelJSON `json:"data"`
	}{Object: "list", Data: []modelJSON{}}
	world := srv.cfg.Board.Load()
	if !world.Ready() {
		return leg.ImmediateOf(&leg.FailNotReady, retry)
	}
	for k := range route.Keys(world, srv.cfg.Namespace) {
		policy, pool := srv.policy(), world.Pool(k)
		rules := policy.RulesOf(pool)
		if only != "" && k.Model != only || !world.Standing(k).CanServe(rules.Enforced && !rules.NeverSplit) {
			continue
		}
		o := policy.Outlook(world, k)
		m := modelJSON{ID: k.Model, Object: "model", Created: world.Since(k).Unix(), OwnedBy: "baton", MaxModelLen: lengthOf(pool)}
		if why := o.Why(pool); why != "" {
			m.Status = "cannot be served: " + why
		}
		list.Data = append(list.Data, m)
	}
	var what any = list
	switch {
	case only == "":
	case len(list.Data) == 0:
		return leg.ImmediateOf(srv.unknownModel(only), false)
	default:
		what = list.Data[0]
	}
	body, err := json.Marshal(what)
	if err != nil {
		return leg.ImmediateOf(&leg.FailInternal, false)
	}
	return &wire.Immediate{Status: 200, Headers: []wire.Header{{Name: "content-type", Value: "application/json"}}, Body: body, Detail: "baton_models"}
}

// lengthOf is how many tokens a prompt and its answer may have at each worker that tells
// it; 0 where none does.
func lengthOf(p *worker.Pool) (least uint32) {
	for _, ws := range [][]*worker.Worker{p.Prefill, p.Decode, p.Aggregated} {
		for _, w := range ws {
			if n := w.MaxModelLen; n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
	}
	return least
}
