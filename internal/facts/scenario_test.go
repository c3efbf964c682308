package facts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/merge:
//
//	merge     lines "worker …", "default …", "engine …" and "tried …", in any order; prints
//	          the worker and the notes
//
// A worker's words: role=, engine=, models=a+b, block=, capacity=, dp=, boot=host:port,
// kv=port or kv=none, rank=, port=, alone (accepts aggregated), addr=; each fixes its fact,
// unless a ~ is in front.
// An engine's words: kind=, role=, models=, adapters=, dp=, block=, capacity=, len=,
// eagle, host=, boot=port, ids=, kv=port, kvblock=, replay=, topic=, untold.
func TestMergeScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/merge", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			require.Equal(t, "merge", d.Cmd)
			var r Reading
			def := Defaults{}.WithDefaults()
			w := bare(t, 7, "10.0.0.7:8000")
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				what, rest, _ := strings.Cut(line, " ")
				for word := range strings.FieldsSeq(rest) {
					switch what {
					case "worker":
						workerWord(t, w, word)
					case "default":
						defaultWord(t, &def, word)
					case "engine":
						factWord(t, &r.Facts, word)
					case "tried":
						r.Tried.At = "10.0.0.7:5557"
						r.Tried.Found = word == "found"
					default:
						d.Fatalf(t, "line %q: expected worker, default, engine or tried", line)
					}
				}
			}
			before := *w
			out, notes := Merge(w, def, &r)
			require.True(t, before.Equal(w), "what was given is not changed")
			text := describe(out)
			for _, n := range notes {
				text += "note: " + n + "\n"
			}
			return text
		})
	})
}

// bare returns a worker of which nothing is known but its address.
func bare(t testing.TB, id worker.ID, at string) *worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint(at)
	require.NoError(t, err)
	w := &worker.Worker{ID: id, Role: worker.Aggregated, Endpoint: e, DPSize: 1, FactsUnknown: true}
	require.NoError(t, w.Validate())
	return w
}

func number(t testing.TB, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 32)
	require.NoError(t, err)
	return n
}

func workerWord(t testing.TB, w *worker.Worker, word string) {
	t.Helper()
	word, loose := strings.CutPrefix(word, "~")
	key, val, _ := strings.Cut(word, "=")
	var fact worker.Facts
	var err error
	switch key {
	case "role":
		w.Role, err = worker.ParseRole(val)
		fact = worker.FactRole
	case "engine":
		w.Engine, err = worker.ParseEngine(val)
		fact = worker.FactEngine
	case "models":
		w.Models, fact = strings.Split(val, "+"), worker.FactModels
	case "block":
		w.BlockSize, fact = uint32(number(t, val)), worker.FactBlockSize
	case "capacity":
		w.CapacityBlocks, fact = number(t, val), worker.FactCapacityBlocks
	case "dp":
		w.DPSize, fact = uint32(number(t, val)), worker.FactDPSize
	case "boot":
		host, port, _ := strings.Cut(val, ":")
		w.Bootstrap, fact = worker.Bootstrap{Host: host, Port: uint16(number(t, port))}, worker.FactBootstrap
	case "kv":
		if fact = worker.FactKVEvents; val != "none" {
			w.KVEvents = worker.KVEvents{Host: "kv", Port: uint16(number(t, val))}
		}
	case "alone":
		w.AcceptsAggregated, fact = val != "no", worker.FactAcceptsAggregated
	case "weights":
		w.Pair[worker.Weights] = val
	case "rank":
		w.EngineRank = worker.DPRank(number(t, val))
	case "port":
		w.FactsPort = uint16(number(t, val))
	case "addr":
		w.Endpoint, err = worker.ParseEndpoint(val)
	default:
		require.FailNow(t, "unknown word", word)
	}
	require.NoError(t, err)
	if !loose {
		w.Fixed |= fact
	}
}

func defaultWord(t testing.TB, d *Defaults, word string) {
	t.Helper()
	key, val, _ := strings.Cut(word, "=")
	switch key {
	case "engine":
		d.Engine = val
	case "block":
		d.BlockSize = int(number(t, val))
	case "kv":
		d.KVEvents = val
	case "kvport":
		d.KVEventsPort = int(number(t, val))
	case "replay":
		d.ReplayPort = int(number(t, val))
	default:
		require.FailNow(t, "unknown word", word)
	}
	require.NoError(t, d.Validate())
}

