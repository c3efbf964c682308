// Command demo is `make real-demo`: two real vLLM on this CPU behind Baton, and two
// conversations whose turns find what the engines hold. It goes on until Ctrl-C, so that
// its pages can be looked at.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/real"
	"github.com/seed-60ae5743/baton/test/stack"
)

const model = "qwen3"

func main() {
	stay := flag.Bool("stay", true, "go on after the conversations, until Ctrl-C")
	envoyPath := flag.String("envoy", "", "the `binary`; default: envoy on PATH, else the one of make tools")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *envoyPath, *stay); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

// stage is what the demo has started.
type stage struct {
	engines []*real.Engine
	plugin  *stack.Plugin
	envoy   *stack.Envoy
}

func run(ctx context.Context, out io.Writer, envoyPath string, stay bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends all that it started
	dir, err := os.MkdirTemp("", "baton-real-demo-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // of ours alone
	st, err := open(ctx, out, envoyPath, dir)
	if err != nil {
		return err
	}
	if err := converse(ctx, out, st); err != nil {
		return err
	}
	if !stay {
		return nil
	}
	fmt.Fprintf(out, "\nIt goes on until Ctrl-C. Chat at %s/v1/chat/completions (model %s), decisions at %s/decisions\n", st.envoy.URL, model, st.plugin.Admin)
	<-ctx.Done()
	return nil
}

// open starts two vLLM, etcd, a register beside each, the plugin and Envoy.
func open(ctx context.Context, out io.Writer, envoyPath, dir string) (*stage, error) {
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	home := real.Home(root)
	if err := real.Installed(home); err != nil {
		return nil, err
	}
	envoyPath, err = stack.FindEnvoy(envoyPath)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "Building the plugin and etcd …")
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o750); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	if err := stack.Build(bin, "", false, "./cmd/extproc", "./test/cmd/devetcd"); err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "Starting two vLLM 0.32.0 on the CPU; that takes a minute or two …")
	st := &stage{}
	st.engines, err = startEngines(ctx, home)
	if err != nil {
		return nil, err
	}
	etcd, err := stack.StartEtcd(ctx, stack.EtcdOptions{BinDir: bin, Dir: filepath.Join(dir, "etcd")})
	if err != nil {
		return nil, err
	}
	for _, e := range st.engines {
		if _, err := stack.StartRegister(ctx, stack.RegisterOptions{BinDir: bin, EngineURL: e.URL, Etcd: etcd.Endpoints, TTL: 5 * time.Second}); err != nil {
			return nil, err
		}
	}
	st.plugin, err = stack.StartPlugin(ctx, stack.PluginOptions{BinDir: bin, Dir: dir, Etcd: etcd.Endpoints, NotWait: true})
	if err != nil {
		return nil, err
	}
	st.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Params: envoy.Params{PluginSocket: st.plugin.Socket}})
	if err != nil {
		return nil, err
	}
	return st, stack.Await(ctx, "the plugin to know both engines", func() bool {
		m, err := st.plugin.Metrics(ctx)
		if err != nil {
			return false
		}
		n, _ := m.Sum("baton_workers", `state="healthy"`)
		return n == float64(len(st.engines)) && strings.Count(st.plugin.Log(), "state=connected") >= len(st.engines)
	})
}

func startEngines(ctx context.Context, home string) ([]*real.Engine, error) {
	es, errs := make([]*real.Engine, 2), make([]error, 2)
	var wg sync.WaitGroup
	for i := range es {
		wg.Go(func() {
			es[i], errs[i] = real.StartVLLM(ctx, real.Options{
				Home: home, Name: fmt.Sprintf("vLLM %d", i+1), Model: model, Role: worker.Aggregated,
				Args: []string{"--num-gpu-blocks-override", "256"},
			})
		})
	}
	wg.Wait()
	return es, errors.Join(errs...)
}

// message is one of a chat's.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// said are the turns of two conversations.
var said = [][]string{
	{
		"I run eight workers behind one Envoy. Explain in plain words who decides where a request goes, and what they look at when they decide.",
		"And what if the worker that was chosen dies before it has answered?",
		"How would I see afterwards why it was chosen?",
	},
	{
		"Write a short note to the people on call: what a prefix cache is, why a conversation should stay with its worker, and what to do when one worker has to go.",
		"Make it half as long.",
		"Now add one line on what it costs to move a conversation.",
	},
}

// converse plays the conversations turn by turn and tells who served and what was found.
func converse(ctx context.Context, out io.Writer, st *stage) error {
	histories := make([][]message, len(said))
	fmt.Fprintln(out, "\nThe weights are random: what is answered is noise, what is found in the caches is not.")
	for turn := range said[0] {
		for i := range said {
			histories[i] = append(histories[i], message{"user", said[i][turn]})
			text, u, err := ask(ctx, st.envoy.URL, histories[i])
			if err != nil {
				return fmt.Errorf("conversation %d, turn %d: %w", i+1, turn+1, err)
			}
			histories[i] = append(histories[i], message{"assistant", text})
			d, err := latest(ctx, st.plugin)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "conversation %d, turn %d: worker %s; %4d tokens, Baton expected %4d in its cache, vLLM found %4d\n",
				i+1, turn+1, d.Decode.Rank.ID, u.Prompt, d.Decode.OverlapBlocks*real.BlockSize, u.Details.Cached)
			if err := settle(ctx, st); err != nil {
				return err
			}
		}
	}
	return nil
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func ask(ctx context.Context, url string, ms []message) (string, usage, error) {
	b, err := json.Marshal(map[string]any{"model": model, "messages": ms, "max_tokens": 24, "temperature": 0})
	if err != nil {
		return "", usage{}, fmt.Errorf("chat: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		return "", usage{}, fmt.Errorf("chat: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", usage{}, fmt.Errorf("chat: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", usage{}, fmt.Errorf("chat: %w", err)
	}
	var a struct {
		Choices []struct{ Message message }
		Usage   usage
	}
	if err := json.Unmarshal(body, &a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) == 0 {
		return "", usage{}, fmt.Errorf("chat: status %d: %.300s", resp.StatusCode, body)
	}
	return a.Choices[0].Message.Content, a.Usage, nil
}

// latest is the plugin's latest decision.
func latest(ctx context.Context, p *stack.Plugin) (*decision.Record, error) {
	page, err := p.Page(ctx, "/debug/decisions?n=1")
	if err != nil {
		return nil, err
	}
	var list struct{ Decisions []decision.Record }
	if err := json.Unmarshal([]byte(page), &list); err != nil || len(list.Decisions) != 1 {
		return nil, fmt.Errorf("the plugin's decisions: %.200s", page)
	}
	return &list.Decisions[0], nil
}

// settle waits until no KV event has come for a while: the next turn is to be found by
// what the engines have told, not by what was routed.
func settle(ctx context.Context, st *stage) error {
	last, quiet := -1.0, 0
	return stack.Await(ctx, "the engines' events to end", func() bool {
		m, err := st.plugin.Metrics(ctx)
		if err != nil {
			return false
		}
		now, _ := m.Sum("baton_kv_events_total")
		quiet++
		if now != last {
			last, quiet = now, 0
		}
		return quiet > 5
	})
}
