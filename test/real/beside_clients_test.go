//go:build real

package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/stack"
)

// seenRequest is a request as its client saw it.
type seenRequest struct {
	Client, Path string
	Stream       bool
	Began, Took  float64 // seconds, since 1970
	Begun, Whole bool    // something of the answer has come; all of it
	Error        string
	Status       int
	Typed        bool // the error is one that was sent, and not a connection's
	Decision, ID string
}

func (a *seenRequest) String() string {
	began := time.UnixMilli(int64(1000 * a.Began))
	return fmt.Sprintf("%s %s stream %t at %s after %.2f s, id %s: begun %t, status %d: %s; %.300s",
		a.Client, a.Path, a.Stream, began.Format("15:04:05.000"), a.Took, a.ID, a.Begun, a.Status, a.Error, a.Decision)
}

// answerer is who answers, in x-baton-decision: the worker's id.
var answerer = regexp.MustCompile(`; (?:decode|aggregated)=(\d+)/`)

// by returns the id of the worker that has answered, or "".
func (a *seenRequest) by() string {
	m := answerer.FindAllStringSubmatch(a.Decision, -1)
	if len(m) == 0 {
		return ""
	}
	return m[len(m)-1][1]
}

// way is a client and how it asks.
func (a *seenRequest) way() string { return fmt.Sprint(a.Client, " ", a.Stream) }

// steady is the client that asks at a steady rate.
const (
	steady   = "plain"
	steadily = time.Second
)

// libraries are the clients that ask without a pause.
func (b *beside) libraries() []string {
	if b.at.noMessages {
		return []string{"openai"}
	}
	return []string{"openai", "anthropic"}
}

// clients starts all of them. They end by the function that is returned, each with the answer that
// it is reading.
func (b *beside) clients() (end func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var over sync.WaitGroup
	var ends []func()
	for _, library := range b.libraries() {
		ends = append(ends, b.library(&over, library))
	}
	over.Go(func() { b.steady(ctx) })
	return func() {
		cancel()
		for _, end := range ends {
			end()
		}
		over.Wait()
	}
}

// library starts the client of that name.
func (b *beside) library(over *sync.WaitGroup, name string) (end func()) {
	b.t.Helper()
	cmd := exec.Command(filepath.Join(home, "clients", "bin", "python"), filepath.Join(b.root, "test", "real", "clients", "ceaseless.py"), b.envoy.URL, b.engines[0].Served, name)
	stack.EndWithParent(cmd, syscall.SIGKILL)
	in, err := cmd.StdinPipe()
	require.NoError(b.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b.t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(b.t, cmd.Start())
	t := b.t
	over.Go(func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			a := &seenRequest{}
			if err := json.Unmarshal(lines.Bytes(), a); err != nil {
				t.Errorf("%s: %v: %s", name, err, lines.Text())
				continue
			}
			b.note(a)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", name, err, said.String())
		}
	})
	return func() { _ = in.Close() }
}

