package modelfiles

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	neturl "net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tokenizerOf is a tokenizer.json whose tokens are bytes. The name makes it another file.
func tokenizerOf(name string) local.Files {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	return local.Files{Tokenizer: fmt.Appendf(nil, `{"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
		"added_tokens": [{"id": 256, "content": "<%s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
		"pre_tokenizer": null, "post_processor": null, "decoder": null,
		"model": {"type": "BPE", "byte_fallback": true, "vocab": {%s}, "merges": []}}`, name, strings.Join(vocab, ", "))}
}

func packed(t *testing.T, f local.Files) []byte {
	t.Helper()
	b, err := f.Pack()
	require.NoError(t, err)
	return b
}

// named is a worker with an address and files.
func named(t *testing.T, at, digest string, models ...string) *worker.Worker {
	t.Helper()
	a := netip.MustParseAddrPort(at)
	e, err := worker.ParseEndpoint(netip.AddrPortFrom(a.Addr(), 8000).String())
	require.NoError(t, err)
	return &worker.Worker{Endpoint: e, Models: models, ModelFiles: worker.ModelFiles{Digest: digest, Port: a.Port()}}
}

func TestSetsAreThoseThatAllWorkersOfAModelName(t *testing.T) {
	a, b, c := "sha256:a", "sha256:b", "sha256:c"
	sets, faults := Wanted([]*worker.Worker{
		named(t, "10.0.0.2:9904", a, "m", "adapter"), named(t, "10.0.0.1:9904", a, "m"), named(t, "10.0.0.1:9904", a, "m"),
		named(t, "10.0.0.3:9904", "", "m"),
		named(t, "[fd00::1]:9904", b, "n", "both"), named(t, "10.0.0.5:9904", c, "both"),
	})
	require.Equal(t, []Set{
		{Digest: a, Models: []string{"adapter", "m"}, From: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:9904"), netip.MustParseAddrPort("10.0.0.2:9904")}},
		{Digest: b, Models: []string{"n"}, From: []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:9904")}},
	}, sets)
	require.Equal(t, map[string]string{"both": "its workers have different files, 2 of them: expected the same --model-path for all"}, faults)
	require.Equal(t, "http://[fd00::1]:9904/model-files/sha256:b", url(sets[1].From[0], b))
}

// world is a plugin's follower, with what it has done.
type world struct {
	*Follower
	mu      sync.Mutex
	used    map[string]bool // guarded by mu
	counted map[string]int  // guarded by mu
	said    syncBuffer
	news    chan struct{}
}

// syncBuffer is a text that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func follow(t *testing.T, c Config) *world {
	t.Helper()
	w := &world{used: map[string]bool{}, counted: map[string]int{}, news: make(chan struct{}, 1)}
	note := func(f func()) {
		w.mu.Lock()
		f()
		w.mu.Unlock()
		select {
		case w.news <- struct{}{}:
		default:
		}
	}
	c.Use = func(model string, m *local.Model) {
		note(func() {
			if w.used[model] = m != nil; m == nil {
				delete(w.used, model)
			}
		})
	}
	c.Counted = func(outcome string) { note(func() { w.counted[outcome]++ }) }
	c.Log = slog.New(slog.NewTextHandler(&w.said, nil))
	c.Transport = &http.Transport{DisableKeepAlives: true}
	w.Follower = New(c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return w
}

// await waits until the models are the ones that use files.
func (w *world) await(t *testing.T, models ...string) {
	t.Helper()
	w.until(t, func() bool { return slices.Equal(slices.Sorted(maps.Keys(w.used)), models) })
}

// says waits until the log has the text: a line may follow what it tells of.
func (w *world) says(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(w.said.String(), text) }, 30*time.Second, time.Millisecond, text)
}

// until waits for a fact of what is guarded by mu.
func (w *world) until(t *testing.T, fact func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		ok := fact()
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.news:
		case <-late:
			t.Fatalf("not seen: used %v, counted %v\n%s", w.used, w.counted, &w.said)
		}
	}
}

