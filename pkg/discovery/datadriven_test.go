package discovery

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

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
// number of ranks, each with a port of its own), rev=, version=, fault=, note= (a word each).
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
		case "broken":
			err = r.Apply(Broken{Reason: strings.TrimSpace(d.Input)})
		case "list":
			l := List{Revision: argNumber(t, d, "rev")}
			d.MaybeScanArgs(t, "epoch", &l.Epoch)
			d.MaybeScanArgs(t, "stale", &l.Stale)
			for _, line := range lines(d.Input) {
				l.Entries = append(l.Entries, entryOf(t, line))
			}
			err = r.Apply(l)
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
			err = r.Apply(b)
		default:
			d.Fatalf(t, "verb %q is unknown", d.Cmd)
		}
		if err != nil {
			require.ErrorIs(t, err, ErrResync)
			return err.Error() + "\n" + r.String()
		}
		return r.String()
	})
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
