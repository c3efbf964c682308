package discovery

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/reducer. Each prints the refusal, if the event was refused, and
// then the reducer.
//
//	new                      a new reducer
//	begin                    the source starts to list
//	list rev=N [epoch=E] [stale=WHY]   a listing; a line is an entry
//	watch rev=N [after=M]    a batch; a line is "put ENTRY" or "delete KEY [version=V]"
//	broken                   the line is the reason
//
// An ENTRY is a key and any of id=, role=, addr=, bootstrap=, block=, dp=, ports= (the
// number of ranks, each with a port of its own), rev=, version=, fault=, note= (a word each),
// lease= (a duration), model=, engine=, and the word draining.
// Without id the entry has no worker.
func TestReducerScenarios(t *testing.T) {
	r := &Reducer{}
	datadriven.RunTest(t, "testdata/reducer", func(t *testing.T, d *datadriven.TestData) string {
		var err error
		switch d.Cmd {
		case "new":
			r = &Reducer{}
		case "begin":
			err = r.Apply(Begin{})
		default:
			err = r.Apply(eventOf(t, d))
		}
		if err != nil {
			require.ErrorIs(t, err, ErrResync)
			return err.Error() + "\n" + r.String()
		}
		return r.String()
	})
}

// Verbs of testdata/expired. Each prints what is new, then the set that is sent on and when
// the next step is due. Only pass lets time pass.
//
//	new
//	list, watch, broken      as in testdata/reducer
//	before served=BOOL       entries that the next set is told were known before the start
//	pass D                   time passes, and who is due is asked
//	answer KEY KIND          KIND is heard, doubtful, silent or refused; models=A tells models
func TestExpiryScenarios(t *testing.T) {
	var r *Reducer
	var x *expiries
	var before []Entry
	var served bool
	start := time.Unix(0, 0).UTC()
	var now time.Time
	datadriven.RunTest(t, "testdata/expired", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		switch d.Cmd {
		case "new":
			r, x, now, before = &Reducer{}, &expiries{}, start, nil
		case "before":
			for _, line := range lines(d.Input) {
				before = append(before, entryOf(t, line))
			}
			d.ScanArgs(t, "served", &served)
		case "pass":
			by, err := time.ParseDuration(d.CmdArgs[0].Key)
			require.NoError(t, err)
			now = now.Add(by)
			x.tick(now)
			due, _ := x.ask(now)
			for _, h := range due {
				fmt.Fprintf(&b, "ask %s\n", h.entry.Key)
			}
		case "answer":
			h := x.held[d.CmdArgs[0].Key]
			require.NotNil(t, h, "it is held")
			require.True(t, h.asking, "it was asked")
			a := Answer{Kind: map[string]AnswerKind{"heard": Heard, "doubtful": Doubtful, "silent": Silent, "refused": Refused}[d.CmdArgs[1].Key], Why: d.CmdArgs[1].Key}
			if d.HasArg("models") {
				a.Models = make([]string, 1)
				d.ScanArgs(t, "models", &a.Models[0])
			}
			x.answered(h, a, r.entries, now)
		default:
			expired, err := r.fold(eventOf(t, d))
			x.recall(before, served, r.entries, now)
			before = nil
			x.follow(expired, r.entries, now)
			if err != nil {
				fmt.Fprintln(&b, err)
			}
		}
		for _, n := range x.news() {
			fmt.Fprintf(&b, "told %d since %s stale=%t", n.Worker.ID, n.Since.Sub(start), n.Stale)
			if n.Recalled {
				b.WriteString(" recalled")
			}
			if n.Over != "" {
				fmt.Fprintf(&b, " over (back=%t): %s", n.Back, n.Over)
			}
			b.WriteByte('\n')
		}
		shown := Reducer{}
		require.NoError(t, shown.Apply(List{Revision: r.revision, Entries: x.with(r)}), "it can be sent")
		for _, e := range shown.Entries() {
			fmt.Fprintf(&b, "  %s = %d %s %s", e.Key, e.Worker.ID, e.Worker.Role, e.Worker.Endpoint)
			if h := x.held[e.Key]; h != nil && h.Stale {
				b.WriteString(" stale")
			}
			if e.Worker.Draining {
				b.WriteString(" draining")
			}
			b.WriteByte('\n')
		}
		return b.String()
	})
}

