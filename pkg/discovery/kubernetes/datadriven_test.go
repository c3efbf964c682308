package kubernetes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/join and testdata/machine. A line that begins with a space belongs to
// the line before it.
//
//	join [prefill-ports=8001,…] [group=LABEL]
//	    POOL, then PODs; prints the workers and the faults
//	new [prefill=L=V] [standalone]
//	    a machine for pool infra/primary, or with the POOL that is the input as a
//	    standalone selector
//	pools           a listing of the pools: POOL, or nothing
//	pool            the pool is now POOL
//	pool-gone       it was deleted
//	pods            a listing of the PODs that the selector matches now; with [watch], as
//	                pools, a listing that a watch has told
//	put, gone       changes of PODs; gone: they are not in the watch any more
//	late-put        a change that a watch for another selector tells (late=SELECTOR)
//	broken verb=V [lost]   a list or watch failed: the line is the reason
//	resumed         a watch goes on where it was
//	restart         the source is run again
//	wait for=D      the time passes
//
// pods, put, gone, broken and resumed are of the pool's pods, or of=prefill, of=pools.
// Each prints the events for the sink, and which watches are wanted if they are others
// than before.
//
// A POOL is "selector=L:V,… ports=N,…" with [deleting] [fault=TEXT]. A POD is a name and
// any of uid=, ip= (default: 10.0.0. and the number in the name), labels=L:V,… (default
// app:llama), note=NAME:VALUE (again for each annotation), not-ready, deleting, finished.
// declares=N,… (ports). A "~" in a note is a space.
func TestJoinScenarios(t *testing.T) {
	datadriven.RunTest(t, "testdata/join", func(t *testing.T, d *datadriven.TestData) string {
		require.Equal(t, "join", d.Cmd)
		lines := lines(d.Input)
		terms := terms{rules: DefaultRules()}
		if d.HasArg("prefill-ports") {
			var text string
			d.ScanArgs(t, "prefill-ports", &text)
			terms.prefillPorts = ports(t, text)
		}
		if d.HasArg("selectors") { // three rules by selector in place of the default ones
			terms.rules = nil
			for _, s := range [...]struct {
				selector string
				role     worker.Role
			}{{"app=llama,tier in (gold,silver)", worker.Decode}, {"!tier", worker.Prefill}, {AnyValue, NoRole}} {
				selector, err := ParseRule(s.selector)
				require.NoError(t, err)
				terms.rules = append(terms.rules, Rule{Selector: selector, Role: s.role})
			}
		}
		if d.HasArg("group") {
			d.ScanArgs(t, "group", &terms.kvGroupLabel)
		}
		var pods []found
		for _, line := range lines[1:] {
			line, second := strings.CutPrefix(line, "prefill: ")
			pods = append(pods, found{podFrom(t, line), second})
		}
		j := join(poolFrom(t, lines[0]).value, pods, &terms)
		var out []string
		for _, s := range j.serving {
			require.NoError(t, s.worker.Validate())
			out = append(out, s.key+" = "+workerText(s.worker))
		}
		slices.Sort(out)
		for _, f := range j.faults {
			out = append(out, "fault: "+f.Key+": "+f.Fault)
		}
		return strings.Join(out, "\n")
	})
}

// play is one machine of a scenario, and a reducer that takes what it sends.
type play struct {
	m       *machine
	now     time.Time
	queries [resources]query
	set     discovery.Reducer
}

func TestMachineScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/machine", func(t *testing.T, path string) {
		p := &play{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				p = newPlay(t, d)
			} else {
				p.do(t, d)
			}
			return p.tell(t)
		})
	})
}

