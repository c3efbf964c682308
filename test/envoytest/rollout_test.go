//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// rolledStreams is how many streams run, at the least, while workers are replaced.
const rolledStreams = 1000

// TestARollingUpdateMixesNoPair is docs/behaviour.md#pair-facts: prefill and decode workers
// are replaced in turn by those of another group, each new one before its old one leaves.
// The simulated engines refuse KV of another group.
func TestARollingUpdateMixesNoPair(t *testing.T) {
	t.Parallel()
	l := layout{
		prefill: 2, decode: 2, prefillArgs: []string{"--kv-group", "a"}, decodeArgs: []string{"--kv-group", "a"},
	}
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			either(t, layoutOf(l, engine), func(t *testing.T, f *fleet) { f.rollOver(t, engine) })
		})
	}
}

func (f *fleet) rollOver(t *testing.T, engine worker.Engine) {
	var begun, ended atomic.Int64
	var over atomic.Bool // all workers are replaced
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := begun.Add(1); i <= rolledStreams || !over.Load(); i = begun.Add(1) {
				q := ask(fmt.Sprintf("stream %d while workers are replaced", i), 8)[2+i%2]
				r := f.send(t.Context(), q.path, q.body)
				if r.err != nil || r.status != http.StatusOK || strings.TrimSpace(r.text()) != q.answer {
					t.Errorf("stream %d: %v %d %s", i, r.err, r.status, r.body)
				}
				ended.Add(1)
			}
		})
	}
	defer wg.Wait()
	defer over.Store(true)
	// Each step comes after a ninth of the streams, so that streams run throughout.
	step, mixed := int64(0), false
	pass := func() {
		step++
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, stack.Await(ctx, "streams to end", func() bool { return ended.Load() >= step*rolledStreams/9 }))
		mixed = mixed || strings.Contains(f.adminGet("/debug/state"), "differ in kv_group")
	}
	replace := func(role worker.Role, old *stack.Worker) *stack.Worker {
		pass()
		anew := f.join(t, role, engine, old.Info.ID+1000, "b")
		pass()
		f.leave(t, old)
		return anew
	}
	for i := range f.prefill {
		f.prefill[i] = replace(worker.Prefill, f.prefill[i])
		f.decode[i] = replace(worker.Decode, f.decode[i])
	}
	over.Store(true)
	wg.Wait()
	require.True(t, mixed, "the page says that the pool is mixed")
	require.NotContains(t, f.adminGet("/debug/state"), "differ in kv_group")
	for _, w := range append(f.prefill, f.decode...) {
		require.Positive(t, f.received(w), "%s serves", w.Name)
	}
	f.await("all to be counted", func() bool { return f.outcomes("ok") == float64(ended.Load()) })
}

// join starts a worker of a group beside the others, and waits until requests may go to it.
func (f *fleet) join(t *testing.T, role worker.Role, engine worker.Engine, id worker.ID, group string) *stack.Worker {
	t.Helper()
	w, err := stack.StartWorker(f.ctx, binDir, "--role", role.String(), "--id", strconv.FormatUint(uint64(id), 10), "--model", "m", "--engine", string(engine), "--kv-group", group)
	require.NoError(t, err)
	require.Equal(t, group, w.Info.Pair[worker.KVGroup])
	f.workers = append(f.workers, w)
	f.publishAndWait(f.workers...)
	return w
}

// leave has a worker drain, and then ends it. None of its pairs was mixed.
func (f *fleet) leave(t *testing.T, w *stack.Worker) {
	t.Helper()
	w.Info.Draining = true
	f.publishAndWait(f.workers...)
	id := fmt.Sprintf("worker_id=\"%d\"", w.Info.ID)
	f.await("its requests to end", func() bool {
		s, ok := f.state(w)
		return ok && s.Running == 0 && s.KVHeldBlocks == 0 && f.metric("baton_worker_prefill_requests", id)+f.metric("baton_worker_decode_requests", id) == 0
	})
	s, ok := f.state(w)
	require.True(t, ok)
	require.Empty(t, s.Violations, w.Name)
	var stay []*stack.Worker
	for _, o := range f.workers {
		if o != w {
			stay = append(stay, o)
		}
	}
	f.workers = stay
	f.publishAndWait(stay...)
	require.NoError(t, w.Kill())
	<-w.Done()
}

// TestBetweenTwoGroupsRequestsWait: if all prefill workers are replaced before any decode
// worker is, no pair is left. Requests wait for one, and are then served.
func TestBetweenTwoGroupsRequestsWait(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 1, decode: 1, prefillArgs: []string{"--kv-group", "a"}, decodeArgs: []string{"--kv-group", "a"}}, func(t *testing.T, f *fleet) {
		q := ask("it waits for a pair", 4)[2]
		q.require(t, f.send(t.Context(), q.path, q.body))
		f.join(t, worker.Prefill, worker.SGLang, 1100, "b")
		f.leave(t, f.prefill[0])
		require.Contains(t, f.adminGet("/debug/state"), "no common hand-off")
		answer := make(chan *reply, 1)
		go func() { answer <- f.send(t.Context(), q.path, q.body) }()
		f.await("it to wait", func() bool { return f.metric("baton_requests_waiting") == 1 })
		f.join(t, worker.Decode, worker.SGLang, 1200, "b")
		q.require(t, <-answer)
		f.leave(t, f.decode[0])
		q.require(t, f.send(t.Context(), q.path, q.body))
	})
}

// TestTheSimulatedEnginesRefuseAMixedPair: the tests above would see one.
func TestTheSimulatedEnginesRefuseAMixedPair(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layout{
				prefill: 1, decode: 1, prefillArgs: []string{"--kv-group", "a"}, decodeArgs: []string{"--kv-group", "b"}, noCheck: true,
				describe: func(f *fleet) { f.decode[0].Info.Pair[worker.KVGroup] = "a" }, // a wrong record
			}
			f := newFleet(t, layoutOf(l, engine))
			r := f.send(t.Context(), "/v1/completions", completion("a mixed pair", 4, false))
			require.NoError(t, r.err)
			require.GreaterOrEqual(t, r.status, http.StatusInternalServerError, r.body)
			s, ok := f.state(f.prefill[0])
			require.True(t, ok)
			require.Contains(t, fmt.Sprint(s.Violations), "mixed_pair")
		})
	}
}