func factWord(t testing.TB, f *engine.Facts, word string) {
	t.Helper()
	key, val, _ := strings.Cut(word, "=")
	var err error
	switch key {
	case "kind":
		f.Engine, err = worker.ParseEngine(val)
	case "role":
		f.Role, err = worker.ParseRole(val)
	case "models":
		f.Models = strings.Split(val, "+")
	case "adapters":
		f.Adapters = strings.Split(val, "+")
	case "dp":
		f.DPSize = uint32(number(t, val))
	case "block":
		f.BlockSize = uint32(number(t, val))
	case "capacity":
		f.CapacityBlocks = number(t, val)
	case "len":
		f.MaxModelLen = uint32(number(t, val))
	case "eagle":
		f.Eagle = true
	case "weights":
		f.Pair[worker.Weights] = val
	case "dtype":
		f.Pair[worker.KVDType] = val
	case "host":
		f.Host = val
	case "boot":
		f.BootstrapPort = uint16(number(t, val))
	case "ids":
		f.EngineIDs = strings.Split(val, "+")
	case "kv":
		f.KV.Port = uint16(number(t, val))
	case "kvhost":
		f.KV.Host = val
	case "kvblock":
		f.KV.BlockSize = uint32(number(t, val))
	case "replay":
		f.KV.ReplayPort = uint16(number(t, val))
	case "topic":
		f.KV.Topic = val
	case "untold":
		f.KV.Untold = true
	case "start":
		f.Mark.Start = val
	case "seed":
		f.Mark.Seed = val
	case "unread":
		f.Unread.Metrics = errors.New("/metrics: status 500")
	default:
		require.FailNow(t, "unknown word", word)
	}
	require.NoError(t, err)
}

// describe prints a worker, its facts only.
func describe(w *worker.Worker) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s %s", w.ID, w.Role, w.Endpoint)
	add := func(there bool, format string, a ...any) {
		if there {
			fmt.Fprintf(&b, " "+format, a...)
		}
	}
	add(w.Engine != "", "%s", w.Engine)
	add(len(w.Models) > 0, "models=%s", strings.Join(w.Models, "+"))
	add(len(w.Adapters) > 0, "adapters=%s", strings.Join(w.Adapters, "+"))
	add(w.DPSize != 1, "dp=%d", w.DPSize)
	add(w.BlockSize != 0, "block=%d", w.BlockSize)
	add(w.CapacityBlocks != 0, "capacity=%d", w.CapacityBlocks)
	add(w.MaxModelLen != 0, "len=%d", w.MaxModelLen)
	add(w.Eagle, "eagle")
	for i, text := range w.Pair {
		add(text != "", "%s=%s", worker.PairFact(i), text)
	}
	add(!w.Bootstrap.IsZero(), "boot=%s:%d", w.Bootstrap.Host, w.Bootstrap.Port)
	add(len(w.Bootstrap.EngineIDs) > 0, "ids=%s", strings.Join(w.Bootstrap.EngineIDs, "+"))
	add(!w.KVEvents.IsZero(), "kv=%s:%d", w.KVEvents.Host, w.KVEvents.Port)
	add(w.KVEvents.ReplayPort != 0, "replay=%d", w.KVEvents.ReplayPort)
	add(w.KVEvents.Topic != "", "topic=%s", w.KVEvents.Topic)
	add(w.AcceptsAggregated, "alone")
	add(w.FactsUnknown, "(not known)")
	return b.String() + "\n"
}

// Verbs of testdata/agenda. Time stands still but for the verb sleep.
//
//	new [at_once=N] [per_host=N] [per_second=N] [refresh=D] [retry=D]
//	follow          the workers: a line is "key ip:port [id]"
//	sleep D         time passes; workers whose time has come are asked, and printed
//	answer KEY      the engine answers; a line has the words of its facts
//	fail KEY        no answer; the line is refused, timeout or a text
//	soon KEY        it is to be asked soon
//
// Times are shown to a tenth of a second from new on.
func TestAgendaScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/agenda", func(t *testing.T, path string) {
		s := &agendaScenario{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
	})
}

