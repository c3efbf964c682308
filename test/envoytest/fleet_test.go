//go:build e2e

package envoytest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/kubetest"
	"github.com/seed-60ae5743/baton/test/stack"
)

var (
	binDir    string
	envoyPath string
	clusters  kubetest.Clusters
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if crowd := os.Getenv(crowdIs); crowd != "" {
			return playCrowd(crowd)
		}
		var err error
		if envoyPath, err = stack.FindEnvoy(os.Getenv("ENVOY")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if binDir = os.Getenv(childBin); binDir != "" {
			return kubetest.Main{M: m, Clusters: &clusters}.Run()
		}
		if binDir, err = os.MkdirTemp("", "baton-bin-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(binDir)
		if err := stack.Build(binDir, "invariants,example", raceEnabled, "./cmd/extproc", "./test/cmd/enginesim", "./test/cmd/devetcd"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return kubetest.Main{M: m, Clusters: &clusters}.Run()
	}())
}

// fleet is one deployment under test.
type fleet struct {
	t      *testing.T
	dir    string
	ctx    context.Context //nolint:containedctx // the test's
	envoy  *stack.Envoy
	plugin *stack.Plugin
	config string
	cgroup string

	file       string        // see layout.workers
	pools      string        // of the plugin, beside the file; set by describe
	sent       *atomic.Int64 // requests; copies of a fleet share it
	fullDuplex bool
	workers    []*stack.Worker
	prefill    []*stack.Worker
	decode     []*stack.Worker
	listen     string
	passed     *os.File             // the plugin's socket, where the test holds it as systemd does; set by describe
	gate       *gate                // of legs that the plugin sends itself, where the test has one
	gateway    *envoy.GatewayParams // its own copy of the layout's: beforeEnvoy may change it
}

// layout says what a fleet is made of.
type layout struct {
	// name goes before that of the body mode: long tests begin sooner so than in a subtest of
	// their own, each of which waits behind all tests.
	name            string
	prefill, decode int
	aggregated      int
	fullDuplex      bool
	config          string   // of the plugin
	simArgs         []string // of every worker
	prefillArgs     []string
	decodeArgs      []string
	envoy           envoy.Params
	gateway         *envoy.GatewayParams // a Gateway API data plane in place of envoy; fullDuplex and the plugin's socket hold for it too
	twoLegs         bool                 // with gateway: patched to carry both legs
	listen          string               // of the plugin; default: a unix socket
	beforeEnvoy     func(*fleet)
	workers         string                        // the file of workers that the plugin reads; default workers.yaml, which the fleet writes
	describe        func(*fleet)                  // changes what is said of the workers, before it is published
	patch           func(envoyYAML string) string // changes Envoy's rendered configuration
	noCheck         bool                          // the test ends the plugin itself: do not check for leaks
	threads         int                           // of Envoy; default: one
	cgroup          string                        // cgroup.procs of the one that plugin and Envoy run in; default: the test's
	alone           bool                          // the test needs the machine: its body modes follow each other
}

// mirrors is for a test of the legs that Envoy mirrors.
var mirrors = envoy.Params{Mirrors: true}

// both runs a test in both body modes, side by side.
func both(t *testing.T, l layout, f func(t *testing.T, fl *fleet)) {
	t.Helper()
	bodyModes(t, l, func(t *testing.T, l layout) { f(t, newFleet(t, l)) })
}

// either is both for a test whose subject is who comes, goes or is silent, and not what passes.
func either(t *testing.T, l layout, f func(t *testing.T, fl *fleet)) {
	t.Helper()
	eitherMode(t, l, func(t *testing.T, l layout) { f(t, newFleet(t, l)) })
}

// eitherMode is bodyModes for such a test.
func eitherMode(t *testing.T, l layout, f func(t *testing.T, l layout)) {
	t.Helper()
	inModes(t, l, oneMode(t.Name()+l.name), f)
}

// oneMode is the body mode of such a test, drawn by its name; among the long tests it is both.
func oneMode(name string) []bool {
	if everyMode {
		return eachMode
	}
	return []bool{crc32.ChecksumIEEE([]byte(name))%2 == 0}
}

// eachMode says of each body mode whether it is full duplex.
var eachMode = []bool{false, true}

// bodyModes runs a test with the layout in both body modes, side by side.
func bodyModes(t *testing.T, l layout, f func(t *testing.T, l layout)) {
	t.Helper()
	inModes(t, l, eachMode, f)
}

func modeName(duplex bool) string {
	if duplex {
		return "full-duplex"
	}
	return "buffered"
}

func inModes(t *testing.T, l layout, duplexes []bool, f func(t *testing.T, l layout)) {
	t.Helper()
	for _, duplex := range duplexes {
		t.Run(path.Join(l.name, modeName(duplex)), func(t *testing.T) {
			if !l.alone {
				t.Parallel()
			}
			l := l
			l.fullDuplex = duplex
			f(t, l)
		})
	}
}

func newFleet(t *testing.T, l layout) *fleet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &fleet{t: t, dir: t.TempDir(), ctx: ctx, sent: new(atomic.Int64), file: l.workers, config: l.config, cgroup: l.cgroup, fullDuplex: l.fullDuplex}
	t.Cleanup(func() {
		if t.Failed() {
			f.dump()
		}
		cancel()
		for _, w := range f.workers {
			<-w.Done()
		}
		if f.plugin != nil {
			<-f.plugin.Done()
		}
		if f.envoy != nil {
			<-f.envoy.Done()
		}
	})
	var wg sync.WaitGroup
	start := func(role string, n int, base int, list *[]*stack.Worker, extra []string) {
		*list = make([]*stack.Worker, n)
		for i := range n {
			wg.Go(func() {
				args := append([]string{"--role", role, "--id", strconv.Itoa(base + i), "--model", "m"}, l.simArgs...)
				w, err := stack.StartWorker(ctx, binDir, append(args, extra...)...)
				if err != nil {
					t.Errorf("start worker: %v", err)
					return
				}
				(*list)[i] = w
			})
		}
	}
	var agg []*stack.Worker
	start("prefill", l.prefill, 100, &f.prefill, l.prefillArgs)
	start("decode", l.decode, 200, &f.decode, l.decodeArgs)
	start("aggregated", l.aggregated, 300, &agg, nil)
	wg.Wait()
	require.False(t, t.Failed(), "a worker did not start")
	f.workers = append(append(append(f.workers, f.prefill...), f.decode...), agg...)
	if l.describe != nil {
		l.describe(f)
	}
	f.publish(f.workers...)
	f.listen = l.listen
	if l.gateway != nil {
		own := *l.gateway
		f.gateway = &own
	}
	f.startPlugin()
	p := l.envoy
	p.FullDuplex = l.fullDuplex
	if p.PluginSocket == "" {
		p.PluginSocket = f.plugin.Socket
	}
	if l.beforeEnvoy != nil {
		l.beforeEnvoy(f)
	}
	o := stack.EnvoyOptions{Path: envoyPath, Dir: f.dir, Params: p, TwoLegs: l.twoLegs, Concurrency: l.threads, Cgroup: l.cgroup}
	if l.gateway != nil {
		o.Gateway = f.gatewayParams(l)
	}
	var err error
	if l.patch != nil {
		config, err := o.Render(ctx)
		require.NoError(t, err)
		o.Config = []byte(l.patch(string(config)))
		require.NotEqual(t, string(config), string(o.Config), "the patch changes something")
	}
	f.envoy, err = stack.StartEnvoy(ctx, o)
	require.NoError(t, err)
	if !l.noCheck {
		t.Cleanup(f.checkIdle)
	}
	return f
}

