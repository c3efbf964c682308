//go:build e2e && long

package envoytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// hostileMany is how many hostile requests there are, and hostileAtOnce how many of them
// are under way at once.
const (
	hostileMany   = 2000
	hostileAtOnce = 8
)

// TestHostileClientsAndSickWorkers is both properties in one run: among clients that do
// what they can, one worker is killed, one stopped, and one answers 404. No healthy
// worker is set aside, and those who ask for an answer get one.
func TestHostileClientsAndSickWorkers(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, l layout) *ward{
		"simulators": func(t *testing.T, l layout) *ward {
			l.prefill, l.decode, l.simArgs = 3, 4, []string{"--max-model-len", "4000", "--poison", "poison"}
			return simWard(t, l)
		},
		"mocks": func(t *testing.T, l layout) *ward { return mockWard(t, l, 3, 4, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, duplex := range []bool{false, true} {
				t.Run(fmt.Sprintf("full duplex %t", duplex), func(t *testing.T) {
					w := open(t, layout{fullDuplex: duplex, config: "request: {max_body_bytes: 200000}\n"})
					w.requireNobodyHealthyAside()
				})
			}
		})
	}
}

var asideLine = regexp.MustCompile(`msg="worker aside" worker_id=(\d+)`)

// hostileLog is what the plugin writes in such a run at debug level, and more.
const hostileLog = 256 << 20

// aside returns who was set aside, by the plugin's log, once that tells as many as the
// metric does. All of the log must be there.
func (w *ward) aside() (ids []string) {
	w.t.Helper()
	w.await("the log to tell of every worker that was set aside", func() bool {
		ids = ids[:0]
		for _, m := range asideLine.FindAllStringSubmatch(w.plugin.Log(), -1) {
			ids = append(ids, m[1])
		}
		return float64(len(ids)) == w.setAside()
	})
	require.True(w.t, w.plugin.KeepLog(hostileLog), "some of the log is gone: who was set aside cannot be told")
	return ids
}

func (w *ward) requireNobodyHealthyAside() {
	t := w.t
	t.Helper()
	require.True(t, w.plugin.KeepLog(hostileLog))
	for i := range 8 {
		require.True(t, w.once(i, i%2 == 0))
	}
	asking := w.ask()
	sick := w.beHostile()
	for _, p := range sick { // the last of them fell sick a moment ago
		w.awaitAside(p)
		if p.role == worker.Decode {
			// What no mate would serve either, and what clients end themselves, tells nothing of it.
			t.Logf("decode %s was charged with %g requests of the %g that it had from when it fell sick until it was set aside", p.id, p.charged, p.met)
			require.LessOrEqual(t, p.charged, 10.0+hostileAtOnce, "it is out within ten requests that show that it is sick, and those that it had already")
		}
	}
	asked, lost := asking()
	late := 0
	for i := range 40 {
		if !w.once(5000+i, i%2 == 0) {
			late++
		}
	}
	var healthy []string
	for _, id := range w.aside() {
		if !slices.ContainsFunc(sick, func(p *fallen) bool { return p.id.String() == id }) {
			healthy = append(healthy, id)
		}
	}
	require.Empty(t, healthy, "they are healthy and were set aside")
	t.Logf("%d asked for an answer among %d hostile requests, %d got none; then %d of 40; set aside: %v", asked, hostileMany, lost, late, w.aside())
	require.LessOrEqual(t, lost*20, asked, "those that fall sick may take a few requests with them")
	require.LessOrEqual(t, late, 2, "the sick are out of the traffic")
	require.Zero(t, w.metric("baton_panics_recovered_total"))
}

// ask has somebody ask, who only wants answers, until the function that it returns is
// called: that says how many were asked for, and how many did not come.
func (w *ward) ask() (end func() (asked, lost int)) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var asked, lost int
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if asked++; !w.once(1000+i, i%2 == 0) {
				lost++
			}
		}
	})
	return func() (int, int) {
		close(stop)
		wg.Wait()
		return asked, lost
	}
}

