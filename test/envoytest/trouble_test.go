//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"html"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// says returns what the state says of a kind of trouble, and whether requests fail or wait because of it.
func (f *fleet) says(kind trouble.Kind) (what string, severe bool) {
	f.t.Helper()
	var s struct {
		Troubles []struct {
			Kind   trouble.Kind
			Severe bool
			What   string
		}
	}
	require.NoError(f.t, json.Unmarshal([]byte(f.adminGet("/debug/state")), &s))
	for _, x := range s.Troubles {
		if x.Kind == kind {
			return x.What, x.Severe
		}
	}
	return "", false
}

// lacks returns where a trouble is not shown; "": it is in all places.
func (f *fleet) lacks(kind trouble.Kind) string {
	f.t.Helper()
	if f.metric("baton_trouble", fmt.Sprintf("kind=%q", kind)) == 0 {
		return "gauge"
	}
	what, severe := f.says(kind)
	if what == "" {
		return "state"
	}
	if !strings.Contains(f.adminGet("/"), strings.ReplaceAll(html.EscapeString(what), "+", "&#43;")) {
		return "page"
	}
	if severe && !strings.Contains(f.adminGet("/readyz"), what) {
		return "readiness"
	}
	x := trouble.Trouble{Kind: kind}
	if x.LogsBegin() && !strings.Contains(f.plugin.Log(), "msg=trouble kind="+string(kind)) {
		return "log"
	}
	words := strings.Join(strings.Fields(what), " ")
	for name, args := range map[string][]string{
		"check":   {"check", "--config", filepath.Join(f.dir, "extproc.yaml")},
		"explain": {"explain", "--admin", f.plugin.Admin, "--path", "/v1/completions", "-"},
	} {
		cmd := exec.CommandContext(f.t.Context(), filepath.Join(binDir, "extproc"), args...)
		cmd.Stdin = strings.NewReader(completion("what is wrong", 1, false))
		out, err := cmd.Output()
		if !strings.Contains(strings.Join(strings.Fields(string(out)), " "), words) && !(name == "explain" && err != nil) {
			return name
		}
	}
	return ""
}

// shows waits until a trouble is shown in all places.
func (f *fleet) shows(kind trouble.Kind) {
	f.t.Helper()
	began := time.Now()
	lacks := ""
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 300 {
		if lacks = f.lacks(kind); lacks == "" {
			f.t.Logf("%s: shown everywhere after %v", kind, time.Since(began).Round(100*time.Millisecond))
			return
		}
		<-tick.C
	}
	require.Empty(f.t, lacks, "where %s is not shown", kind)
}

// wellAgain waits until a trouble is shown no more.
func (f *fleet) wellAgain(kind trouble.Kind) {
	f.t.Helper()
	began := time.Now()
	f.await(string(kind)+" to be over", func() bool {
		return f.metric("baton_trouble", fmt.Sprintf("kind=%q", kind)) == 0
	})
	what, _ := f.says(kind)
	require.Empty(f.t, what)
	f.t.Logf("%s: gone after %v", kind, time.Since(began).Round(100*time.Millisecond))
}