// served is an address where files are served.
func served(t *testing.T, packed []byte) string {
	t.Helper()
	s := httptest.NewServer(Handler(packed))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestWhatAWorkerServesIsUsedAndKept(t *testing.T) {
	a := packed(t, tokenizerOf("a"))
	at, dir := served(t, a), filepath.Join(t.TempDir(), "new", "folder")
	w := follow(t, Config{Dir: dir, Configured: map[string]bool{"own": true}})
	w.Changed([]*worker.Worker{named(t, at, local.Digest(a), "m", "own")})
	w.await(t, "m")
	require.Equal(t, map[string]int{"fetched": 1}, w.counted)
	w.says(t, "the files of a model are read")

	// A plugin that starts anew reads the folder, also if nobody serves them.
	again := follow(t, Config{Dir: dir})
	again.Changed([]*worker.Worker{named(t, "127.0.0.1:1", local.Digest(a), "m")})
	again.await(t, "m")
	require.Equal(t, map[string]int{"kept": 1}, again.counted)

	// What was changed there is not what the worker names.
	require.NoError(t, os.WriteFile(w.fileOf(local.Digest(a)), a[:len(a)-1], 0o600))
	third := follow(t, Config{Dir: dir})
	third.Changed([]*worker.Worker{named(t, at, local.Digest(a), "m")})
	third.await(t, "m")
	require.Equal(t, map[string]int{"fetched": 1}, third.counted)
}

func TestAnotherWorkerServesThem(t *testing.T) {
	a := packed(t, tokenizerOf("a"))
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("other bytes")) }))
	t.Cleanup(liar.Close)
	away := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound))
	t.Cleanup(away.Close)
	none := served(t, packed(t, tokenizerOf("b")))
	w := follow(t, Config{})
	w.Changed([]*worker.Worker{
		named(t, strings.TrimPrefix(liar.URL, "http://"), local.Digest(a), "m"), named(t, strings.TrimPrefix(away.URL, "http://"), local.Digest(a), "m"),
		named(t, none, local.Digest(a), "m"), named(t, served(t, a), local.Digest(a), "m"),
	})
	w.await(t, "m")
}

// TestAWorkerIsAskedWithoutTheProxyOfTheEnvironment, and one that accepts connections and says
// nothing delays the others' files by less than the time that a file may take.
func TestAWorkerIsAskedWithoutTheProxyOfTheEnvironment(t *testing.T) {
	c := Config{}.withDefaults()
	direct, ok := c.Transport.(*http.Transport)
	require.True(t, ok)
	require.Nil(t, direct.Proxy)
	require.Less(t, direct.ResponseHeaderTimeout, c.Timeout)
	require.Positive(t, direct.ResponseHeaderTimeout)
}

func TestAWorkerThatServesThemLaterIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := packed(t, tokenizerOf("a"))
		var up atomic.Bool
		var asked atomic.Int64
		c := Config{Again: time.Minute, Use: func(string, *local.Model) {}, Transport: roundTripper(func(r *http.Request) *http.Response {
			asked.Add(1)
			rec := httptest.NewRecorder()
			if up.Load() {
				Handler(a).ServeHTTP(rec, r)
			} else {
				rec.WriteHeader(http.StatusBadGateway)
			}
			return rec.Result()
		})}
		var said bytes.Buffer
		c.Log = slog.New(slog.NewTextHandler(&said, nil))
		f := New(c)
		go func() { _ = f.Run(t.Context()) }()
		f.Changed([]*worker.Worker{named(t, "10.0.0.1:9904", local.Digest(a), "m")})
		<-time.After(150 * time.Second)
		synctest.Wait()
		require.Equal(t, int64(3), asked.Load())
		require.Equal(t, 1, strings.Count(said.String(), "cannot be read"), "it is said once: %s", &said)
		up.Store(true)
		<-time.After(time.Minute)
		synctest.Wait()
		require.Equal(t, int64(4), asked.Load())
		<-time.After(time.Hour)
		require.Equal(t, int64(4), asked.Load(), "it is held")
		require.Contains(t, said.String(), "the files of a model are read")
	})
}