// gatewayParams are the layout's, with this fleet's plugin, and its decode workers
// and those that need no prefill as the pool, where the layout says nothing.
func (f *fleet) gatewayParams(l layout) *envoy.GatewayParams {
	p := *f.gateway
	p.Buffered, p.NoServed = !l.fullDuplex, !saysServed()
	if p.PluginSocket == "" {
		p.PluginSocket = f.plugin.Socket
	}
	if p.Pool == nil {
		for _, w := range f.workers[len(f.prefill):] {
			p.Pool = append(p.Pool, w.Info.Endpoint.String())
		}
	}
	return &p
}

// listen returns a listener of the test's own, at a port that nobody else gets once it
// is closed.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", unused(t))
	require.NoError(t, err)
	return l
}

func (f *fleet) startPlugin() {
	f.t.Helper()
	f.startPluginAs(false)
}

// startUnready does not wait until the plugin is ready.
func (f *fleet) startUnready() {
	f.t.Helper()
	f.startPluginAs(true)
}

func (f *fleet) startPluginAs(notWait bool) {
	f.t.Helper()
	var err error
	f.plugin, err = stack.StartPlugin(f.ctx, stack.PluginOptions{
		BinDir: binDir, Dir: f.dir, Workers: filepath.Join(f.dir, cmp.Or(f.file, "workers.yaml")), Config: f.config,
		Args: []string{"--log-level", "debug"}, Listen: f.listen, Cgroup: f.cgroup, Pools: f.pools, Passed: f.passed, NotWait: notWait,
	})
	require.NoError(f.t, err)
}

