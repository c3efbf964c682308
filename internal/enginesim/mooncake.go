package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// This file is vLLM with MooncakeConnector, as of 0.32. Both halves run at once, and both
// name the transfer. Prefill answers when it has computed its KV, and holds the KV under
// that name. Decode has been told of an engine; it asks prefill's bootstrap server for
// that engine's address, and waits there for the transfer.

// mooncakeEngine is one rank in the bootstrap server's answer.
type mooncakeEngine struct {
	EngineID   string                       `json:"engine_id"`
	WorkerAddr map[string]map[string]string `json:"worker_addr"` // by tensor and pipeline rank
}

// mooncakeQuery is the answer of the bootstrap server's /query.
func (s *Sim) mooncakeQuery() map[string]mooncakeEngine {
	out := map[string]mooncakeEngine{}
	for r := range s.ranks {
		out[strconv.Itoa(r)] = mooncakeEngine{
			EngineID: s.engineID(r), WorkerAddr: map[string]map[string]string{"0": {"0": "tcp://" + s.sideAddrs[r]}},
		}
	}
	return out
}

// readMooncake reads the kv_transfer_params of a request.
func (v vllm) readMooncake(p *nixlParams, f handoffFields) (err error) {
	id, err := f.text("transfer_id")
	if err != nil {
		return err
	}
	if p.remoteDecode {
		p.transferID = id
		return nil
	}
	t := &transfer{by: f.c.name(), fields: "{}", id: id}
	for name, to := range map[string]*string{"remote_engine_id": &t.engine, "remote_bootstrap_addr": &t.bootstrap} {
		if *to, err = f.text(name); err != nil {
			return err
		}
	}
	p.transfer = t
	return nil
}

// locate asks the bootstrap server that the transfer names for the address of the
// transfer's engine.
func (s *Sim) locate(ctx context.Context, t *transfer) error {
	if t.bootstrap == "" || t.addr != "" {
		return nil
	}
	no := func(format string, a ...any) error {
		return &pullError{refusal{Kind: "unreachable", Msg: "bootstrap server " + t.bootstrap + ": " + fmt.Sprintf(format, a...)}}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PullTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.bootstrap+"/query", nil)
	if err != nil {
		return no("%v", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return no("%v", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	var engines map[string]mooncakeEngine
	if err := json.NewDecoder(resp.Body).Decode(&engines); err != nil {
		return no("%v", err)
	}
	for _, e := range engines {
		if e.EngineID == t.engine {
			t.addr = strings.TrimPrefix(e.WorkerAddr["0"]["0"], "tcp://")
			return nil
		}
	}
	return no("engine %q is not there", t.engine)
}