// eventOf reads the event of a verb.
func eventOf(t *testing.T, d *datadriven.TestData) Event {
	t.Helper()
	switch d.Cmd {
	case "broken":
		return Broken{Reason: strings.TrimSpace(d.Input)}
	case "list":
		l := List{Revision: argNumber(t, d, "rev")}
		d.MaybeScanArgs(t, "epoch", &l.Epoch)
		d.MaybeScanArgs(t, "stale", &l.Stale)
		for _, line := range lines(d.Input) {
			l.Entries = append(l.Entries, entryOf(t, line))
		}
		return l
	case "watch":
		b := Batch{Revision: argNumber(t, d, "rev")}
		if d.HasArg("after") {
			b.After = argNumber(t, d, "after")
		}
		for _, line := range lines(d.Input) {
			verb, rest, _ := strings.Cut(line, " ")
			e := entryOf(t, rest)
			switch verb {
			case "put":
				b.Ops = append(b.Ops, Put(e))
			case "delete":
				b.Ops = append(b.Ops, Delete(e.Key, e.Version))
			default:
				d.Fatalf(t, "verb %q: expected put or delete", verb)
			}
		}
		return b
	}
	d.Fatalf(t, "verb %q is unknown", d.Cmd)
	return nil
}

// Verbs of testdata/merge:
//
//	merge     a line is "source NAME", or an entry of the source above it;
//	          prints the merged workers and the problems
func TestMergeScenarios(t *testing.T) {
	datadriven.RunTest(t, "testdata/merge", func(t *testing.T, d *datadriven.TestData) string {
		var parts []part
		for _, line := range lines(d.Input) {
			if name, ok := strings.CutPrefix(line, "source "); ok {
				parts = append(parts, part{source: name})
				continue
			}
			p := &parts[len(parts)-1]
			p.entries = append(p.entries, admit(entryOf(t, line), Entry{}))
		}
		workers, problems := merge(parts)
		snap, err := worker.NewSnapshot(1, workers)
		require.NoError(t, err, "merge must let nothing through that a snapshot refuses")
		var b strings.Builder
		for _, w := range snap.Workers() {
			fmt.Fprintf(&b, "%d %s %s\n", w.ID, w.Role, w.Endpoint)
		}
		for _, p := range problems {
			fmt.Fprintf(&b, "%s: %s/%s: worker %d: %s\n", p.Kind, p.Source, p.Key, p.Worker, p.Text)
		}
		return b.String()
	})
}

func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
}

func argNumber(t *testing.T, d *datadriven.TestData, key string) uint64 {
	t.Helper()
	var s string
	d.ScanArgs(t, key, &s)
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err)
	return n
}

func entryOf(t *testing.T, line string) Entry {
	t.Helper()
	words := strings.Fields(line)
	e := Entry{Key: words[0]}
	w := newWorker(0, worker.Decode, 0)
	for _, word := range words[1:] {
		key, val, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseUint(val, 10, 64)
		var err error
		switch key {
		case "id":
			w.ID, err = worker.ParseID(val)
		case "role":
			w.Role, err = worker.ParseRole(val)
		case "addr":
			w.Endpoint, err = worker.ParseEndpoint(val)
		case "bootstrap":
			w.Bootstrap = worker.Bootstrap{Host: "boot", Port: uint16(n)}
		case "block":
			w.BlockSize = uint32(n)
		case "dp":
			w.DPSize = uint32(n)
		case "ports":
			w.DPSize, w.PortPerRank = uint32(n), true
		case "rev":
			e.Revision = n
		case "version":
			e.Version = n
		case "fault":
			e.Fault = val
		case "note":
			e.Note = val
		case "lease":
			e.Lease, err = time.ParseDuration(val)
		case "model":
			w.Models = []string{val}
		case "engine":
			w.Engine, err = worker.ParseEngine(val)
		case "draining":
			w.Draining = true
		case "fronted":
			w.Fronted = true
		default:
			require.FailNow(t, "unknown word", word)
		}
		require.NoError(t, err)
	}
	if w.ID != 0 {
		if w.Endpoint.IsZero() {
			w.Endpoint = endpoint(w.ID)
		}
		e.Worker = w
	}
	return e
}

func endpoint(id worker.ID) worker.Endpoint {
	e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:8000", byte(id>>8), byte(id)))
	if err != nil {
		panic(err)
	}
	return e
}

// newWorker returns a valid decode or prefill worker. Two with the same id and another
// variant differ.
func newWorker(id worker.ID, role worker.Role, variant uint64) *worker.Worker {
	w := &worker.Worker{
		ID: id, Role: role, Engine: worker.SGLang, Models: []string{"m"},
		DPSize: 1, BlockSize: 64, CapacityBlocks: variant,
	}
	if id != 0 {
		w.Endpoint = endpoint(id)
	}
	if role == worker.Prefill {
		w.Bootstrap = worker.Bootstrap{Host: "boot", Port: 8998}
	}
	return w
}