// TestPlantedFaultsOfRequestsAreShownEverywhere: faults that only requests meet, through Envoy. Others are
// planted in internal/plugin.
func TestPlantedFaultsOfRequestsAreShownEverywhere(t *testing.T) {
	t.Parallel()
	send := func(f *fleet, n int) {
		for i := range n {
			f.send(t.Context(), "/v1/completions", completion(fmt.Sprint("request ", i, f.sent.Load()), 2, false))
		}
	}
	gone := filepath.Join(t.TempDir(), "x.sock") // nobody listens there
	for _, x := range []struct {
		name string
		kind trouble.Kind
		layout
		plant func(t *testing.T, f *fleet) (mend func())
	}{
		{"a decode is killed", trouble.WorkerAside, layout{prefill: 1, decode: 2, config: quickFaults}, func(_ *testing.T, f *fleet) func() {
			require.NoError(f.t, f.decode[0].Kill())
			send(f, 4)
			return func() { f.publish(f.prefill[0], f.decode[1]) }
		}},
		{"a decode is stopped", trouble.WorkerAside, layout{prefill: 1, decode: 2, config: quickFaults}, func(t *testing.T, f *fleet) func() {
			require.NoError(t, f.decode[0].Signal(syscall.SIGSTOP))
			go send(f, 4)
			return func() {
				require.NoError(t, f.decode[0].Signal(syscall.SIGCONT))
				f.await("requests to end", func() bool { send(f, 2); what, _ := f.says(trouble.WorkerAside); return what == "" })
			}
		}},
		{"all decodes are killed", trouble.ModelUnserved, layout{prefill: 1, decode: 2, config: quickFaults, noCheck: true}, func(t *testing.T, f *fleet) func() {
			for _, w := range f.decode {
				require.NoError(t, w.Kill())
			}
			send(f, 4)
			return nil
		}},
		{"the only worker fails", trouble.RequestsFailing, layout{aggregated: 1}, func(_ *testing.T, f *fleet) func() {
			f.faultAll(f.workers, enginesim.Fault{Mode: enginesim.FaultError})
			send(f, 3)
			return func() { f.faultAll(f.workers, enginesim.Fault{}) }
		}},
		{"prefill's bootstrap port is wrong", trouble.RequestsFailing, layout{prefill: 1, decode: 1, config: quickFaults, noCheck: true, decodeArgs: []string{"--waiting-timeout", "1s"}, describe: func(f *fleet) {
			f.prefill[0].Info.Bootstrap.Port = 1
		}}, func(_ *testing.T, f *fleet) func() {
			send(f, 2)
			return func() {}
		}},
		{"nothing listens where prefill legs go", trouble.LegUnreachable, layoutOf(layout{prefill: 1, decode: 1, config: "prefill: {listener: \"unix://" + gone + "\"}\n"}, worker.VLLM), func(t *testing.T, f *fleet) func() {
			send(f, 1)
			require.Contains(t, f.adminGet("/debug/state"), "but no leg reaches Envoy at "+gone+" (dial unix "+gone+": connect: no such file or directory)")
			return func() {
				l, err := net.Listen("unix", gone)
				require.NoError(t, err)
				t.Cleanup(func() { _ = l.Close() })
			}
		}},
		{"prefill stands still, and prompts queue", trouble.QueueFull, layout{prefill: 1, decode: 1, prefillArgs: []string{"--serial-prefill"}, config: "prefill: {max_queued_isl_tokens: 50, overdue_base: 60s}\ntokens: {mode: estimate}\n"}, func(_ *testing.T, f *fleet) func() {
			goOn := f.hold(f.prefill[0], enginesim.Before)
			go f.send(t.Context(), "/v1/completions", completion(strings.Repeat("word ", 200), 2, false))
			return goOn
		}},
		{"bodies fill the memory", trouble.BodiesFull, layout{prefill: 1, decode: 1, config: "prefill: {overdue_base: 60s}\ntokens: {mode: estimate}\nrequest: {max_bodies_bytes: 8388608}\n"}, func(_ *testing.T, f *fleet) func() {
			goOn := f.hold(f.prefill[0], enginesim.Before)
			for range 4 {
				go f.send(t.Context(), "/v1/completions", completion(strings.Repeat("word ", 400_000), 2, false))
			}
			return goOn
		}},
		{"a decode has another chat template", trouble.PairCounts, layout{prefill: 2, decode: 3, config: "routing: {decode: {mode: round-robin}}\n"}, func(t *testing.T, f *fleet) func() {
			f.fault(f.decode[1], enginesim.Fault{Mode: enginesim.FaultTemplate})
			for i := range 12 {
				b, err := json.Marshal(map[string]any{"model": "m", "messages": []map[string]string{{"role": "user", "content": fmt.Sprint("a chat", i)}}, "max_tokens": 3})
				require.NoError(t, err)
				f.send(t.Context(), "/v1/chat/completions", string(b))
			}
			return func() { f.publish(f.prefill[0], f.prefill[1], f.decode[0], f.decode[2]) }
		}},
		{"Envoy's clock is an hour behind", trouble.ClockOff, layout{prefill: 1, decode: 1, patch: func(yaml string) string {
			return strings.ReplaceAll(yaml, "%START_TIME(%s%3f)%", fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli()))
		}}, func(t *testing.T, f *fleet) func() {
			// The proxy's clock stands still, so only requests that come together differ by the same.
			f.await("twenty of them in a row to come together", func() bool {
				var burst sync.WaitGroup
				for range 22 {
					burst.Go(func() { send(f, 1) })
				}
				burst.Wait()
				what, _ := f.says(trouble.ClockOff)
				return what != ""
			})
			return nil
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, x.layout)
			what, _ := f.says(x.kind)
			require.Empty(t, what, "all is well before")
			mend := x.plant(t, f)
			f.shows(x.kind)
			if mend != nil {
				mend()
				f.wellAgain(x.kind)
			}
		})
	}
}

