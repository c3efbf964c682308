package register

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata/machine. Each shows what the machine wants done, and
// ends with its phase and when it wants a tick. at is the time in seconds,
// which only goes on; every command may have it.
//
//	start [role=R] [bootstrap-port=N] [accepts-aggregated] [annotations]
//	      [block-size=N] [settle=S] [drain=S]
//	tick | lost | term [known] | hurry   known: the registry knows the worker
//	health ok|failed|refused
//	facts [engine=E] [role=R] [models=(a,b)] [block=N] [ranks=N] [start=S]
//	      [seed=S] [port=N] [kv-block=N] [addr=A] [note-port=P] [err=E]
//	      [addr-err=E] [note-err=E] [unread=(metrics,models)]
//	      the answer to "read"; what is not given is a decode worker's
//	held seq=N
//	count n=N | err=E | unknown
func TestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/machine", func(t *testing.T, path string) {
		s := &scenario{t: t}
		datadriven.RunTest(t, path, s.do)
	})
}

type scenario struct {
	t   *testing.T
	m   *machine
	now time.Duration
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	if d.HasArg("at") {
		var at string
		d.ScanArgs(t, "at", &at)
		next, err := time.ParseDuration(at + "s")
		require.NoError(t, err)
		require.GreaterOrEqual(t, next, s.now, "time only goes on")
		s.now = next
	}
	if d.Cmd == "start" {
		s.start(t, d)
		return s.step(tick{})
	}
	return s.step(s.event(t, d))
}

// usual are the defaults of the flags of register.
var usual = Config{
	HealthInterval: time.Second, UnhealthyAfter: 3, Refresh: 10 * time.Second,
	DrainSettle: time.Second, DrainTimeout: 2 * time.Minute, Logger: slog.New(slog.DiscardHandler),
}

func (s *scenario) start(t *testing.T, d *datadriven.TestData) {
	c := usual
	number := func(key string, n int) int {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &n)
		}
		return n
	}
	if d.HasArg("role") {
		var text string
		var err error
		d.ScanArgs(t, "role", &text)
		c.Override.Role, err = worker.ParseRole(text)
		require.NoError(t, err)
	}
	c.Override.BootstrapPort = uint16(number("bootstrap-port", 0))
	c.Override.BlockSize = uint32(number("block-size", 0))
	c.DrainSettle = time.Duration(number("settle", 1)) * time.Second
	c.DrainTimeout = time.Duration(number("drain", 120)) * time.Second
	if d.HasArg("accepts-aggregated") {
		c.Override.AcceptsAggregated = new(true)
	}
	if d.HasArg("annotations") {
		c.AnnotationsFile = "annotations"
	}
	s.now = 0
	s.m = newMachine(c, 8000)
}

func (s *scenario) event(t *testing.T, d *datadriven.TestData) event {
	text := func(key, missing string) string {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &missing)
		}
		return missing
	}
	fail := func(key string) error {
		if v := text(key, ""); v != "" {
			return errors.New(strings.ReplaceAll(v, "_", " "))
		}
		return nil
	}
	number := func(key string, missing int) int {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &missing)
		}
		return missing
	}
	switch d.Cmd {
	case "tick":
		return tick{}
	case "lost":
		return lost{}
	case "term":
		return term{known: d.HasArg("known")}
	case "hurry":
		return hurry{}
	case "held":
		return held{uint64(number("seq", 0))}
	case "count":
		if d.HasArg("unknown") {
			return counted{err: engine.ErrNotCounted}
		}
		return counted{number("n", 0), fail("err")}
	case "health":
		for h := engine.Healthy; h <= engine.Refused; h++ {
			if d.HasArg(h.String()) {
				return healthAsked{health: h}
			}
		}
	case "facts":
		f := engine.Facts{
			Engine: worker.Engine(text("engine", "sglang")), Models: []string{"m"},
			BlockSize: uint32(number("block", 16)), DPSize: uint32(number("ranks", 1)), CapacityBlocks: 100,
			BootstrapPort: uint16(number("port", 0)),
			Mark:          engine.Mark{Start: text("start", ""), Seed: text("seed", "")},
		}
		if r := text("role", "decode"); r != "none" {
			var err error
			f.Role, err = worker.ParseRole(r)
			require.NoError(t, err)
		}
		for _, a := range d.CmdArgs {
			switch a.Key {
			case "models":
				f.Models = a.Vals
			case "unread":
				unread(&f, a.Vals)
			}
		}
		if n := number("kv-block", 0); n > 0 {
			f.KV = engine.KVEvents{KVEvents: worker.KVEvents{Port: 5557}, BlockSize: uint32(n)}
		}
		e := refreshed{facts: f, factsErr: fail("err"), addrErr: fail("addr-err"), notesErr: fail("note-err")}
		e.addrs = []netip.Addr{netip.MustParseAddr(text("addr", "10.0.0.7"))}
		if p := text("note-port", ""); p != "" {
			e.notes = map[string]string{annotationPort: p}
		}
		return e
	}
	d.Fatalf(t, "unknown command %s %v", d.Cmd, d.CmdArgs)
	return nil
}

