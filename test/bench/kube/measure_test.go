//go:build kube

package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/stack"
)

// measure starts a picker, and ends it.
func (l *lab) measure(c contender) row {
	l.t.Helper()
	w := l.worker(c.follows)
	defer func() { require.NoError(l.t, w.Kill()) }()
	p, err := stack.StartProgram(l.t.Context(), stack.ProgramOptions{
		Name: c.name, Path: c.path(l), Dir: l.dir, Args: c.args(l), Env: []string{"KUBECONFIG=" + l.kubeconfig},
	})
	require.NoError(l.t, err)
	defer func() {
		if l.t.Failed() {
			log := p.Log()
			l.t.Logf("the last lines of %s:\n%s", c.name, log[max(0, len(log)-3000):])
		}
		_ = p.Kill()
	}()
	r := row{name: c.name, pods: l.pods}
	l.await(fmt.Sprintf("%s to know %d pods", c.name, l.pods), p, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		page, err := stack.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", l.ports.page))
		return err == nil && c.knows(stack.Metrics(page)) == l.pods
	})
	r.started, _ = l.memory(p)
	l.change()
	r.changed, r.most = l.memory(p)
	r.idle = l.over(p, w, func() { require.NoError(l.t, pause(l.t.Context(), *length)) })
	if !c.follows {
		l.await("a request to be served", p, func(ctx context.Context) bool { return l.ask(ctx, "first") == nil })
		r.load = l.over(p, w, func() { r.sent, r.failed = l.drive() })
		r.used, r.most = l.memory(p)
	}
	require.True(l.t, p.Alive(), "%s has ended", c.name)
	l.t.Logf("%+v", r)
	return r
}

// await waits until is says yes, and fails the test if the process ends before.
func (l *lab) await(what string, p *stack.Process, is func(ctx context.Context) bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), soon)
	defer cancel()
	require.NoError(l.t, stack.Await(ctx, what, func() bool { return !p.Alive() || is(ctx) }))
	require.True(l.t, p.Alive(), "waited for %s: %s has ended: %v\n%s", what, p.Name, p.Err(), p.Log())
}

// memory leaves the picker alone for a while, and then reads its memory.
func (l *lab) memory(p *stack.Process) (resident, most int64) {
	l.t.Helper()
	require.NoError(l.t, pause(l.t.Context(), *settle))
	resident, most, err := host.Memory(p.PID())
	require.NoError(l.t, err)
	return resident, most
}

// over returns what is used while something is done.
func (l *lab) over(p *stack.Process, w worker, do func()) span {
	l.t.Helper()
	read := func() (s span) {
		var err error
		s.picker, err = host.CPUTime(p.PID())
		require.NoError(l.t, err)
		s.worker, err = host.CPUTime(w.PID())
		require.NoError(l.t, err)
		st, err := w.sim.State(l.t.Context(), false)
		require.NoError(l.t, err)
		s.reads = st.Reads
		return s
	}
	before, began := read(), time.Now()
	do()
	took, after := time.Since(began), read()
	return span{took, after.picker - before.picker, after.worker - before.worker, after.reads - before.reads}
}

// drive sends requests at the rate, whether or not those before have been answered, and
// waits for all of them.
func (l *lab) drive() (sent, failed int) {
	ctx, cancel := context.WithTimeout(l.t.Context(), *length)
	defer cancel()
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	var all sync.WaitGroup
	var bad atomic.Int64
	for ; ; sent++ {
		select {
		case <-ctx.Done():
			all.Wait()
			return sent, int(bad.Load())
		case <-tick.C:
		}
		which := fmt.Sprintf("round %d, request %d", l.round, sent)
		all.Go(func() {
			if err := l.ask(l.t.Context(), which); err != nil && bad.Add(1) == 1 {
				l.t.Logf("the first request that failed: %s: %v", which, err)
			}
		})
	}
}

// ask sends a request of some 2 KB: a text that all have, and one of its own.
func (l *lab) ask(ctx context.Context, which string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	body := fmt.Sprintf(`{"model":"m","max_tokens":16,"messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`,
		strings.Repeat("You help people. ", 60), strings.Repeat(which+". ", 40))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.envoy.URL+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", resp.StatusCode, answer)
	}
	return err
}
