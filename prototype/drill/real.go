package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/real"
	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const realModel = "tiny"

// inReal does the same with real vLLM, prefill and decode apart: completions with ids and chats at
// once, twice as they are, and once with the death of their decode worker.
func inReal(ctx context.Context) error {
	s, err := openReal(ctx)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return err
	}
	var asks [][2]string
	for i, p := range prompts(*streams, *prompt) {
		for i := range p {
			p[i] %= 900
		}
		ids, _ := json.Marshal(p)
		m := fmt.Sprintf(`"messages":[{"role":"user","content":"%d %s"}]`, i, strings.Repeat("prefill decode worker block ", *prompt/5))
		asks = append(asks, [2]string{"/v1/completions", realBody(`"prompt":` + string(ids))}, [2]string{"/v1/chat/completions", realBody(m)})
	}
	return s.round(ctx, asks)
}

func realBody(what string) string {
	return fmt.Sprintf(`{"model":%q,%s,"max_tokens":%d,"ignore_eos":true,"stream":true,"temperature":0,"return_token_ids":true,"stream_options":{"include_usage":true}}`,
		realModel, what, *tokens)
}

// realScene is a scene with real engines: one prefill worker, two decode workers.
type realScene struct {
	scene
	prefill *real.Engine
	decodes []*real.Engine
	etcd    *stack.Etcd
}

func openReal(ctx context.Context) (*realScene, error) {
	s := &realScene{}
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, root, "./cmd/devetcd"); err != nil {
		return s, err
	}
	began := time.Now()
	all, errs := make([]*real.Engine, 3), make([]error, 3)
	var wg sync.WaitGroup
	for i := range all {
		role := worker.Decode
		if i == 0 {
			role = worker.Prefill
		}
		wg.Go(func() {
			all[i], errs[i] = real.StartVLLM(ctx, real.Options{Home: real.Home(root), Name: fmt.Sprint("vllm ", i), Model: realModel, Role: role,
				Args: []string{"--num-gpu-blocks-override", "2048", "--max-num-seqs", "128"}})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return s, err
		}
	}
	fmt.Println("engines serve after", time.Since(began).Round(time.Second))
	s.prefill, s.decodes = all[0], all[1:]
	for _, d := range s.decodes[1:] {
		_ = d.Pause()
	}
	if s.etcd, err = stack.StartEtcd(ctx, stack.EtcdOptions{BinDir: s.bin, Dir: filepath.Join(s.dir, "etcd")}); err != nil {
		return s, err
	}
	s.plugin, err = stack.StartPlugin(ctx, stack.PluginOptions{BinDir: s.bin, Dir: s.dir, Etcd: s.etcd.Endpoints, NotWait: true})
	if err != nil {
		return s, err
	}
	if err := s.proxy(ctx); err != nil {
		return s, err
	}
	if err := s.register(ctx, s.prefill, 1); err != nil {
		return s, err
	}
	return s, s.register(ctx, s.decodes[0], 2)
}

// register makes an engine known and waits until n are.
func (s *realScene) register(ctx context.Context, e *real.Engine, n float64) error {
	_ = e.Resume()
	_, err := stack.StartRegister(ctx, stack.RegisterOptions{BinDir: s.bin, EngineURL: e.URL, Etcd: s.etcd.Endpoints, TTL: 5 * time.Second,
		Args: []string{"--role", e.Role.String()}})
	if err != nil {
		return err
	}
	c, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return stack.Await(c, "the plugin to know an engine", func() bool {
		m, err := s.plugin.Metrics(c)
		if err != nil {
			return false
		}
		v, _ := m.Sum("baton_workers", `state="healthy"`)
		return v >= n
	})
}

// play sends all requests at once; at is called when each has had so many events.
func (s *realScene) play(ctx context.Context, asks [][2]string, events int, at func()) []*result {
	out := make([]*result, len(asks))
	var n atomic.Int64
	var wg sync.WaitGroup
	for i, a := range asks {
		wg.Go(func() {
			out[i] = ask(ctx, s.envoy.URL, a[0], a[1], func(k int) {
				if k == events && n.Add(1) == int64(len(asks)) && at != nil {
					go at()
				}
			})
		})
	}
	wg.Wait()
	return out
}

func (s *realScene) round(ctx context.Context, asks [][2]string) error {
	first := s.play(ctx, asks, 0, nil)
	second := s.play(ctx, asks, 0, nil)
	var registered error
	third := s.play(ctx, asks, *tokens/4, func() {
		registered = s.register(ctx, s.decodes[1], 3)
		_ = s.decodes[0].Kill()
	})
	if registered != nil {
		return registered
	}
	fmt.Println("planner asked", s.asked.Load(), "times")
	for kind, name := range []string{"completions, prompts as ids", "chats"} {
		of := func(rs []*result) (out []*result) {
			for i := kind; i < len(rs); i += 2 {
				out = append(out, rs[i])
			}
			return out
		}
		var gaps []time.Duration
		for _, r := range of(third) {
			gaps = append(gaps, r.gap())
		}
		fmt.Printf("%s, %d tokens: two runs without a death: %s\n", name, *tokens, compareRuns(of(first), of(second)))
		fmt.Printf("%s: with a death: %s; longest gap p50 %s p99 %s\n", name, compareRuns(of(first), of(third)), at(gaps, 50), at(gaps, 99))
	}
	return nil
}

// compareRuns says how many of the second are whole, and how many of those say what the first says.
func compareRuns(a, b []*result) string {
	whole, same, ids := 0, 0, 0
	wrong := map[string]int{}
	for i := range a {
		if w := b[i].structure(); w != "" {
			wrong[w]++
			continue
		}
		whole++
		if a[i].text == b[i].text {
			same++
		}
		if fmt.Sprint(a[i].ids) == fmt.Sprint(b[i].ids) {
			ids++
		}
	}
	texts := map[string]bool{}
	for _, r := range a {
		texts[r.text] = true
	}
	return fmt.Sprintf("%d of %d whole, %d with the same text (%d different ones), %d with the same ids; wrong: %v", whole, len(a), same, len(texts), ids, wrong)
}

// structure says what is not as in one whole answer, whatever its text is.
func (r *result) structure() string {
	var u struct {
		C int `json:"completion_tokens"`
		P int `json:"prompt_tokens"`
		T int `json:"total_tokens"`
	}
	if len(r.usages) > 0 {
		_ = json.Unmarshal([]byte(r.usages[len(r.usages)-1]), &u)
	}
	switch {
	case r.status != 200:
		return fmt.Sprintf("status %d %.200s", r.status, r.text)
	case r.err != nil:
		return "cut"
	case len(r.names) != 1 || r.done != 1 || r.after != 0 || r.errors != 0 || len(r.finish) != 1 || r.roles > 1:
		return fmt.Sprintf("%d ids, %d done, %d after it, %d errors, finish %v, %d roles", len(r.names), r.done, r.after, r.errors, r.finish, r.roles)
	case u.C != *tokens || u.T != u.P+u.C || len(r.usages) != 1:
		return fmt.Sprintf("usage %v", r.usages)
	}
	return ""
}
