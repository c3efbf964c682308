package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// pod is a worker as a cluster runs it: an engine, and beside it what keeps it
// known in etcd. They die together.
type pod struct {
	name     string // p1, d2: for people to read
	engine   *stack.Worker
	register *stack.Register

	// Set by awaitRegistered.
	id    worker.ID // the plugin's name for it, drawn by etcd
	since time.Time // when etcd held it
}

// startPods starts n workers of a role and what registers each, and returns
// when they run; they may not be known yet.
func (st *stage) startPods(role worker.Role, n int) ([]*pod, error) {
	pods := make([]*pod, n)
	for i := range pods {
		pods[i] = &pod{name: st.nextName(role)}
	}
	var g errgroup.Group
	for _, p := range pods {
		g.Go(func() (err error) {
			p.engine, err = stack.StartWorker(st.ctx, st.opts.binDir,
				"--role", role.String(), "--model", model,
				"--page-size", strconv.Itoa(blockSize),
				"--prefill-us-per-token", strconv.Itoa(prefillPerToken),
				"--decode-us-per-token", strconv.Itoa(decodePerToken))
			if err != nil {
				return err
			}
			p.engine.Name = role.String() + " worker " + p.name
			st.started(p.engine.Process)
			p.register, err = stack.StartRegister(st.ctx, stack.RegisterOptions{
				BinDir: st.opts.binDir, EngineURL: p.engine.Sim.BaseURL, Etcd: st.keys, Prefix: st.prefix, TTL: leaseTTL,
			})
			if err != nil {
				return err
			}
			p.register.Name = "register of " + p.name
			st.started(p.register.Process)
			return nil
		})
	}
	return pods, g.Wait()
}

// nextName returns p1, p2 … for prefill, d1, d2 … for decode. No name is given
// twice.
func (st *stage) nextName(role worker.Role) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.named[role]++
	return role.String()[:1] + strconv.Itoa(st.named[role])
}

// awaitRegistered waits until etcd holds the pod's worker.
func (st *stage) awaitRegistered(ctx context.Context, p *pod) error {
	return st.await(ctx, p.name+" to be registered", func(context.Context) (ok bool, err error) {
		p.id, p.since, ok = p.register.Registered()
		return ok, nil
	})
}

// kill is the death of a pod: kill -9 of both processes, nothing is said to
// anybody.
func (st *stage) kill(p *pod) error {
	st.mu.Lock()
	st.killed[p.register.Process], st.killed[p.engine.Process] = true, true
	st.mu.Unlock()
	if err := p.register.Kill(); err != nil {
		return err
	}
	return p.engine.Kill()
}

// pods returns all that there are or were, prefill first.
func (st *stage) pods() []*pod {
	return append(append([]*pod(nil), st.prefill...), st.decode...)
}

// living leaves out the pods that were killed.
func (st *stage) living(pods []*pod) (out []*pod) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, p := range pods {
		if !st.killed[p.engine.Process] {
			out = append(out, p)
		}
	}
	return out
}

// byID returns the pod with the worker id, or nil.
func (st *stage) byID(id worker.ID) *pod {
	for _, p := range st.pods() {
		if p.id == id {
			return p
		}
	}
	return nil
}

// names are what the story calls workers; their ids are long.
type names map[worker.ID]string

func (n names) of(id worker.ID) string {
	if name, ok := n[id]; ok {
		return name
	}
	return id.String()
}

func (n names) learn(pods []*pod) {
	for _, p := range pods {
		n[p.id] = p.name
	}
}

// killText says which processes a pod's death ends.
func killText(pods ...*pod) string {
	text := "kill -9"
	for _, p := range pods {
		text += fmt.Sprintf(" %d %d", p.engine.PID(), p.register.PID())
	}
	return text
}