// fallen is a patient that has fallen sick.
type fallen struct {
	patient
	before, met       float64 // attempts that it had by then, and from then on until it was set aside
	innocent, charged float64 // the same of requests that it was charged with
	out               bool
}

func (w *ward) attempts(p patient) float64 {
	return w.metric("baton_worker_attempts_total", fmt.Sprintf(`worker_id="%s"`, p.id))
}

// charges is how many requests a worker was charged with: not those that it served, nor
// those whose fault was somebody else's.
func (w *ward) charges(p patient) float64 {
	of := fmt.Sprintf(`worker_id="%s"`, p.id)
	const name = "baton_worker_charges_total"
	return w.metric(name, of) - w.metric(name, of, `charge="ok"`) - w.metric(name, of, `charge="held"`)
}

// watch notes who of the sick has been set aside.
func (w *ward) watch(sick []*fallen) {
	for _, p := range sick {
		if !p.out {
			p.met, p.charged = w.attempts(p.patient)-p.before, w.charges(p.patient)-p.innocent
			p.out = slices.Contains(w.whoWentAside(), p.id)
		}
	}
}

// beHostile does what hostile clients do, has three workers fall sick meanwhile, and
// returns these.
func (w *ward) beHostile() (sick []*fallen) {
	strike := func(p patient, a ailment) {
		sick = append(sick, &fallen{patient: p, before: w.attempts(p), innocent: w.charges(p)})
		p.sicken(a)
	}
	rng := rand.New(rand.NewPCG(13, 1))
	acts := hostileActs()
	var hostile sync.WaitGroup
	slots := make(chan struct{}, hostileAtOnce)
	for i := range hostileMany {
		switch i {
		case hostileMany / 4:
			strike(w.of(worker.Decode)[0], ailment{mode: "error", when: "before", status: 404})
		case hostileMany / 2:
			strike(w.of(worker.Prefill)[0], ailment{mode: "gone"})
		case 3 * hostileMany / 4:
			strike(w.of(worker.Decode)[1], ailment{mode: "stopped"})
		}
		a := acts[rng.IntN(len(acts))]
		at := time.Duration(rng.IntN(40)) * time.Millisecond
		slots <- struct{}{}
		w.watch(sick)
		hostile.Go(func() {
			defer func() { <-slots }()
			a.do(w, i, at)
		})
	}
	hostile.Wait()
	return sick
}

// awaitAside waits until a worker has been set aside.
func (w *ward) awaitAside(p *fallen) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	require.NoError(w.t, stack.Await(ctx, "sick worker "+p.id.String()+" to be set aside", func() bool {
		w.watch([]*fallen{p})
		return p.out && slices.Contains(w.aside(), p.id.String())
	}))
}

// hostileAct is what a hostile client does; at is when.
type hostileAct struct {
	name string
	do   func(w *ward, i int, at time.Duration)
}

// ended sends a whole request and looks at nothing.
func ended(w *ward, path, body string, headers ...string) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	w.send(ctx, path, body, headers...)
}

// resetPoint is a moment in a request's life at which its client resets the connection.
type resetPoint struct {
	name  string
	send  func(head, body string) string // what it has written by then
	waits bool                           // a while, after that
	reads string                         // the answer holds this by then
}

func allOf(head, body string) string { return head + body }

// resetPoints are ten, from the connection's beginning to the answer's end.
var resetPoints = [10]resetPoint{
	{name: "before a byte", send: func(string, string) string { return "" }},
	{name: "in the head", send: func(head, _ string) string { return head[:len(head)/2] }},
	{name: "before the body", send: func(head, _ string) string { return head }},
	{name: "in the body", send: func(head, body string) string { return head + body[:len(body)/2] }, waits: true},
	{name: "before the body's last byte", send: func(head, body string) string { return head + body[:len(body)-1] }, waits: true},
	{name: "at the body's end", send: allOf},
	{name: "while its workers work", send: allOf, waits: true},
	{name: "at the answer's first byte", send: allOf, reads: "H"},
	{name: "at the answer's first event", send: allOf, reads: "data:"},
	{name: "before the answer's end", send: allOf, reads: "\"length\""},
}

