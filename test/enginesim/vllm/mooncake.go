package vllm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

// This file is vLLM with MooncakeConnector, as of 0.32. Both halves run at once, and both
// name the transfer. Prefill answers when it has computed its KV, and holds the KV under
// that name. Decode has been told of an engine; it asks prefill's bootstrap server for
// that engine's address, and waits there for the transfer.

// Mooncake returns the engine with MooncakeConnector.
func Mooncake() core.Kind {
	return core.Kind{
		Defaults: func(c *core.Config) {
			defaults(c)
			if c.Prefills() {
				core.OrDefault(&c.BootstrapListen, "127.0.0.1:0")
			}
			core.OrDefault(&c.KVLease, 480*time.Second)
		},
		Check: func(c core.Config, bad func(format string, a ...any)) {
			lacks(c, bad, false)
			if c.KVLoadFailure == core.LoadRecompute || c.KVLoadFailure == core.LoadUnseen {
				bad("kv-load-failure: only vllm can recompute, or read what is not held any more")
			}
			if c.NullOnStop {
				bad("null-on-stop: only vllm hands over when a prefill has stopped by itself")
			}
		},
		Make: func(s *core.Sim, cfg core.Config) *core.Engine {
			return newEngine(s, cfg, true, sidechannel.Manner{PerRank: true, Twice: true, Awaits: true}).table()
		},
	}
}

// identity adds the engines' ids, which the bootstrap server tells.
func (v *engine) identity(id *core.Identity) {
	if id.Bootstrap == nil {
		return
	}
	for r := range v.cfg.DPSize {
		id.Bootstrap.EngineIDs = append(id.Bootstrap.EngineIDs, v.channel.EngineID(r))
	}
}

// bootstrapHandler is the bootstrap server.
func (v *engine) bootstrapHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, _ *http.Request) { core.WriteJSON(w, http.StatusOK, v.query()) })
	return mux
}

// mooncakeEngine is one rank in the bootstrap server's answer.
type mooncakeEngine struct {
	EngineID   string                       `json:"engine_id"`
	WorkerAddr map[string]map[string]string `json:"worker_addr"` // by tensor and pipeline rank
}

// query is the answer of the bootstrap server's /query.
func (v *engine) query() map[string]mooncakeEngine {
	out := map[string]mooncakeEngine{}
	sides := v.s.SideAddrs()
	for r := range v.cfg.DPSize {
		out[strconv.Itoa(r)] = mooncakeEngine{
			EngineID: v.channel.EngineID(r), WorkerAddr: map[string]map[string]string{"0": {"0": "tcp://" + sides[r]}},
		}
	}
	return out
}

// readMooncake reads the kv_transfer_params of a request.
func (v *engine) readMooncake(p *nixlParams, f sidechannel.HandoffFields) (err error) {
	id, err := f.Text("transfer_id")
	if err != nil {
		return err
	}
	if p.remoteDecode {
		p.transferID = id
		return nil
	}
	t := &sidechannel.Transfer{By: f.C.Name(), Fields: "{}", ID: id}
	var server string
	for name, to := range map[string]*string{"remote_engine_id": &t.Engine, "remote_bootstrap_addr": &server} {
		*to, err = f.Text(name)
		if err != nil {
			return err
		}
	}
	t.Find = func(ctx context.Context, client *http.Client) (string, error) {
		return locate(ctx, client, server, t.Engine)
	}
	p.transfer = t
	return nil
}

// locate asks a bootstrap server for the address of an engine.
func locate(ctx context.Context, client *http.Client, server, engine string) (string, error) {
	no := func(format string, a ...any) (string, error) {
		return "", fmt.Errorf("bootstrap server "+server+": "+format, a...)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/query", nil)
	if err != nil {
		return no("%w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return no("%w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	var engines map[string]mooncakeEngine
	if err := json.NewDecoder(resp.Body).Decode(&engines); err != nil {
		return no("%w", err)
	}
	for _, e := range engines {
		if e.EngineID == engine {
			return strings.TrimPrefix(e.WorkerAddr["0"]["0"], "tcp://"), nil
		}
	}
	return no("engine %q is not there", engine)
}