// steady asks at a steady rate, whole and streamed in turn, until ctx ends.
func (b *beside) steady(ctx context.Context) {
	var over sync.WaitGroup
	defer over.Wait()
	tick := time.NewTicker(steadily)
	defer tick.Stop()
	for n := uint64(time.Now().UnixNano()); ; n++ {
		over.Go(func() {
			body := fields{"model": b.engines[0].Served, "prompt": fmt.Sprint(n, words(n, 150)), "max_tokens": 24, "stream": n%2 == 0}
			b.note(b.post(body))
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// post sends one request, and tells what comes of it.
func (b *beside) post(body fields) *seenRequest {
	a, rest := b.begin(body)
	a.finish(rest)
	return a
}

// begin sends a request, and returns when its answer's head has come. Without one there is no
// rest.
func (b *beside) begin(body fields) (a *seenRequest, rest io.ReadCloser) {
	a = &seenRequest{Client: steady, Path: "/v1/completions", Stream: body["stream"] == true, Began: float64(time.Now().UnixMilli()) / 1000}
	text, err := json.Marshal(body)
	if err != nil {
		a.Error = err.Error()
		return a, nil
	}
	req, err := http.NewRequest(http.MethodPost, b.envoy.URL+a.Path, bytes.NewReader(text)) //nolint:noctx // the client's time-out is that of the body, too
	if err != nil {
		a.Error = err.Error()
		return a, nil
	}
	req.Header.Set("content-type", "application/json")
	req.Header.Set("x-debug-decision", "1")
	client := http.Client{Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		a.Error = err.Error()
		return a, nil
	}
	a.Status, a.Decision, a.ID = resp.StatusCode, resp.Header.Get("x-baton-decision"), resp.Header.Get("x-request-id")
	return a, resp.Body
}

// finish reads the rest of an answer.
func (a *seenRequest) finish(rest io.ReadCloser) {
	defer func() { a.Took = float64(time.Now().UnixMilli())/1000 - a.Began }()
	if rest == nil {
		return
	}
	defer rest.Close()
	all, err := io.ReadAll(rest)
	a.read(string(all), err)
}

// openStream sends a request for a long stream, and returns once its answer runs, with the
// engine that answers. end reads the rest.
func (b *beside) openStream(tokens int) (by *Engine, end func()) {
	b.t.Helper()
	a, rest := b.begin(fields{"model": b.engines[0].Served, "prompt": words(uint64(time.Now().UnixNano()), 100), "max_tokens": tokens, "ignore_eos": true, "stream": true})
	require.NotNil(b.t, rest, a.Error)
	lines := bufio.NewReader(rest)
	var had bytes.Buffer
	for bytes.Count(had.Bytes(), []byte("data: {")) < 10 {
		line, err := lines.ReadString('\n')
		require.NoError(b.t, err, had.String())
		had.WriteString(line)
	}
	b.look()
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.engines, func(e *Engine) bool { return endpointOf(e) == b.ids[a.by()] })
	require.GreaterOrEqual(b.t, i, 0, a.Decision)
	return b.engines[i], func() {
		a.finish(struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&had, lines), rest})
		b.note(a)
	}
}

// read judges what has come of an answer.
func (a *seenRequest) read(all string, err error) {
	got := &answer{header: http.Header{"Content-Type": {"application/json"}}, body: all}
	if a.Stream {
		got.header.Set("content-type", "text/event-stream")
	}
	got.read()
	a.Begun = a.Status == http.StatusOK && got.text != ""
	a.Typed = strings.Contains(all, `"error":`)
	last := `"finish_reason":"`
	if a.Stream {
		last = "data: [DONE]"
	}
	a.Whole = err == nil && a.Status == http.StatusOK && !a.Typed && strings.Contains(all, last)
	if !a.Whole {
		a.Error = fmt.Sprintf("%v: %.300s", err, all[max(0, len(all)-300):])
	}
}

func (b *beside) note(a *seenRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, a)
}

// servedMore waits until each client has been served so many times more, both ways.
func (b *beside) servedMore(times int) {
	b.t.Helper()
	ways := 2 * (1 + len(b.libraries()))
	count := func() map[string]int {
		b.mu.Lock()
		defer b.mu.Unlock()
		n := map[string]int{}
		for _, a := range b.asked {
			if a.Whole {
				n[a.way()]++
			}
		}
		return n
	}
	before := count()
	b.await("all clients to be served", func() bool {
		n, enough := count(), 0
		for way := range n {
			if n[way] >= before[way]+times {
				enough++
			}
		}
		return enough == ways
	})
}

// phase has the clients ask while something is done, and judges what they saw.
func (b *beside) phase(t *testing.T, what string, do func() (seen string)) {
	defer func(before *testing.T) { b.t = before }(b.t)
	b.t, b.intact = t, false
	b.mu.Lock()
	from := len(b.moves)
	b.asked = nil
	b.mu.Unlock()
	b.fresh = -b.freshPicks()
	end := sync.OnceFunc(b.clients())
	defer end()
	b.servedMore(1)
	seen := do()
	b.awaitService(b.engines...)
	b.servedMore(2)
	end()
	b.settled()
	b.look()
	b.intact = true
	b.judge(what, seen, from)
}

