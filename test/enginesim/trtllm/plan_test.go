package trtllm

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
	k := Kind()
	k.Make = func(s *core.Sim, cfg core.Config) *core.Engine {
		e := newEngine(s, cfg)
		table := e.table()
		table.Plan = func(c *core.Call, _ http.Header) ([]*core.Item, core.Job, error) {
			j := &job{e: e, c: c}
			err := j.readParams()
			got <- read{j.transfer, err}
			return nil, nil, core.BadRequest("read")
		}
		return table
	}
	s, err := core.New(core.Config{Engine: worker.TensorRTLLM, Role: worker.Decode}, k)
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
	f.Add([]byte(`{"prompt":[1],"disaggregated_params":{"request_type":"generation_only","disagg_request_id":4398046511104,"ctx_request_id":1,"first_gen_tokens":[1],"encoded_opaque_state":"e30="}}`))
	f.Add([]byte(`{"prompt":"a","disaggregated_params":3}`))
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
