package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestFleetsOfEveryEngine(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, Build(bin, "", false, "./test/cmd/enginesim"))
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			ctx := bounded(t)
			f, err := StartFleet(ctx, bin, FleetOptions{
				Engine: engine, Prefills: 1, Decodes: 2, Args: []string{"--page-size=8"}, DecodeArgs: []string{"--model=other"},
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, f.Kill()) })
			infos := f.Infos()
			require.Len(t, infos, 3)
			for i, role := range []worker.Role{worker.Prefill, worker.Decode, worker.Decode} {
				require.Equal(t, engine, infos[i].Engine)
				require.Equal(t, role, infos[i].Role)
				require.Equal(t, uint32(8), infos[i].BlockSize)
			}
			require.Equal(t, []string{"other"}, infos[2].Models)
			require.NoError(t, Settled(ctx, f.All()...))
		})
	}
	t.Run("one that does not start takes the others with it", func(t *testing.T) {
		_, err := StartFleet(bounded(t), bin, FleetOptions{Prefills: 1, Decodes: 1, DecodeArgs: []string{"--page-size=-1"}})
		require.ErrorContains(t, err, "page-size")
	})
}

func TestAFleetThatHoldsKVIsNotSettled(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, Build(bin, "", false, "./test/cmd/enginesim"))
	ctx := bounded(t)
	f, err := StartFleet(ctx, bin, FleetOptions{Engine: worker.VLLM, Prefills: 1, Decodes: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Kill()) })
	ask := func(w *Worker, body string) (int, []byte) {
		resp, err := http.Post("http://"+w.Info.Endpoint.String()+"/v1/completions", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close() //nolint:errcheck // read to its end
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, b
	}
	const body = `{"prompt":"a","max_tokens":1,"kv_transfer_params":%s}`
	status, b := ask(f.Prefills[0], fmt.Sprintf(body, `{"do_remote_decode":true}`))
	require.Equal(t, 200, status)
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, Settled(soon, f.All()...), "1 hand-offs wait to be taken")

	var answer struct {
		Handoff json.RawMessage `json:"kv_transfer_params"`
	}
	require.NoError(t, json.Unmarshal(b, &answer))
	status, _ = ask(f.Decodes[0], fmt.Sprintf(body, answer.Handoff))
	require.Equal(t, 200, status)
	require.NoError(t, Settled(ctx, f.All()...))
	status, _ = ask(f.Decodes[0], fmt.Sprintf(body, answer.Handoff))
	require.Equal(t, 200, status, "as the engine does")
	require.ErrorContains(t, Settled(ctx, f.All()...), "taken_twice")
}
