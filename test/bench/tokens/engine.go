package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/tokens/bpe"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/real"
)

// engineModel is a tiny model with the published tokenizer and template of Qwen3.
const engineModel = "qwen3"

// asked is a real vLLM that is asked for tokens.
type asked struct{ *real.Engine }

func startEngine(ctx context.Context, root string) (asked, error) {
	home := real.Home(root)
	if err := real.Installed(home); err != nil {
		return asked{}, fmt.Errorf("%w (-engine=false leaves the engine out)", err)
	}
	e, err := real.StartVLLM(ctx, real.Options{
		Home: home, Name: "vLLM", Model: engineModel, Role: worker.Aggregated, Args: []string{"--num-gpu-blocks-override", "256"},
	})
	return asked{e}, err
}

// tokens returns how many tokens the engine counts for a body, the time to the whole
// answer, and the CPU time of its front-end.
func (a asked) tokens(ctx context.Context, body []byte) (n int, took, cpu time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return 0, 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	used, err := host.CPUTime(a.PID())
	if err != nil {
		return 0, 0, 0, err
	}
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("ask the engine: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	took = time.Since(began)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read the engine's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return 0, 0, 0, fmt.Errorf("the engine answers %d: %.300s", resp.StatusCode, text)
	}
	now, err := host.CPUTime(a.PID())
	if err != nil {
		return 0, 0, 0, err
	}
	var answer struct{ Tokens []uint32 }
	err = json.Unmarshal(text, &answer)
	return len(answer.Tokens), took, now - used, err
}

// besideEngine measures the same first sight and the same next turns here and at a real
// vLLM's /tokenize, in turn.
func besideEngine(o options, out io.Writer, root string, text []byte) error {
	runtime.LockOSThread() // whose CPU time is taken
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel() // ends the engine
	fmt.Fprintln(out, "\nStarting vLLM on the CPU; that takes a minute …")
	e, err := startEngine(ctx, root)
	if err != nil {
		return err
	}
	m, err := model(filepath.Join(real.Home(root), "models", engineModel))
	if err != nil {
		return err
	}
	t, made := talk{text: text}, turn{model: m}
	if err := t.grow(&made); err != nil {
		return err
	}
	var ours, theirs, ourCPU, theirCPU []time.Duration
	for i := range 1 + o.turns/10 {
		body := t.next()
		began, used := time.Now(), threadTime()
		if err := made.take(body); err != nil {
			return err
		}
		took, cpu := time.Since(began), threadTime()-used
		n, tookThere, cpuThere, err := e.tokens(ctx, body)
		if err != nil {
			return err
		}
		if n != len(made.ids) {
			return fmt.Errorf("a turn has %d tokens, and %d by the engine", len(made.ids), n)
		}
		if i == 0 {
			continue // connections and caches are made
		}
		ours, theirs, ourCPU, theirCPU = append(ours, took), append(theirs, tookThere), append(ourCPU, cpu), append(theirCPU, cpuThere)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, next turn of 100,000 tokens\tp50 µs\tp99 µs\tCPU, p50 µs\tp99 µs\n", engineModel)
	fmt.Fprintf(w, "here\t%s\t%s\n", quantiles(ours), quantiles(ourCPU))
	fmt.Fprintf(w, "vLLM's /tokenize\t%s\t%s\n", quantiles(theirs), quantiles(theirCPU))
	if err := w.Flush(); err != nil {
		return err
	}
	return e.firstSight(ctx, o, out, filepath.Join(real.Home(root), "models", engineModel, "tokenizer.json"), text)
}

// firstSight measures the first sight of a long text, here and at the engine.
func (a asked) firstSight(ctx context.Context, o options, out io.Writer, file string, text []byte) error {
	k, err := load(file)
	if err != nil {
		return err
	}
	var ours, theirs, theirCPU []time.Duration
	var ids []uint32
	for i := range o.repeats {
		first := strings.ToValidUTF8(prompt(text[i*1000:]), "") // another each time
		cpu, err := firstSight(k, first, &ids)
		if err != nil {
			return err
		}
		body, err := json.Marshal(map[string]any{"model": engineModel, "prompt": first, "add_special_tokens": false})
		if err != nil {
			return err
		}
		n, took, cpuThere, err := a.tokens(ctx, body)
		if err != nil {
			return err
		}
		if n != len(ids) {
			return fmt.Errorf("%d tokens, and %d by the engine", len(ids), n)
		}
		ours, theirs, theirCPU = append(ours, cpu), append(theirs, took), append(theirCPU, cpuThere)
	}
	least := func(d []time.Duration) float64 { return stats.Micros(slices.Min(d)) / 1000 }
	_, err = fmt.Fprintf(out, "\n%s, first sight of 220 KB: %.1f ms of CPU here; vLLM's /tokenize %.1f ms, %.1f ms of CPU\n",
		engineModel, least(ours), least(theirs), least(theirCPU))
	return err
}

func load(file string) (*bpe.Tokenizer, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return bpe.Load(b, bpe.Limits{})
}
