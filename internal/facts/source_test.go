package facts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/source. Time is that of a synctest bubble. Each verb prints what the
// sink has received meanwhile.
//
//	run                    runs the source; also again after it has ended
//	list revision=N        the inner source sends a listing; a line is an entry
//	batch revision=N       … a batch; a line is "put ENTRY" or "del KEY"
//	batches                … several; a line is "revision=N put ENTRY" or "revision=N del KEY"
//	begin                  … a Begin
//	broken REASON          … a Broken
//	end [ERROR]            the inner source returns
//	engine IP              what is answered there; the line has the words of its facts, or
//	                       refused, timeout, hang, or another text: an error
//	ask ID                 the worker is to be asked soon
//	sleep D                time passes
//	rows                   the rows for the page
//	stop                   the context ends
//
// An ENTRY is a key, id=N, ip=A, and any words of a worker as in testdata/merge; "given"
// in place of these makes a worker whose facts the source knows.
func TestSourceScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/source", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := newScenario(t)
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
			s.stop()
		})
	})
}

type scenario struct {
	src      *Source
	inner    *script
	speakers *speakers
	cancel   context.CancelFunc
	ended    chan error
	start    time.Time
	out      syncbuf.Buffer
	set      discovery.Reducer // of the sink
}

func newScenario(t *testing.T) *scenario {
	s := &scenario{inner: newScript(), speakers: &speakers{at: map[string]string{}}, start: time.Now()}
	var err error
	s.src, err = New(Config{Inner: s.inner, Reader: s.speakers, Refresh: time.Minute, Timeout: 5 * time.Second, Seed: 1, PerSecond: 1000})
	require.NoError(t, err)
	return s
}

func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	s.out.Reset()
	word, rest := "", ""
	for i, a := range d.CmdArgs {
		if i == 0 {
			word = a.Key
		}
		rest = strings.TrimSpace(rest + " " + a.Key)
	}
	switch d.Cmd {
	case "run":
		ctx, cancel := context.WithCancel(t.Context())
		s.cancel, s.ended = cancel, make(chan error, 1)
		go func() { s.ended <- s.src.Run(ctx, s) }()
	case "list":
		l := discovery.List{Epoch: "e", Revision: numberArg(t, d, "revision")}
		for _, line := range lines(d.Input) {
			l.Entries = append(l.Entries, entryOf(t, line))
		}
		s.send(l)
	case "batch":
		b := discovery.Batch{Revision: numberArg(t, d, "revision")}
		for _, line := range lines(d.Input) {
			b.Ops = append(b.Ops, opOf(t, line))
		}
		s.send(b)
	case "batches":
		var bs discovery.Batches
		for _, line := range lines(d.Input) {
			rev, op, _ := strings.Cut(line, " ")
			bs = append(bs, discovery.Batch{Revision: number(t, strings.TrimPrefix(rev, "revision=")), Ops: []discovery.Op{opOf(t, op)}})
		}
		s.send(bs)
	case "begin":
		s.send(discovery.Begin{})
	case "broken":
		s.send(discovery.Broken{Reason: rest})
	case "end":
		var err error
		if rest != "" {
			err = errors.New(rest)
		}
		s.inner.end <- err
	case "engine":
		s.speakers.set("http://"+word+":8000", strings.TrimSpace(d.Input))
	case "ask":
		s.src.Ask(worker.ID(number(t, word)))
	case "sleep":
		by, err := time.ParseDuration(word)
		require.NoError(t, err)
		<-time.After(by)
	case "rows":
		for _, r := range s.src.Rows() {
			fmt.Fprintf(&s.out, "%d %s for %s at %s as %s, read %v, failures %d", r.Worker, r.State, time.Since(r.Since).Round(100*time.Millisecond), r.URL, r.As, !r.ReadAt.IsZero(), r.Failures)
			if r.Error != "" {
				fmt.Fprintf(&s.out, ", error: %s", r.Error)
			}
			s.out.Write([]byte("\n"))
		}
	case "stop":
		s.stop()
	default:
		d.Fatalf(t, "verb %q is unknown", d.Cmd)
	}
	synctest.Wait()
	select {
	case err := <-s.ended:
		s.ended = nil
		fmt.Fprintf(&s.out, "ended: %v\n", err)
	default:
	}
	return s.out.String()
}

func (s *scenario) stop() {
	if s.cancel != nil {
		s.cancel()
		synctest.Wait()
	}
}