// unread takes out of facts what pages tell that could not be read.
func unread(f *engine.Facts, pages []string) {
	for _, page := range pages {
		err := fmt.Errorf("/%s: status 503", page)
		switch page {
		case "metrics":
			f.Mark.Start, f.Unread.Metrics = "", err
			if f.Engine == worker.VLLM {
				f.DPSize, f.BlockSize, f.CapacityBlocks = 0, 0, 0
			}
		case "models":
			f.Models, f.Unread.Models = f.Models[:1], err
		}
	}
}

func (s *scenario) step(ev event) string {
	var b strings.Builder
	for _, a := range s.m.step(epoch.Add(s.now), ev) {
		b.WriteString(a.String() + "\n")
	}
	fmt.Fprintf(&b, "%v", s.m.phase)
	if s.m.why != "" {
		fmt.Fprintf(&b, " (%s)", s.m.why)
	}
	if at, any := s.m.next(); any {
		fmt.Fprintf(&b, ", tick at %v", at.Sub(epoch))
	}
	return b.String() + "\n"
}

// String is what scenario files show.
func (a action) String() string {
	words := map[verb]string{
		askHealth: "ask health", refresh: "read facts", count: "count requests", withdraw: "withdraw", leave: "leave",
		tellHealthy: "say healthy", tellUnhealthy: "say not healthy", tellSilent: "say silent", tellIncomplete: "say incomplete",
		tellKept: "say kept", tellWarning: "say warning", tellUncounted: "say uncounted",
	}
	if a.verb != announce {
		if a.why == "" {
			return words[a.verb]
		}
		return words[a.verb] + ": " + a.why
	}
	w := a.rec
	text := fmt.Sprintf("announce #%d life %d: %v %s at %v models %s ranks %d blocks %d*%d",
		a.seq, a.life, w.Role, w.Engine, w.Endpoint, strings.Join(w.Models, ","), w.DPSize, w.CapacityBlocks, w.BlockSize)
	if !w.Bootstrap.IsZero() {
		text += fmt.Sprintf(" bootstrap %s %d", w.Bootstrap.Host, w.Bootstrap.Port)
	}
	if !w.KVEvents.IsZero() {
		text += fmt.Sprintf(" events %s %d", w.KVEvents.Host, w.KVEvents.Port)
	}
	for word, on := range map[string]bool{" aggregated": w.AcceptsAggregated, " draining": w.Draining} {
		if on {
			text += word
		}
	}
	return text
}

// Whatever comes in whatever order, every question is
// answered at most once at a time, a record that was announced is withdrawn
// before leaving, and leaving is the end.
func TestWhateverComesTheMachineKeepsItsRules(t *testing.T) {
	for seed := range uint64(300) {
		rng := newRand(seed)
		m := newMachine(usual, 8000)
		now := epoch
		asked := map[verb]bool{}
		known, left := false, false
		for range 400 {
			now = now.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
			for _, a := range m.step(now, randomEvent(rng, asked)) {
				require.False(t, left, "seed %d: %v after leave", seed, a)
				switch a.verb {
				case askHealth, refresh, count:
					require.False(t, asked[a.verb], "seed %d: %v twice", seed, a)
					asked[a.verb] = true
				case announce:
					known = true
					require.True(t, m.up, "seed %d: announced while the engine is down", seed)
				case withdraw:
					require.True(t, known, "seed %d: withdrawn and not announced", seed)
					known = false
				case leave:
					require.False(t, known, "seed %d: left with a record", seed)
					left = true
				default:
				}
			}
			if m.phase != gone {
				at, any := m.next()
				require.True(t, any || asked[askHealth], "seed %d: nothing will wake it", seed)
				_ = at
			}
		}
		require.Equal(t, m.phase == gone, left)
	}
}