// reset sends a streamed request on a connection of its own, and resets that at the point.
func (p *resetPoint) reset(w *ward, at time.Duration, i int) {
	c, err := net.Dial("tcp", strings.TrimPrefix(w.envoy.URL, "http://"))
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0)
	body := completion(fmt.Sprintf("it is reset %d", i), 30, p.reads != "" || i%2 == 0)
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", len(body))
	_, _ = io.WriteString(c, p.send(head, body))
	switch {
	case p.waits:
		_ = c.SetReadDeadline(time.Now().Add(at + time.Millisecond))
		_, _ = io.Copy(io.Discard, c)
	case p.reads != "":
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		var got []byte
		for piece := make([]byte, 64); !bytes.Contains(got, []byte(p.reads)); {
			n, err := c.Read(piece)
			if got = append(got, piece[:n]...); err != nil {
				return
			}
		}
	}
}

// hostileActs are all of them, the ten resets included.
func hostileActs() []hostileAct {
	acts := slices.Clone(otherActs)
	for i := range resetPoints {
		p := &resetPoints[i]
		acts = append(acts, hostileAct{"reset " + p.name, func(w *ward, i int, at time.Duration) { p.reset(w, at, i) }})
	}
	return acts
}

var otherActs = []hostileAct{
	{"a deadline that passes", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", completion(fmt.Sprintf("in a hurry %d", i), 300, i%2 == 0), "x-request-timeout-ms", fmt.Sprint(1+at.Milliseconds()))
	}},
	{"too large", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", completion(strings.Repeat("large ", 40_000), 4, false))
	}},
	{"over the context", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", completion("over the context "+strings.Repeat("long ", 5_000), 4, i%2 == 0))
	}},
	{"poison", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", completion("poison", 4, i%2 == 0))
	}},
	{"no such model", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", strings.Replace(completion("x", 4, false), `"m"`, `"nobody's"`, 1))
	}},
	{"a field that is forbidden", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", `{"model":"m","prompt":"x","bootstrap_room":7}`)
	}},
	{"no JSON", func(w *ward, i int, at time.Duration) { ended(w, "/v1/completions", `{"model":"m","prom`) }},
	{"no UTF-8", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", "{\"model\":\"m\",\"prompt\":\"\xff\xfe\"}")
	}},
	{"what the engine refuses", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":-4,"temperature":"hot"}`)
	}},
	{"another path", func(w *ward, i int, at time.Duration) { ended(w, "/v1/embeddings", `{"model":"m","input":"x"}`) }},
	{"a picture", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/chat/completions", fmt.Sprintf(`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":[{"type":"text","text":"what is it %d"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}`, i))
	}},
	{"slowly", func(w *ward, i int, at time.Duration) {
		r, to := io.Pipe()
		go func() {
			body := completion(fmt.Sprintf("slowly %d", i), 4, false)
			for rest := body; rest != ""; {
				n := min(40, len(rest))
				if _, err := io.WriteString(to, rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
				<-time.After(at / 4)
			}
			_ = to.Close()
		}()
		ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
		defer cancel()
		w.sendFrom(ctx, "/v1/completions", struct{ io.Reader }{r})
	}},
	{"reads slowly, and leaves", func(w *ward, i int, at time.Duration) {
		ctx, cancel := context.WithCancel(w.t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.envoy.URL+"/v1/completions", bytes.NewReader([]byte(completion(fmt.Sprintf("reads slowly %d", i), 300, true))))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		_, _ = io.ReadFull(resp.Body, make([]byte, 64))
		<-time.After(at)
	}},
}
