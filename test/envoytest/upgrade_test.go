//go:build e2e

package envoytest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// holdsSocket makes the plugin's socket and holds it while plugins come and go, as systemd
// does for a socket unit.
func holdsSocket(f *fleet) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(f.dir, "extproc.sock"), Net: "unix"})
	require.NoError(f.t, err)
	l.SetUnlinkOnClose(false)
	f.passed, err = l.File()
	require.NoError(f.t, err)
	require.NoError(f.t, l.Close())
	f.t.Cleanup(func() { _ = f.passed.Close() })
}

// TestOnePluginIsReplacedUnderLoad is docs/install.md#one-plugin: streams run and requests come
// while the plugin is replaced, twice. systemd holds its socket, so what comes meanwhile waits.
func TestOnePluginIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 2, decode: 2, decodeArgs: []string{"--decode-us-per-token", "50000"}, describe: holdsSocket}, engine)
			both(t, l, func(t *testing.T, f *fleet) {
				require.Zero(t, f.replacedUnderLoad(replaced))
				require.Contains(t, f.plugin.Log(), "takes requests")
			})
		})
	}
}

// replacing is a load while a plugin is replaced twice.
type replacing struct {
	streams, requests int
	every             time.Duration // between requests
}

// replacedUnderLoad replaces the plugin twice, and returns how many requests were lost. No
// stream is.
func (f *fleet) replacedUnderLoad(r replacing) int {
	t := f.t
	t.Helper()
	long := int(time.Duration(r.requests) * r.every / (50 * time.Millisecond))
	var streams, short sync.WaitGroup
	var lost, slowest atomic.Int64
	begin := func(wg *sync.WaitGroup, prompt string, tokens int, stream bool) {
		wg.Go(func() {
			a := f.send(t.Context(), "/v1/completions", completion(prompt, tokens, stream))
			if a.err != nil || a.status != 200 || strings.TrimSpace(a.text()) != strings.TrimSpace(enginesim.Answer(enginesim.Tokenize(prompt), tokens)) {
				t.Logf("%s after %s: %d %v %.300s", prompt, a.took, a.status, a.err, a.body)
				lost.Add(1)
			}
			if tokens < long {
				slowest.Store(max(slowest.Load(), int64(a.took)))
			}
		})
	}
	for i := range r.streams {
		begin(&streams, fmt.Sprintf("stream %d runs while the plugin is replaced", i), long, true)
	}
	f.await("all streams to run", func() bool { return f.running(f.decode) == r.streams })
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	swapped := make(chan struct{}, 1)
	swap := func() {
		require.NoError(t, f.plugin.Signal(syscall.SIGTERM))
		<-f.plugin.Done()
		require.NoError(t, f.plugin.Err())
		<-time.After(100 * time.Millisecond) // RestartSec
		f.startPlugin()
		swapped <- struct{}{}
	}
	for i := range r.requests {
		begin(&short, fmt.Sprintf("request %d while the plugin is replaced", i), 3, i%2 == 0)
		if i == r.requests/4 || i == r.requests*5/8 {
			if i != r.requests/4 {
				<-swapped
			}
			go swap()
		}
		<-tick.C
	}
	<-swapped
	short.Wait()
	streams.Wait()
	t.Logf("%d streams, %d requests: %d lost, the slowest request took %s", r.streams, r.requests, lost.Load(), time.Duration(slowest.Load()).Round(time.Millisecond))
	return int(lost.Load())
}

// TestAPluginListensOnceItHasAView: until then nobody is connected, so that Envoy tries again
// or goes to another replica. Its page says why.
func TestAPluginListensOnceItHasAView(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, noCheck: true})
	require.NoError(t, f.plugin.Kill())
	list := filepath.Join(f.dir, "workers.yaml")
	away := list + ".away"
	require.NoError(t, os.Rename(list, away))
	f.startUnready()
	f.await("it to say what it waits for", func() bool {
		return strings.Contains(f.plugin.Log(), "the plugin takes no requests until it has read the list of workers")
	})
	_, err := net.Dial("unix", f.plugin.Socket)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	answer := make(chan *reply, 1)
	const prompt = "it waits for the plugin"
	go func() { answer <- f.send(t.Context(), "/v1/completions", completion(prompt, 3, false)) }()
	require.NoError(t, os.Rename(away, list))
	requireAnswer(t, <-answer, prompt, 3)
}