type roundTripper func(*http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

func TestFilesThatAreNotUnderstoodAreReadOnce(t *testing.T) {
	bad := packed(t, local.Files{Tokenizer: []byte(`{"model": {"type": "Unigram"}}`)})
	junk := []byte("no archive")
	w := follow(t, Config{})
	ws := []*worker.Worker{named(t, served(t, bad), local.Digest(bad), "m")}
	w.Changed(ws)
	w.until(t, func() bool { return w.counted["refused"] == 1 })
	w.Changed(append(ws, named(t, serveRaw(t, junk), local.Digest(junk), "n")))
	w.until(t, func() bool { return w.counted["refused"] == 2 })
	require.Equal(t, map[string]int{"fetched": 2, "refused": 2}, w.counted)
	require.Empty(t, w.used)
}

func serveRaw(t *testing.T, b []byte) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestWorkersThatDifferHaveTheFilesOutOfUse(t *testing.T) {
	a, b := packed(t, tokenizerOf("a")), packed(t, tokenizerOf("b"))
	old, upgraded := named(t, served(t, a), local.Digest(a), "m"), named(t, served(t, b), local.Digest(b), "m")
	w := follow(t, Config{})
	w.Changed([]*worker.Worker{old})
	w.await(t, "m")
	w.Changed([]*worker.Worker{old, upgraded})
	w.await(t)
	w.says(t, "its workers have different files")
	w.Changed([]*worker.Worker{upgraded})
	w.await(t, "m")
	c := packed(t, tokenizerOf("c"))
	w.Changed([]*worker.Worker{named(t, served(t, c), local.Digest(c), "x")})
	w.await(t, "m", "x") // m keeps its files while its workers are away
	w.Changed([]*worker.Worker{upgraded})
	w.until(t, func() bool { return w.counted["fetched"] == 3 })
	w.await(t, "m", "x")
	require.Len(t, w.counted, 1)
}

func TestAtMostSoManySetsAreHeld(t *testing.T) {
	dir := t.TempDir()
	w := follow(t, Config{Most: 2, Dir: dir})
	var ws []*worker.Worker
	for i := range 3 {
		p := packed(t, tokenizerOf(fmt.Sprint(i)))
		ws = append(ws, named(t, served(t, p), local.Digest(p), fmt.Sprint("m", i)))
	}
	slices.SortFunc(ws, func(a, b *worker.Worker) int { return strings.Compare(a.ModelFiles.Digest, b.ModelFiles.Digest) })
	w.Changed(ws)
	w.await(t, slices.Sorted(slices.Values([]string{ws[0].Models[0], ws[1].Models[0]}))...)
	w.Changed(ws[1:]) // the first one makes room
	w.await(t, slices.Sorted(slices.Values([]string{ws[1].Models[0], ws[2].Models[0]}))...)
	w.says(t, "others have all places")
	kept, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, kept, 2)
}

func TestOtherFilesAreNotServed(t *testing.T) {
	a := packed(t, tokenizerOf("a"))
	for target, want := range map[string]int{
		"/model-files/" + local.Digest(a): 200, "/model-files/sha256:b": 404, "/model-files/": 404, "/": 404,
	} {
		rec := httptest.NewRecorder()
		Handler(a).ServeHTTP(rec, &http.Request{Method: http.MethodGet, URL: mustURL(t, target)})
		require.Equal(t, want, rec.Code, target)
	}
}

func mustURL(t *testing.T, target string) *neturl.URL {
	t.Helper()
	u, err := neturl.ParseRequestURI(target)
	require.NoError(t, err)
	return u
}