func newPlay(t *testing.T, d *datadriven.TestData) *play {
	p := &play{now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	var prefill map[string]string
	if d.HasArg("prefill") {
		var text string
		d.ScanArgs(t, "prefill", &text)
		prefill = labels(text)
	}
	var fixed *Pool
	if d.HasArg("standalone") {
		fixed = poolFrom(t, strings.TrimSpace(d.Input)).value
	}
	p.m = newMachine("infra/primary", fixed, prefill, terms{rules: DefaultRules()})
	return p
}

func (p *play) do(t *testing.T, d *datadriven.TestData) {
	of := poolPods
	if d.HasArg("of") {
		var text string
		d.ScanArgs(t, "of", &text)
		of = map[string]resource{"pools": pools, "prefill": prefillPods}[text]
	}
	by := p.m.queries()[of]
	switch d.Cmd {
	case "pools":
		in := poolsListed{watch: d.HasArg("watch")}
		for _, line := range lines(d.Input) {
			in.pools = append(in.pools, poolFrom(t, line))
		}
		p.m.take(in)
	case "pool":
		p.m.take(poolPut{poolFrom(t, strings.TrimSpace(d.Input))})
	case "pool-gone":
		p.m.take(poolGone{})
	case "pods":
		in := podsListed{of: of, by: by, watch: d.HasArg("watch")}
		for _, line := range lines(d.Input) {
			in.pods = append(in.pods, podFrom(t, line))
		}
		p.m.take(in)
	case "late-put":
		d.ScanArgs(t, "late", &by.selector)
		fallthrough
	case "put":
		for _, line := range lines(d.Input) {
			p.m.take(podPut{of, by, podFrom(t, line)})
		}
	case "gone":
		for _, line := range lines(d.Input) {
			p.m.take(podGone{of, by, podFrom(t, line)})
		}
	case "broken":
		in := broken{of: of, place: d.HasArg("lost"), why: strings.TrimSpace(d.Input)}
		d.ScanArgs(t, "verb", &in.verb)
		p.m.take(in)
	case "resumed":
		p.m.take(resumed{of})
	case "restart":
		p.m.restart()
		_ = p.set.Apply(discovery.Begin{})
	case "wait":
		var text string
		d.ScanArgs(t, "for", &text)
		took, err := time.ParseDuration(text)
		require.NoError(t, err)
		p.now = p.now.Add(took)
		p.m.take(tick{})
	default:
		d.Fatalf(t, "verb %q is unknown", d.Cmd)
	}
}

// tell prints what the machine would have the edge do, and checks that the reducer takes
// it.
func (p *play) tell(t *testing.T) string {
	var b strings.Builder
	for _, ev := range p.m.events(p.now) {
		b.WriteString(eventText(ev))
		require.NoError(t, p.set.Apply(ev))
	}
	require.Empty(t, p.m.events(p.now), "all has been told")
	if now := p.m.queries(); now != p.queries {
		for r, q := range now {
			if q != p.queries[r] {
				fmt.Fprintf(&b, "watch %s: %s\n", []string{"pools", "pods", "prefill pods"}[r], or(q.selector, "no more"))
			}
		}
		p.queries = now
	}
	if exists, why, known := p.m.presence(); known && !exists {
		fmt.Fprintf(&b, "absent: it %s\n", why)
	}
	return b.String()
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func eventText(ev discovery.Event) string {
	var b strings.Builder
	switch ev := ev.(type) {
	case discovery.List:
		fmt.Fprintf(&b, "list at %d\n", ev.Revision)
		for _, e := range ev.Entries {
			fmt.Fprintf(&b, "  %s\n", entryText(e))
		}
	case discovery.Batch:
		fmt.Fprintf(&b, "batch %d after %d\n", ev.Revision, ev.After)
		for _, op := range ev.Ops {
			if op.Gone {
				fmt.Fprintf(&b, "  delete %s\n", op.Key)
			} else {
				fmt.Fprintf(&b, "  put %s\n", entryText(op.Entry))
			}
		}
	case discovery.Broken:
		fmt.Fprintf(&b, "broken: %s\n", ev.Reason)
	}
	return b.String()
}

func entryText(e discovery.Entry) string {
	if e.Worker == nil {
		return e.Key + ": " + e.Fault
	}
	return e.Key + " = " + workerText(e.Worker)
}

func workerText(w *worker.Worker) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", w.Role, w.Endpoint)
	add := func(when bool, format string, a ...any) {
		if when {
			fmt.Fprintf(&b, " "+format, a...)
		}
	}
	add(!w.Fixed.Has(worker.FactRole), "role-by-engine")
	add(w.EngineRank > 0, "rank=%d", w.EngineRank)
	add(w.Engine != "", "engine=%s", w.Engine)
	add(len(w.Models) > 0, "models=%s", strings.Join(w.Models, ","))
	add(w.BlockSize > 0, "block=%d", w.BlockSize)
	add(w.DPSize > 1, "dp=%d", w.DPSize)
	add(w.CapacityBlocks > 0, "capacity=%d", w.CapacityBlocks)
	add(w.MaxModelLen > 0, "length=%d", w.MaxModelLen)
	add(w.Eagle, "eagle")
	for i, text := range w.Pair {
		add(text != "", "%s=%s", worker.PairFact(i), text)
	}
	add(w.AcceptsAggregated, "alone-too")
	add(!w.Bootstrap.IsZero(), "bootstrap=%s:%d", w.Bootstrap.Host, w.Bootstrap.Port)
	add(!w.KVEvents.IsZero(), "events=%s:%d/%d/%s", w.KVEvents.Host, w.KVEvents.Port, w.KVEvents.ReplayPort, w.KVEvents.Topic)
	add(w.KVEvents.IsZero() && w.Fixed.Has(worker.FactKVEvents), "no-events")
	add(!w.FactsUnknown, "complete")
	add(w.Draining, "draining")
	return b.String()
}

func lines(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
}

func labels(s string) map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(pair, ":")
		if k != "" {
			out[k] = v
		}
	}
	return out
}