// TestAStoreThatIsGoneIsTrouble: etcd ends, and comes back.
func TestAStoreThatIsGoneIsTrouble(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, noCheck: true})
	etcd, err := stack.StartEtcd(f.ctx, stack.EtcdOptions{BinDir: binDir, Dir: t.TempDir()})
	require.NoError(t, err)
	require.NoError(t, f.plugin.Kill())
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "key"), []byte("sixteen bytes or more"), 0o600))
	f.plugin, err = stack.StartPlugin(f.ctx, stack.PluginOptions{BinDir: binDir, Dir: f.dir, Etcd: etcd.Endpoints, Listen: unused(t), Args: []string{"--log-level", "debug"},
		Config: fmt.Sprintf("leg: {key_file: %q, advertise: %q}\n", filepath.Join(f.dir, "key"), unused(t))})
	require.NoError(t, err)
	f.await("it to be ready", func() bool { return f.adminGet("/readyz") != "" })
	require.NoError(t, etcd.Kill())
	for _, kind := range []trouble.Kind{trouble.ViewStale, trouble.ReplicasUnlisted} {
		f.shows(kind)
	}
	require.NoError(t, etcd.Restart(f.ctx))
	for _, kind := range []trouble.Kind{trouble.ViewStale, trouble.ReplicasUnlisted} {
		f.wellAgain(kind)
	}
}

// TestWhereAllIsWellNoTroubleIsShown: traffic, a worker that leaves and one that joins, and
// clients that ask for what there is not. A minute here is a second.
func TestWhereAllIsWellNoTroubleIsShown(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 2, decode: 3}, func(t *testing.T, f *fleet) {
		f.publishAndWait(f.prefill[0], f.prefill[1], f.decode[0], f.decode[1])
		for i := range 60 {
			prompt := fmt.Sprint("minute ", i, strings.Repeat(" word", 20*(i%7)))
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 8, i%2 == 0)), prompt, 8)
			switch i % 15 {
			case 6:
				f.send(t.Context(), "/v1/completions", strings.Replace(completion(prompt, 1, false), `"m"`, `"unknown"`, 1))
			case 9:
				f.publishAndWait(f.prefill[0], f.prefill[1], f.decode[0])
			case 12:
				f.publishAndWait(f.prefill[0], f.prefill[1], f.decode[0], f.decode[1], f.decode[2])
			}
			require.Zero(t, f.metric("baton_trouble"), "%v", f.trouble())
			require.Empty(t, f.trouble())
		}
		require.NotContains(t, f.plugin.Log(), "msg=trouble")
	})
}
