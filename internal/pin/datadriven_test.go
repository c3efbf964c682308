package pin

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata:
//
//	read       each line is "header: value", the last may be an nvext object;
//	           the output is what is said of both legs, or the fault
//	workers    each line is a worker: ID ROLE [engine=E] [block=N] [ranks=N] [ports]
//	           [model=M] [namespace=N] [draining] [fronted] [no-bootstrap] [alone]; its
//	           address is 10.0.0.ID:80
//	resolve    [direct] [disagg|alone] [left=ID, who was at 10.0.0.ID:80]: input as of read; the output is
//	           the workers that are found, or the fault

var kindNames = map[Kind]string{
	Malformed: "malformed", Conflict: "conflict", NotNamed: "not named", Unknown: "unknown", Gone: "gone", WrongModel: "wrong model",
	WrongRole: "wrong role", Draining: "draining", NotUsable: "not usable", NeedsOther: "needs other", RankTooHigh: "rank too high", Unfit: "unfit",
}

func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var snap *worker.Snapshot
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "workers":
				snap = workersOf(t, d.Input)
				return ""
			case "read":
				p, f, err := readInput(d.Input)
				return saidText(p, f, err)
			case "resolve":
				p, _, err := readInput(d.Input)
				require.Nil(t, err, d.Pos)
				s := Scope{Snap: snap, Key: worker.Key{Model: "m"}, Trust: Prerouted, Disaggregated: d.HasArg("disagg"), Alone: d.HasArg("alone")}
				if d.HasArg("direct") {
					s.Trust = Direct
				}
				var left int
				if d.HasArg("left") {
					d.ScanArgs(t, "left", &left)
					s.Left = func(id worker.ID) bool { return id == worker.ID(left) }
					s.LeftFrom = func(e worker.Endpoint) bool { return e.String() == fmt.Sprintf("10.0.0.%d:80", left) }
				}
				places, err := p.Resolve(s)
				if err != nil {
					return fault(err)
				}
				return "prefill: " + placeText(places.Prefill) + "\ndecode: " + placeText(places.Decode) + "\n"
			default:
				d.Fatalf(t, "unknown verb %q", d.Cmd)
				return ""
			}
		})
	})
}

func readInput(input string) (Pins, Fields, *Error) {
	var headers []Header
	var f Fields
	for line := range strings.SplitSeq(strings.TrimSpace(input), "\n") {
		if strings.HasPrefix(line, "{") || line == "null" || strings.HasPrefix(line, "[") {
			var err *Error
			if f, err = ReadFields([]byte(line)); err != nil {
				return Pins{}, f, err
			}
			continue
		}
		name, v, _ := strings.Cut(line, ":")
		if name != "" {
			headers = append(headers, Header{name, strings.TrimSpace(v)})
		}
	}
	p, err := Read(headers, f)
	return p, f, err
}

func fault(err *Error) string {
	return fmt.Sprintf("%s: %s: %s\n", kindNames[err.Kind], err.Param, err.Subject)
}

func saidText(p Pins, f Fields, err *Error) string {
	var b strings.Builder
	if err != nil {
		b.WriteString(fault(err))
	} else {
		b.WriteString("prefill: " + targetText(&p.Prefill) + "\ndecode: " + targetText(&p.Decode) + "\n")
	}
	if f.Query {
		b.WriteString("a question\n")
	}
	if f.First != "" {
		b.WriteString("first: " + f.First + "\n")
	}
	return b.String()
}

func targetText(t *Target) string {
	var parts []string
	if t.ID != 0 {
		parts = append(parts, t.ID.String()+" ("+t.IDBy+")")
	}
	if !t.Address.IsZero() {
		parts = append(parts, "at "+t.Address.String()+" ("+t.AddressBy+")")
	}
	if t.HasRank {
		parts = append(parts, "rank "+strconv.Itoa(int(t.DPRank))+" ("+t.RankBy+")")
	}
	if len(parts) == 0 {
		return "-"
	}
	if o := t.other; o.id != 0 {
		parts[len(parts)-1] += ", of " + o.id.String() + " rank " + strconv.Itoa(int(o.dpRank)) + " (" + o.by + ")"
	}
	return strings.Join(parts, " ")
}

