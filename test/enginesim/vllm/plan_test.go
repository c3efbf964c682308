package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

// read is what a request's hand-off was read as.
type read struct {
	transfer *sidechannel.Transfer
	err      error
}

// reader runs a decode worker that reads the hand-offs of its requests and refuses all.
func reader(t testing.TB) (*core.Sim, <-chan read) {
	got := make(chan read, 1)
	k := NIXL()
	k.Make = func(s *core.Sim, cfg core.Config) *core.Engine {
		v := newEngine(s, cfg, false, sidechannel.Manner{PerRank: true})
		table := v.table()
		table.Plan = func(c *core.Call, _ http.Header) ([]*core.Item, core.Job, error) {
			p, err := v.readParams(c)
			got <- read{p.transfer, err}
			return nil, nil, core.BadRequest("read")
		}
		return table
	}
	s, err := core.New(core.Config{Engine: worker.VLLM, Role: worker.Decode}, k)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s, got
}

func FuzzHandOffsNeverPanic(f *testing.F) {
	f.Add([]byte(`{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_block_ids":[[1]]}}`))
	f.Add([]byte(`{"prompt":"a","kv_transfer_params":[]}`))
	f.Add([]byte(`{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":{},"remote_port":-}}`))
	s, got := reader(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s.Reset()
		resp, err := http.Post(s.URL()+"/v1/completions", "application/json", bytes.NewReader(b))
		require.NoError(t, err, "no handler panics")
		require.NoError(t, resp.Body.Close())
		var r read
		select {
		case r = <-got:
		default:
			return // the core refused the request
		}
		if r.err != nil {
			require.NotEmpty(t, s.State(false).Violations, "who brings a bad hand-off has broken a rule")
		} else if r.transfer != nil {
			var fields map[string]json.RawMessage
			require.NoError(t, json.Unmarshal([]byte(r.transfer.Fields), &fields))
		}
	})
}