type agendaScenario struct {
	a          *agenda
	start, now time.Time
}

func (s *agendaScenario) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		cfg := Config{Refresh: duration(t, d, "refresh", time.Minute), Retry: duration(t, d, "retry", time.Second)}.withDefaults()
		d.MaybeScanArgs(t, "at_once", &cfg.AtOnce)
		d.MaybeScanArgs(t, "per_host", &cfg.PerHost)
		d.MaybeScanArgs(t, "per_second", &cfg.PerSecond)
		s.a = newAgenda(&cfg, 1)
		s.start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		s.now = s.start
		return ""
	case "follow":
		targets := map[string]Target{}
		for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
			if f := strings.Fields(line); len(f) >= 2 {
				targets[f[0]] = Target{URL: "http://" + f[1], Kind: engine.Auto, Worker: worker.ID(len(f))}
			}
		}
		s.a.follow(targets, s.now)
		return s.sleep(s.now.Add(10 * time.Millisecond))
	case "sleep":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		require.NoError(t, err)
		return s.sleep(s.now.Add(by))
	}
	x := s.a.subjects[d.CmdArgs[0].Key]
	require.NotNil(t, x, "no such worker")
	var c change
	switch d.Cmd {
	case "answer":
		var r Reading
		for word := range strings.FieldsSeq(d.Input) {
			factWord(t, &r.Facts, word)
		}
		require.True(t, x.asking)
		s.a.ended(x)
		c = x.answered(r, s.now, &s.a.pace)
	case "fail":
		require.True(t, x.asking)
		s.a.ended(x)
		c = x.failed(errorOf(strings.TrimSpace(d.Input)), s.now, &s.a.pace)
	case "soon":
		x.soon(s.now)
	default:
		d.Fatalf(t, "verb %q is unknown", d.Cmd)
	}
	return s.shown(x, c) + s.sleep(s.now.Add(10*time.Millisecond)) // a hundred may begin in a second
}

// sleep lets time pass in steps of 10 ms.
func (s *agendaScenario) sleep(until time.Time) string {
	out := s.begun()
	for s.now.Before(until) {
		s.now = s.now.Add(10 * time.Millisecond)
		out += s.begun()
	}
	return out
}

// begun asks who is due.
func (s *agendaScenario) begun() string {
	out := ""
	for {
		x, _ := s.a.begin(s.now)
		if x == nil {
			return out
		}
		out += fmt.Sprintf("%s ask %s\n", s.since(s.now), x.key)
	}
}

func (s *agendaScenario) since(at time.Time) string {
	return strconv.FormatFloat(at.Sub(s.start).Seconds(), 'f', 1, 64)
}

func (s *agendaScenario) shown(x *subject, c change) string {
	out := fmt.Sprintf("%s %s: %s since %s", s.since(s.now), x.key, x.state(), s.since(x.since))
	if c != same {
		out += [...]string{told: ", told", another: ", another process"}[c]
	}
	if !x.asking {
		out += ", next at " + s.since(x.due)
	}
	if x.err != "" {
		out += "\n  error: " + x.err
	}
	if x.fault != "" {
		out += "\n  note: " + x.fault
	}
	return out + "\n"
}

func errorOf(text string) error {
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 8000}}
	switch text {
	case "refused":
		dial.Err = os.NewSyscallError("connect", syscall.ECONNREFUSED)
		return fmt.Errorf("/server_info: %w", dial)
	case "timeout":
		return fmt.Errorf("/server_info: %w", context.DeadlineExceeded)
	case "reset":
		return &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 1, 1, 1), Port: 43210}, Addr: dial.Addr, Err: io.ErrUnexpectedEOF}
	}
	return errors.New(text)
}

func duration(t *testing.T, d *datadriven.TestData, key string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := ""
	d.MaybeScanArgs(t, key, &text)
	if text == "" {
		return otherwise
	}
	v, err := time.ParseDuration(text)
	require.NoError(t, err)
	return v
}