func placeText(p *Place) string {
	switch {
	case p == nil:
		return "-"
	case p.AnyRank:
		return p.Worker.ID.String() + "/any"
	default:
		return worker.Rank{ID: p.Worker.ID, DPRank: p.DPRank}.String()
	}
}

func workersOf(t *testing.T, input string) *worker.Snapshot {
	t.Helper()
	var ws []*worker.Worker
	for line := range strings.SplitSeq(strings.TrimSpace(input), "\n") {
		parts := strings.Fields(line)
		id, err := worker.ParseID(parts[0])
		require.NoError(t, err)
		role, err := worker.ParseRole(parts[1])
		require.NoError(t, err)
		e, err := worker.ParseEndpoint("10.0.0." + parts[0][max(len(parts[0])-2, 0):] + ":80")
		require.NoError(t, err)
		w := &worker.Worker{ID: id, Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16}
		if role == worker.Prefill {
			w.Bootstrap = worker.Bootstrap{Host: "10.0.0.1", Port: 8998}
		}
		for _, p := range parts[2:] {
			k, v, _ := strings.Cut(p, "=")
			switch k {
			case "engine":
				w.Engine = worker.Engine(v)
			case "block":
				n, err := strconv.ParseUint(v, 10, 32)
				require.NoError(t, err)
				w.BlockSize = uint32(n)
			case "ranks":
				n, err := strconv.ParseUint(v, 10, 32)
				require.NoError(t, err)
				w.DPSize = uint32(n)
			case "ports": // each rank has its own
				w.PortPerRank = true
			case "model":
				w.Models = []string{v}
			case "namespace":
				w.Namespace = v
			case "draining":
				w.Draining = true
			case "fronted":
				w.Fronted = true
			case "no-bootstrap":
				w.Bootstrap = worker.Bootstrap{}
			case "alone":
				w.AcceptsAggregated = true
			default:
				require.Fail(t, "unknown word", p)
			}
		}
		ws = append(ws, w)
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

// An intermediary may leave spaces around a value.
func TestSpacesAroundAValueSayNothing(t *testing.T) {
	p, err := Read([]Header{{"x-worker-instance-id", " 7\t"}, {"x-dp-rank", " 1 "}, {"x-prefiller-host-port", " 10.0.0.1:80 "}, {"x-prefill-dp-rank", " 4294967295 "}}, Fields{})
	require.Nil(t, err)
	require.Equal(t, "7 (x-worker-instance-id) rank 1 (x-dp-rank)", targetText(&p.Decode))
	require.Equal(t, "at 10.0.0.1:80 (x-prefiller-host-port)", targetText(&p.Prefill))
}

// FuzzReadFields: what is read of any valid object is in range, and a client
// that names a worker in any spelling is seen to.
func FuzzReadFields(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"decode_worker_id":18446744073709551615}`, `{"dp_rank":4294967295,"annotations":["query_instance_id:"]}`,
		`{"d\u0065code_worker_id":1.5}`, `{"annotations":"query_instance_id:","prefill_dp_rank":4294967295}`, `{"annotations":[["query_instance_id:"],1]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := openai.WholeObject(b); !ok || s.Start != 0 || s.End != len(b) {
			return
		}
		got, err := ReadFields(b)
		if err != nil {
			require.NotEmpty(t, got.First)
			require.Contains(t, []Kind{Malformed, Conflict}, err.Kind)
			return
		}
		p, err := Read(nil, got)
		require.Nil(t, err)
		require.Equal(t, got.First == "", p == Pins{})
	})
}

// FuzzRead: no header value does harm, and what is taken is what was said.
func FuzzRead(f *testing.F) {
	f.Add("x-worker-instance-id", "9007199254740993")
	f.Add("x-prefiller-host-port", "10.0.0.1:80, 10.0.0.2:80")
	f.Add("x-prefill-dp-rank", "4294967295")
	f.Fuzz(func(t *testing.T, name, v string) {
		p, err := Read([]Header{{name, v}}, Fields{})
		if err != nil {
			require.Equal(t, Malformed, err.Kind)
			require.True(t, Known([]byte(name)))
			return
		}
		for _, l := range []Target{p.Prefill, p.Decode} {
			if l.ID != 0 {
				require.Equal(t, strings.TrimLeft(strings.TrimSpace(v), "0"), l.ID.String())
			}
		}
	})
}
