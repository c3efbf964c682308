//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// moment is when a client leaves.
type moment int

const (
	inTheRequest moment = iota // some of the body has been sent, and no more will come
	afterIt                    // any time later: tokens are counted, prefill runs, decode is asked, it answers
	inTheAnswer                // its first words have come
	never
	moments
)

// TestClientsThatLeaveAtAnyMoment is docs/behaviour.md#client-leaves, at random, with
// engines that meet and those that prefill first: whenever clients leave, no KV waits
// for its lease, and no booking and no goroutine stays. The long tests do it with
// thousands.
func TestClientsThatLeaveAtAnyMoment(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := layout{
		prefill: 2, decode: 2, config: "prefill: {start_timeout: 3s, overdue_base: 60s, orphan_grace: 1s}\n",
		prefillArgs: []string{"--prefill-base-us", "10000"}, decodeArgs: []string{"--decode-us-per-token", "1000"},
	}
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			both(t, layoutOf(l, engine), func(t *testing.T, f *fleet) { f.leaveAtAnyMoment(t, seed, engines.HandOff(engine).PrefillFirst()) })
		})
	}
}

func (f *fleet) leaveAtAnyMoment(t *testing.T, seed uint64, prefillFirst bool) {
	q := ask("warm", 2)[0] // every part that lives as long as the plugin is there
	q.require(t, f.send(t.Context(), q.path, q.body))
	f.await("it to be over", func() bool { return f.metric("baton_streams_in_flight") == 0 })
	goroutines := f.metric("go_goroutines")
	const clients = 8
	var left [moments]atomic.Int64
	var wg sync.WaitGroup
	for c := range uint64(clients) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, c))
			for i := range leavers / clients {
				left[f.mayLeave(t, r, fmt.Sprintf("client %d request %d", c, i))].Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("left in the request %d, after it %d, in the answer %d; were served %d",
		left[inTheRequest].Load(), left[afterIt].Load(), left[inTheAnswer].Load(), left[never].Load())
	for m := range moments {
		require.Positive(t, left[m].Load(), "moment %d", m)
	}
	// At which moment the random ones met a worker depends on the machine: one of each for sure.
	over := func() bool { return f.metric("baton_streams_in_flight") == 0 }
	f.await("every random request to have ended", over)
	if prefillFirst {
		f.awaitCollected()
	}
	f.leaveWhile(t, f.decode, "decode")
	if prefillFirst {
		f.leaveWhile(t, f.prefill, "prefill")
	}
	f.await("every request to have ended", over)
	f.await("decode to have been left", func() bool {
		cancelled := uint64(0)
		for _, w := range f.decode {
			s, _ := f.state(w)
			cancelled += s.Canceled
		}
		return cancelled > 0
	})
	if prefillFirst {
		f.awaitCollected()
		require.Zero(t, f.ledger().Expired)
		require.Positive(t, f.metric("baton_prefill_legs_total", `outcome="collected"`), "some left while prefill ran")
		require.Zero(t, f.metric("baton_prefill_legs_total", `outcome="collect_failed"`))
	}
	// A kept connection to Envoy's listener has two; those to workers that count tokens are few. Each
	// kind of task keeps at most 16.
	f.await("goroutines to end", func() bool {
		kept, err := f.envoy.Stat(t.Context(), "http.sync_leg.downstream_cx_active")
		return err == nil && f.metric("go_goroutines") <= goroutines+2*float64(kept)+40+3*16
	})
}

// leaveWhile sends a request whose client leaves while one of the workers has it.
func (f *fleet) leaveWhile(t *testing.T, workers []*stack.Worker, what string) {
	f.await(what+" to be idle", func() bool { return f.running(workers) == 0 })
	f.faultAll(workers, enginesim.Fault{Mode: enginesim.FaultHold, When: enginesim.Mid, Count: 1})
	ctx, leave := context.WithCancel(t.Context())
	q := ask("its client leaves while "+what+" works", 50)[2]
	left := make(chan *reply, 1)
	go func() { left <- f.send(ctx, q.path, q.body) }()
	f.await(what+" to work", func() bool { return f.running(workers) == 1 })
	leave()
	require.Error(t, (<-left).err)
	if what == "decode" { // it must hear of it before it goes on; prefill goes on, so that there is KV to collect
		f.await("decode to have been left", func() bool { return f.running(workers) == 0 })
	}
	f.faultAll(workers, enginesim.Fault{})
}

// mayLeave sends one request whose client leaves at some moment, or not at all,
// and returns when it did.
func (f *fleet) mayLeave(t *testing.T, r *rand.Rand, prompt string) moment {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q := ask(prompt, []int{1, 2, 20, 50}[r.IntN(4)])[r.IntN(4)]
	half := len(q.body) / 2
	how := moment(r.IntN(int(moments)))
	switch how {
	case inTheRequest:
		after := time.Duration(r.IntN(10)) * time.Millisecond
		f.sendThrough(ctx, q.path, io.MultiReader(strings.NewReader(q.body[:half]), &leaving{cancel, after}), nil)
		return how
	case afterIt:
		patience, stop := context.WithTimeout(ctx, time.Duration(r.IntN(60))*time.Millisecond)
		defer stop()
		reply := f.send(patience, q.path, q.body)
		if patience.Err() != nil {
			return how
		}
		requireWhole(t, prompt, q, reply)
	case inTheAnswer:
		q = ask(prompt, 50)[2+r.IntN(2)]
		if f.sendThrough(ctx, q.path, strings.NewReader(q.body), cancel) {
			return how
		}
		t.Errorf("%s: no answer began", prompt)
	default:
		requireWhole(t, prompt, q, f.send(ctx, q.path, q.body))
	}
	return never
}

// requireWhole is question.require beside the test's own goroutine.
func requireWhole(t *testing.T, prompt string, q question, r *reply) {
	if r.err != nil || r.status != http.StatusOK || strings.TrimSpace(r.text()) != q.answer {
		t.Errorf("%s: %d %v %.200s", prompt, r.status, r.err, r.body)
	}
}

// leaving is the part of a body that never comes: its client leaves.
type leaving struct {
	leave context.CancelFunc
	after time.Duration
}

func (l *leaving) Read([]byte) (int, error) {
	<-time.After(l.after)
	l.leave()
	return 0, io.ErrUnexpectedEOF
}

// sendThrough sends a body piece by piece as it can be read, calls leave, where
// it is one, at the first piece of an answer, and reports whether there was one.
func (f *fleet) sendThrough(ctx context.Context, path string, body io.Reader, leave context.CancelFunc) bool {
	// Of unknown length: then nothing of the body waits for the rest.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.envoy.URL+path, struct{ io.Reader }{body})
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		return false
	}
	if leave != nil {
		leave()
	}
	return true
}