// publish writes the discovery file.
func (f *fleet) publish(ws ...*stack.Worker) {
	f.t.Helper()
	infos := make([]*worker.Worker, 0, len(ws))
	for _, w := range ws {
		infos = append(infos, w.Info)
	}
	require.NoError(f.t, file.Write(filepath.Join(f.dir, "workers.yaml"), infos))
}

// dump logs what helps to see why a test failed. What did not start is nil.
func (f *fleet) dump() {
	if f.plugin != nil {
		f.dumpDecisions()
		f.t.Logf("plugin's log:\n%s", lastLines(f.plugin.Log(), 600))
	}
	if f.envoy != nil {
		if stats, err := f.envoy.Ask(f.ctx, http.MethodGet, "/stats?usedonly&filter=extproc|ext_proc|access_log"); err == nil {
			f.t.Logf("envoy's stats:\n%s", stats)
		}
		f.t.Logf("envoy's log:\n%s", lastLines(f.envoy.Log(), 30))
	}
	for _, w := range f.workers {
		f.t.Logf("%s:\n%s", w.Name, lastLines(w.Log(), 8))
	}
}

func (f *fleet) dumpDecisions() {
	resp, err := http.Get(f.plugin.Admin + "/debug/decisions?n=20")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	var d struct {
		Decisions []struct {
			Time            time.Time
			Attempt, Status int
			Outcome, Detail string
			Leg             string `json:"prefill_leg"`
			LegDetail       string `json:"prefill_leg_detail"`
			RequestID       string `json:"request_id"`
			Timings         map[string]float64
		}
	}
	if json.NewDecoder(resp.Body).Decode(&d) != nil {
		return
	}
	for _, x := range d.Decisions {
		f.t.Logf("%s %.8s #%d %s %s %d leg=%s %s %v", x.Time.Format("05.000"), x.RequestID, x.Attempt, x.Outcome, x.Detail, x.Status, x.Leg, x.LegDetail, x.Timings)
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of the transport or of reading the body
	took   time.Duration
	first  time.Duration // to the first byte of the body
	chunks int
}

// text returns the words of an answer, streamed or not.
func (r *reply) text() string {
	var out strings.Builder
	take := func(data string) {
		var m struct {
			Choices []struct {
				Text    string
				Delta   struct{ Content string }
				Message struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(data), &m) == nil {
			for _, c := range m.Choices {
				out.WriteString(c.Text + c.Delta.Content + c.Message.Content)
			}
		}
	}
	if !strings.HasPrefix(r.body, "data:") {
		take(r.body)
		return out.String()
	}
	for line := range strings.SplitSeq(r.body, "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			take(data)
		}
	}
	return out.String()
}

var client = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// send makes one request through Envoy. headers are name, value, name, value…
func (f *fleet) send(ctx context.Context, path, body string, headers ...string) *reply {
	return f.sendFrom(ctx, path, strings.NewReader(body), headers...)
}

// sendFrom is send for a body that comes from a reader.
func (f *fleet) sendFrom(ctx context.Context, path string, body io.Reader, headers ...string) *reply {
	f.sent.Add(1)
	return post(ctx, f.envoy.URL+path, body, headers...)
}

// post sends a request and reads its whole answer.
func post(ctx context.Context, url string, body io.Reader, headers ...string) *reply {
	start := time.Now()
	r := &reply{}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		r.err = err
		return r
	}
	if b, ok := body.(*sizedBody); ok {
		req.ContentLength = int64(b.size)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		r.err, r.took = err, time.Since(start)
		return r
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	var buf bytes.Buffer
	br := bufio.NewReader(resp.Body)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 && r.first == 0 {
			r.first = time.Since(start)
		}
		if bytes.HasPrefix(line, []byte("data:")) {
			r.chunks++
		}
		buf.Write(line)
		if err != nil {
			if err != io.EOF {
				r.err = err
			}
			break
		}
	}
	r.body, r.took = buf.String(), time.Since(start)
	return r
}

