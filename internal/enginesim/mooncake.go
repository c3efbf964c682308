package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// This file is vLLM with MooncakeConnector, as of 0.32. Both halves run at once, and both
// name the transfer. Prefill answers when it has computed its KV, and holds the KV under
// that name. Decode has been told of an engine; it asks prefill's bootstrap server for
// that engine's address, and waits there for the transfer.

// mooncakeKind returns the engine with MooncakeConnector.
func mooncakeKind() kind {
	return kind{
		defaults: func(c *Config) {
			vllmDefaults(c)
			if c.prefills() {
				orDefault(&c.BootstrapListen, "127.0.0.1:0")
			}
			orDefault(&c.KVLease, 480*time.Second)
		},
		check: func(c Config, bad func(format string, a ...any)) {
			vllmLacks(c, bad)
			if c.KVLoadFailure == LoadRecompute || c.KVLoadFailure == LoadUnseen || c.NullOnStop {
				bad("kv-load-failure, null-on-stop: vllm-mooncake has none of them")
			}
		},
		make: func(s *Sim, cfg Config) *engine {
			return newVLLM(s, cfg, true, manner{perRank: true, twice: true, awaits: true}).table()
		},
	}
}

// identity adds the engines' ids, which the bootstrap server tells.
func (v *vllm) identity(id *Identity) {
	if id.Bootstrap == nil {
		return
	}
	for r := range v.cfg.DPSize {
		id.Bootstrap.EngineIDs = append(id.Bootstrap.EngineIDs, v.channel.engineID(r))
	}
}

// bootstrapHandler is the bootstrap server.
func (v *vllm) bootstrapHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, v.query()) })
	return mux
}

// mooncakeEngine is one rank in the bootstrap server's answer.
type mooncakeEngine struct {
	EngineID   string                       `json:"engine_id"`
	WorkerAddr map[string]map[string]string `json:"worker_addr"` // by tensor and pipeline rank
}

// query is the answer of the bootstrap server's /query.
func (v *vllm) query() map[string]mooncakeEngine {
	out := map[string]mooncakeEngine{}
	sides := v.s.SideAddrs()
	for r := range v.cfg.DPSize {
		out[strconv.Itoa(r)] = mooncakeEngine{
			EngineID: v.channel.engineID(r), WorkerAddr: map[string]map[string]string{"0": {"0": "tcp://" + sides[r]}},
		}
	}
	return out
}

// readMooncake reads the kv_transfer_params of a request.
func (v *vllm) readMooncake(p *nixlParams, f handoffFields) (err error) {
	id, err := f.text("transfer_id")
	if err != nil {
		return err
	}
	if p.remoteDecode {
		p.transferID = id
		return nil
	}
	t := &transfer{by: f.c.name(), fields: "{}", id: id}
	var server string
	for name, to := range map[string]*string{"remote_engine_id": &t.engine, "remote_bootstrap_addr": &server} {
		if *to, err = f.text(name); err != nil {
			return err
		}
	}
	t.find = func(ctx context.Context, client *http.Client) (string, error) {
		return locate(ctx, client, server, t.engine)
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
