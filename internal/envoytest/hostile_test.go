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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// hostileMany is how many hostile requests there are.
const hostileMany = 2000

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

func (w *ward) requireNobodyHealthyAside() {
	t := w.t
	t.Helper()
	for i := range 8 {
		require.True(t, w.once(i, i%2 == 0))
	}
	sick := map[string]bool{}
	strike := func(p patient, a ailment) {
		sick[p.id.String()] = true
		p.sicken(a)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var asked, lost int
	wg.Go(func() { // those who only want an answer
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
	rng := rand.New(rand.NewPCG(13, 1))
	var hostile sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range hostileMany {
		switch i {
		case hostileMany / 4:
			strike(w.of(worker.Decode)[0], ailment{mode: "error", when: "before", status: 404})
		case hostileMany / 2:
			strike(w.of(worker.Prefill)[0], ailment{mode: "gone"})
		case 3 * hostileMany / 4:
			strike(w.of(worker.Decode)[1], ailment{mode: "stopped"})
		}
		a := hostileActs[rng.IntN(len(hostileActs))]
		at := time.Duration(rng.IntN(40)) * time.Millisecond
		slots <- struct{}{}
		hostile.Go(func() {
			defer func() { <-slots }()
			a.do(w, i, at)
		})
	}
	hostile.Wait()
	close(stop)
	wg.Wait()
	for _, m := range asideLine.FindAllStringSubmatch(w.plugin.Log(), -1) {
		require.Truef(t, sick[m[1]], "worker %s is healthy and was set aside\n%s", m[1], w.plugin.Log())
	}
	t.Logf("%d asked for an answer among %d hostile requests, %d got none", asked, hostileMany, lost)
	require.LessOrEqual(t, lost*20, asked, "those that fall sick may take a few requests with them")
	require.Zero(t, w.metric("baton_panics_recovered_total"))
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

// resets writes a part of a request to a connection of its own, and resets it.
func resets(w *ward, part func(head, body string) string, at time.Duration, i int) {
	c, err := net.Dial("tcp", strings.TrimPrefix(w.envoy.URL, "http://"))
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0)
	body := completion(fmt.Sprintf("it is reset %d", i), 200, i%2 == 0)
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", len(body))
	_, _ = io.WriteString(c, part(head, body))
	_ = c.SetReadDeadline(time.Now().Add(at + time.Millisecond))
	_, _ = io.Copy(io.Discard, c)
}

var hostileActs = []hostileAct{
	{"a deadline that passes", func(w *ward, i int, at time.Duration) {
		ended(w, "/v1/completions", completion(fmt.Sprintf("in a hurry %d", i), 300, i%2 == 0), "x-request-timeout-ms", fmt.Sprint(1+at.Milliseconds()))
	}},
	{"reset in the head", func(w *ward, i int, at time.Duration) {
		resets(w, func(head, _ string) string { return head[:len(head)/2] }, 0, i)
	}},
	{"reset before the body", func(w *ward, i int, at time.Duration) {
		resets(w, func(head, _ string) string { return head }, 0, i)
	}},
	{"reset in the body", func(w *ward, i int, at time.Duration) {
		resets(w, func(head, body string) string { return head + body[:len(body)/2] }, at, i)
	}},
	{"reset at once", func(w *ward, i int, at time.Duration) {
		resets(w, func(head, body string) string { return head + body }, 0, i)
	}},
	{"reset while it runs", func(w *ward, i int, at time.Duration) {
		resets(w, func(head, body string) string { return head + body }, at, i)
	}},
	{"reset in the answer", func(w *ward, i int, at time.Duration) {
		resets(w, func(head, body string) string { return head + body }, 3*at, i)
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
		resp, err := client.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		_, _ = io.ReadFull(resp.Body, make([]byte, 64))
		<-time.After(at)
	}},
}