func completion(prompt string, tokens int, stream bool) string {
	b, _ := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": stream})
	return string(b)
}

// requireAnswer checks that r is the whole, right answer to prompt.
func requireAnswer(t *testing.T, r *reply, prompt string, tokens int) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, strings.TrimSpace(enginesim.Answer(enginesim.Tokenize(prompt), tokens)), strings.TrimSpace(r.text()), r.body)
}

// await asks until ok or ten seconds have gone: a slow machine takes some, and no
// lease of KV is over by then.
func (f *fleet) await(what string, ok func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, 10*time.Second)
	defer cancel()
	require.NoError(f.t, stack.Await(ctx, what, ok))
}

// metric returns the sum of a metric's lines whose labels hold all of parts; 0
// for a counter that has not counted yet.
func (f *fleet) metric(name string, parts ...string) float64 {
	v, _ := f.gauge(name, parts...)
	return v
}

// gauge is metric for one that must be there.
func (f *fleet) gauge(name string, parts ...string) (sum float64, found bool) {
	f.t.Helper()
lines:
	for _, line := range f.series(name) {
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue lines
			}
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
			sum, found = sum+v, true
		}
	}
	return sum, found
}

// series returns the lines of metrics, of which no other one is written, and nothing is
// compressed: tests ask often.
func (f *fleet) series(names ...string) (out []string) {
	f.t.Helper()
	families := slices.Clone(names)
	for _, name := range names {
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			families = append(families, strings.TrimSuffix(name, part))
		}
	}
	req, err := http.NewRequest(http.MethodGet, f.plugin.Admin+"/metrics?"+url.Values{"name[]": families}.Encode(), nil)
	require.NoError(f.t, err)
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(f.t, err)
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		name, _, _ := strings.Cut(s.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		if slices.Contains(names, name) {
			out = append(out, s.Text())
		}
	}
	return out
}

func alive(w *stack.Worker) bool {
	select {
	case <-w.Done():
		return false
	default:
		return true
	}
}

// state returns a worker's state; ok is false when it does not answer.
func (f *fleet) state(w *stack.Worker) (enginesim.State, bool) {
	ctx, cancel := context.WithTimeout(f.ctx, 2*time.Second)
	defer cancel()
	s, err := w.Sim.State(ctx, false)
	return s, err == nil
}

// checkIdle is the leak check at a test's end: no booking, no open attempt, no
// KV held, no broken rule.
func (f *fleet) checkIdle() {
	if f.t.Failed() {
		return
	}
	_, known := f.gauge("baton_worker_prefill_requests")
	require.True(f.t, known, "the plugin shows what is booked")
	// Of an answer whose log has broken nothing is known for 12 s.
	ctx, cancel := context.WithTimeout(f.ctx, 20*time.Second)
	defer cancel()
	var left []string
	err := stack.Await(ctx, "nothing to be booked or in flight", func() bool {
		left = slices.DeleteFunc(f.series(
			"baton_worker_prefill_requests", "baton_worker_prefill_tokens", "baton_worker_decode_requests", "baton_worker_decode_blocks",
			"baton_streams_in_flight", "baton_body_bytes_in_flight",
		), func(line string) bool { return strings.HasSuffix(line, " 0") })
		return len(left) == 0
	})
	require.NoError(f.t, err, "%s", left)
	for _, w := range f.workers {
		if !alive(w) {
			continue
		}
		var s enginesim.State
		ctx, cancel := context.WithTimeout(f.ctx, 10*time.Second)
		err := stack.Await(ctx, "no KV to be held by "+w.Name, func() (ok bool) {
			s, ok = f.state(w)
			return !ok || s.KVHeldBlocks == 0
		})
		cancel()
		require.NoError(f.t, err, "%+v", s)
		if s, ok := f.state(w); ok {
			require.Empty(f.t, s.Violations, w.Name)
		}
	}
	require.Zero(f.t, f.metric("baton_panics_recovered_total"))
	require.NotContains(f.t, f.plugin.Log(), "DATA RACE")
}