func ports(t *testing.T, s string) (out []uint16) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(part, 10, 16)
		require.NoError(t, err)
		out = append(out, uint16(n))
	}
	return out
}

func poolFrom(t *testing.T, line string) object[*Pool] {
	t.Helper()
	p := &Pool{Namespace: "infra", Name: "primary", UID: "pool"}
	for word := range strings.FieldsSeq(line) {
		key, v, _ := strings.Cut(word, "=")
		switch key {
		case "selector":
			p.Selector = labels(v)
		case "ports":
			p.Ports = ports(t, v)
		case "uid":
			p.UID = v
		case "deleting":
			p.Deleting = true
		case "fault":
			return object[*Pool]{p, strings.ReplaceAll(v, "~", " ")}
		default:
			require.FailNow(t, "unknown word", word)
		}
	}
	return object[*Pool]{p, ""}
}

func podFrom(t *testing.T, line string) *Pod {
	t.Helper()
	words := strings.Fields(line)
	number := words[0][strings.LastIndexByte(words[0], '-')+1:]
	p := &Pod{
		Namespace: "infra", Name: words[0], UID: "u" + number, IP: "10.0.0." + number,
		Labels: map[string]string{"app": "llama"}, Annotations: map[string]string{}, Ready: true,
	}
	for _, word := range words[1:] {
		key, v, _ := strings.Cut(word, "=")
		switch key {
		case "uid":
			p.UID = v
		case "ip":
			p.IP = v
		case "labels":
			p.Labels = labels(v)
		case "note":
			name, value, _ := strings.Cut(v, ":")
			p.Annotations[name] = strings.ReplaceAll(value, "~", " ")
		case "declares":
			p.Declared = ports(t, v)
		case "not-ready":
			p.Ready = false
		case "unheard":
			p.Ready, p.Unheard = false, true
		case "deleting":
			p.Deleting = true
		case "finished":
			p.Finished = true
		default:
			require.FailNow(t, "unknown word", word)
		}
	}
	return p
}