// send has the inner source send an event, and prints a refusal.
func (s *scenario) send(ev discovery.Event) {
	s.inner.events <- ev
	if err := <-s.inner.answers; err != nil {
		fmt.Fprintf(&s.out, "refused: %v\n", err)
	}
}

// Send implements discovery.Sink: it prints the event and the set that follows.
func (s *scenario) Send(ev discovery.Event) error {
	at := time.Since(s.start).Seconds()
	err := s.set.Apply(ev)
	switch ev := ev.(type) {
	case discovery.Begin:
		fmt.Fprintf(&s.out, "%.1f begin\n", at)
	case discovery.Broken:
		fmt.Fprintf(&s.out, "%.1f broken: %s\n", at, ev.Reason)
	case discovery.List:
		fmt.Fprintf(&s.out, "%.1f list at %d, %s", at, ev.Revision, s.set.State())
		if ev.Stale != "" {
			fmt.Fprintf(&s.out, " (%s)", ev.Stale)
		}
		s.out.Write([]byte("\n"))
		for _, e := range s.set.Entries() {
			fmt.Fprintf(&s.out, "  %s: ", e.Key)
			if e.Worker == nil {
				fmt.Fprintf(&s.out, "fault: %s\n", e.Fault)
				continue
			}
			_, _ = s.out.Write([]byte(describe(e.Worker)))
			if e.Fault != "" {
				fmt.Fprintf(&s.out, "    fault: %s\n", e.Fault)
			}
			if e.Note != "" {
				fmt.Fprintf(&s.out, "    note: %s\n", e.Note)
			}
		}
	default:
		fmt.Fprintf(&s.out, "%.1f %T\n", at, ev)
	}
	return err
}

// script is an inner source that sends what it is told.
type script struct {
	events  chan discovery.Event
	answers chan error
	end     chan error
}

func newScript() *script {
	return &script{events: make(chan discovery.Event), answers: make(chan error), end: make(chan error)}
}

func (s *script) Run(ctx context.Context, sink discovery.Sink) error {
	for {
		select {
		case ev := <-s.events:
			s.answers <- sink.Send(ev)
		case err := <-s.end:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// speakers is a Reader that answers what it is told.
type speakers struct {
	mu    sync.Mutex
	at    map[string]string // URL to the words of its facts, or to an error
	asked int
}

func (e *speakers) set(url, answer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at[url] = answer
}

func (e *speakers) Read(ctx context.Context, t Target, _ worker.Engine) (Reading, error) {
	e.mu.Lock()
	answer, there := e.at[t.URL]
	e.asked++
	e.mu.Unlock()
	switch {
	case !there:
		return Reading{}, errorOf("refused")
	case answer == "hang":
		<-ctx.Done()
		return Reading{}, ctx.Err()
	case !strings.HasPrefix(answer, "kind="):
		return Reading{}, errorOf(answer)
	}
	var r Reading
	for word := range strings.FieldsSeq(answer) {
		factWord(panics{}, &r.Facts, word)
	}
	return r, nil
}

// panics is for helpers that are called beside the test's goroutine.
type panics struct{ testing.TB }

func (panics) Helper()                   {}
func (panics) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (panics) FailNow()                  { panic("failed") }

func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
}

func numberArg(t *testing.T, d *datadriven.TestData, key string) uint64 {
	t.Helper()
	var s string
	d.ScanArgs(t, key, &s)
	return number(t, s)
}

func opOf(t *testing.T, line string) discovery.Op {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	if verb == "del" {
		return discovery.Delete(rest, 0)
	}
	require.Equal(t, "put", verb)
	return discovery.Put(entryOf(t, rest))
}

func entryOf(t *testing.T, line string) discovery.Entry {
	t.Helper()
	words := strings.Fields(line)
	w := bare(t, 1, "10.0.0.1:8000")
	e := discovery.Entry{Key: words[0], Worker: w}
	for _, word := range words[1:] {
		switch key, val, _ := strings.Cut(word, "="); key {
		case "id":
			w.ID = worker.ID(number(t, val))
		case "ip":
			workerWord(t, w, "addr="+val+":8000")
		case "given":
			w.FactsUnknown, w.Engine, w.Models, w.BlockSize = false, worker.VLLM, []string{"given"}, 16
		case "fault":
			e.Fault = val
		case "note":
			e.Note = val
		default:
			workerWord(t, w, word)
		}
	}
	return e
}

func TestASourceHasAnother(t *testing.T) {
	_, err := New(Config{})
	require.ErrorContains(t, err, "expected the source whose workers are asked")
}