// verdict is what clients saw in a phase.
type verdict struct {
	Column   string  `json:"column"`
	Phase    string  `json:"phase"`
	Requests int     `json:"requests"`
	Served   int     `json:"served"`
	Failed   int     `json:"failed"` // before the answer had begun
	Cut      int     `json:"cut"`    // answers that had begun
	Slowest  float64 `json:"slowest_s"`
	// Of the cut: those whose client was sent an error, and did not merely lose its connection.
	CutTold int `json:"cut_told"`
	// Cut by no death of its decode worker, or so that the client cannot see it.
	CutWrongly int `json:"cut_wrongly"`
	// How often a worker was set aside to which nothing was done: that was well, and whose own
	// page was late.
	HealthyAside int `json:"healthy_aside"`
	LateAside    int `json:"late_aside"`
}

// judge tells what clients saw, and what is wrong with it.
func (b *beside) judge(what, seen string, from int) {
	t := b.t
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	v := verdict{Column: b.at.name, Phase: what, Requests: len(b.asked)}
	by := map[string]int{}
	for _, a := range b.asked {
		by[a.Client]++
		b.weigh(&v, a)
	}
	doubts := 0
	for i := range b.moves[from:] {
		m := &b.moves[from+i]
		t.Logf("%s: %s is %s: %s", m.at.Format("15:04:05.000"), m.endpoint, m.to, m.because)
		switch {
		case during(b.ill[m.endpoint], m.at):
		case m.to == "aside" && during(b.late[m.endpoint], m.at):
			v.LateAside++
		case m.to == "aside":
			v.HealthyAside++
		case m.to == "doubted":
			doubts++
		}
	}
	require.NoError(t, keepRow(b.root, &v))
	var parts []string
	for _, c := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%d %s", by[c], c))
	}
	t.Logf("%s: of the cut %d had an error event; %g fresh attempts; %d times aside whose page took more than %s; %s",
		what, v.CutTold, b.fresh+b.freshPicks(), v.LateAside, lateAfter, seen)
	tellf(t, b.at.engine, "clients beside faults, "+b.at.name+": "+what, "%d requests (%s), %d served, %d failed, %d cut after they had begun; slowest %.1f s; the healthy: %d times aside, %d doubted",
		v.Requests, strings.Join(parts, ", "), v.Served, v.Failed, v.Cut, v.Slowest, v.HealthyAside, doubts)
	require.Equal(t, []int{0, 0, 0}, []int{v.Failed, v.CutWrongly, v.HealthyAside}, "failed, cut without a death, healthy and set aside")
}

// weigh counts a request.
func (b *beside) weigh(v *verdict, a *seenRequest) {
	v.Slowest = max(v.Slowest, a.Took)
	switch {
	case a.Whole:
		v.Served++
		return
	case !a.Begun:
		v.Failed++
	default:
		v.Cut++
		if a.Typed {
			v.CutTold++
		}
		if !b.killed[a.by()] || a.Error == "" {
			v.CutWrongly++
		}
	}
	b.t.Log(a)
}

func rowsFile(root string) string { return filepath.Join(root, ".run", "gate", "beside.json") }

// forgetRows takes a column out of the file: it is run anew.
func forgetRows(root, column string) error {
	text, err := os.ReadFile(rowsFile(root))
	if os.IsNotExist(err) {
		return nil
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		var v verdict
		if json.Unmarshal([]byte(line), &v) == nil && v.Column != column {
			kept.WriteString(line)
		}
	}
	if err == nil {
		err = os.WriteFile(rowsFile(root), []byte(kept.String()), 0o600)
	}
	return err
}

// keepRow writes a phase's verdict to the file.
func keepRow(root string, v *verdict) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(rowsFile(root)), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(rowsFile(root), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
