package load

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/picktable"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata. Each prints the book after it:
//
//	workers                    the snapshot; one line a worker: id role dp [port]
//	                           [domain=value …], its topology
//	pick name=a role=prefill [mode=kv] isl=64 [grows=(1s,2,40)] [overlap=0,4]
//	     [exclude=7/0] [deny=7] [within=(7/0,…)] [limit=100] [threshold=0] [preview]
//	     [table] [require=(zone/a,…)] [prefer=(zone/a:0.5,…)] [most=40]
//	     picks and books under the name; overlap has a number for each rank of the pool;
//	     table prints what the pick saw;
//	     require and prefer are taints of the topology
//	reserve name=a role=prefill rank=7/0 isl=64 [at=4]   books on this rank
//	done name=a tokens=16      prefill has computed so many tokens
//	wait for=1s                time passes
//	degraded rank=7/0 [no]
//	report rank=7/0 blocks=9 requests=1   of the engine
//	decoding                   KV blocks that each rank is assumed to hold for answers
//	release name=a             ReleaseIfHeld
//	cancel name=a              Cancel
//	move name=a rank=7/0       Move: this rank serves the request
//	queued role=prefill
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{t: t, b: New(1), res: map[string]*Reservation{}, now: time.Unix(1000, 0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.do(d) + s.book()
		})
	})
}

type scenario struct {
	t    *testing.T
	b    *Book
	snap *worker.Snapshot
	now  time.Time
	res  map[string]*Reservation
}

func (s *scenario) book() string {
	var out strings.Builder
	for _, l := range s.b.Loads(nil) {
		if l.Load != (Load{}) {
			fmt.Fprintf(&out, "%s prefill %d tokens, %d blocks, %d requests; decode %d blocks, %d requests\n",
				l.Rank, l.PrefillTokens, l.PrefillBlocks, l.PrefillRequests, l.DecodeBlocks, l.DecodeRequests)
		}
	}
	t := s.b.Totals()
	fmt.Fprintf(&out, "held %d", t.Held)
	if t.LateReleases > 0 {
		fmt.Fprintf(&out, ", late %d", t.LateReleases)
	}
	return out.String() + "\n"
}

func (s *scenario) do(d *datadriven.TestData) string {
	arg := func(k string) string {
		for _, a := range d.CmdArgs {
			if a.Key == k {
				return strings.Join(a.Vals, ",")
			}
		}
		return ""
	}
	num := func(k string) int64 {
		if arg(k) == "" {
			return 0
		}
		n, err := strconv.ParseInt(arg(k), 10, 64)
		require.NoError(s.t, err, d.Pos)
		return n
	}
	res := s.res[arg("name")]
	if res == nil {
		res = new(Reservation)
		s.res[arg("name")] = res
	}
	switch d.Cmd {
	case "workers":
		var ws []*worker.Worker
		for line := range strings.Lines(d.Input) {
			f := strings.Fields(line)
			id, err := worker.ParseID(f[0])
			require.NoError(s.t, err)
			role, err := worker.ParseRole(f[1])
			require.NoError(s.t, err)
			dp, err := strconv.Atoi(f[2])
			require.NoError(s.t, err)
			port := 8000
			domains := map[string]string{}
			for len(f) > 3 && strings.Contains(f[len(f)-1], "=") {
				domain, value, _ := strings.Cut(f[len(f)-1], "=")
				domains[domain], f = value, f[:len(f)-1]
			}
			if len(f) > 3 {
				port, err = strconv.Atoi(f[3])
				require.NoError(s.t, err)
			}
			w := testWorker(s.t, id, role, uint32(dp), port)
			w.TopologyDomains = domains
			ws = append(ws, w)
		}
		s.snap = snapshot(s.t, ws...)
		s.b.Update(s.snap)
		return ""
	case "pick", "reserve":
		return s.pick(d, arg, num, res)
	case "done":
		res.PrefillDone(num("tokens"), s.now)
	case "report":
		v, known := s.b.Report(s.rank(arg("rank")), Report{Blocks: num("blocks"), Requests: num("requests")}, s.now)
		return fmt.Sprintf("expected %d, told %d, %t\n", v.Expected, v.Told, known)
	case "decoding":
		var out strings.Builder
		for _, l := range s.b.Loads(nil) {
			if n, _ := s.b.DecodingBlocks(l.Rank, s.now); n > 0 {
				fmt.Fprintf(&out, "%s holds %d blocks\n", l.Rank, n)
			}
		}
		return out.String()
	case "wait":
		d, err := time.ParseDuration(arg("for"))
		require.NoError(s.t, err, d)
		s.now = s.now.Add(d)
	case "degraded":
		s.b.SetDegraded(s.rank(arg("rank")), !d.HasArg("no"))
	case "release":
		if !res.ReleaseIfHeld(s.now) {
			return "not held\n"
		}
	case "cancel":
		if !res.Cancel(s.now) {
			return "not held\n"
		}
	case "move":
		if err := res.Move(s.rank(arg("rank")), s.now); err != nil {
			return err.Error() + "\n"
		}
		return fmt.Sprintf("now %s\n", res.Rank())
	case "queued":
		role, err := worker.ParseRole(arg("role"))
		require.NoError(s.t, err)
		return fmt.Sprintf("queued %d\n", s.b.QueuedISLTokens(s.snap.Pool(key).Ranks(role), s.denied(arg("deny")), s.now))
	default:
		s.t.Fatalf("%s: unknown verb %q", d.Pos, d.Cmd)
	}
	return ""
}

func (s *scenario) rank(text string) worker.Rank {
	id, dp, _ := strings.Cut(text, "/")
	i, err := worker.ParseID(id)
	require.NoError(s.t, err)
	r, err := strconv.Atoi(dp)
	require.NoError(s.t, err)
	return worker.Rank{ID: i, DPRank: worker.DPRank(r)}
}

func (s *scenario) pick(d *datadriven.TestData, arg func(string) string, num func(string) int64, res *Reservation) string {
	role, err := worker.ParseRole(arg("role"))
	require.NoError(s.t, err, d.Pos)
	p := params()
	if m := arg("mode"); m != "" {
		p.Mode, err = picker.ParseMode(m)
		require.NoError(s.t, err, d.Pos)
	}
	if role == worker.Decode {
		*p = picker.DecodeOverride(*p)
	}
	isl := int(num("isl"))
	req := &Request{
		Key: key, Ranks: s.snap.Pool(key).Ranks(role), Params: p,
		Pick:   picker.Request{Role: role, ISLTokens: isl, RequestBlocks: isl / 16},
		Growth: s.growth(arg("grows")), MaxQueuedISLTokens: num("limit"), Now: s.now,
	}
	req.Constraints, req.MaxCost = s.constraints(arg("require"), arg("prefer")), float64(num("most"))
	p.PrefillTokensThreshold = num("threshold")
	if d.HasArg("table") {
		req.Explain = new(Explanation)
	}
	if o := arg("overlap"); o != "" {
		for f := range strings.SplitSeq(o, ",") {
			n, err := strconv.Atoi(f)
			require.NoError(s.t, err)
			req.Overlap = append(req.Overlap, uint32(n))
		}
	}
	if x := arg("exclude"); x != "" {
		for f := range strings.SplitSeq(x, ",") {
			req.Exclude = append(req.Exclude, s.rank(f))
		}
	}
	if in := arg("within"); in != "" {
		req.Within = picker.NewBits(len(req.Ranks))
		for f := range strings.SplitSeq(in, ",") {
			if i := slices.Index(req.Ranks, s.rank(f)); i >= 0 {
				req.Within.Set(i)
			}
		}
	}
	req.Filter = s.denied(arg("deny"))
	if d.Cmd == "reserve" {
		if err := s.b.Reserve(req, s.rank(arg("rank")), uint32(num("at")), res); err != nil {
			return err.Error() + "\n"
		}
		return fmt.Sprintf("booked %s\n", res.Rank())
	}
	if d.HasArg("preview") {
		dec, err := s.b.Preview(req)
		if err != nil {
			return err.Error() + "\n" + explained(req, dec)
		}
		return fmt.Sprintf("would pick %s (%s)\n", dec.Rank, dec.Reason) + explained(req, dec)
	}
	dec, err := s.b.PickAndReserve(req, res)
	if err != nil {
		return err.Error() + "\n" + explained(req, dec)
	}
	return fmt.Sprintf("picked %s of %d, cost %.4g (%s)\n", dec.Rank, dec.Candidates, dec.Cost, dec.Reason) + explained(req, dec)
}

// growth reads when an answer begins, its blocks a second and the most of them.
func (s *scenario) growth(text string) (g Growth) {
	if text == "" {
		return g
	}
	f := strings.Split(text, ",")
	require.Len(s.t, f, 3)
	var err error
	g.After, err = time.ParseDuration(f[0])
	require.NoError(s.t, err)
	g.PerSecond, err = strconv.ParseFloat(f[1], 64)
	require.NoError(s.t, err)
	g.Most, err = strconv.ParseFloat(f[2], 64)
	require.NoError(s.t, err)
	return g
}

func (s *scenario) constraints(required, preferred string) *picker.Constraints {
	var c picker.Constraints
	taint := func(pair string) string {
		domain, value, _ := strings.Cut(pair, "/")
		return worker.TaintOf(domain, value)
	}
	for pair := range strings.SplitSeq(required, ",") {
		if pair != "" {
			c.Require(taint(pair))
		}
	}
	for pair := range strings.SplitSeq(preferred, ",") {
		if pair != "" {
			pair, weight, _ := strings.Cut(pair, ":")
			w, err := strconv.ParseFloat(weight, 64)
			require.NoError(s.t, err)
			c.Prefer(taint(pair), w)
		}
	}
	return &c
}

// denied is a filter that sets one worker aside; nil for none.
func (s *scenario) denied(text string) Filter {
	if text == "" {
		return nil
	}
	id, err := worker.ParseID(text)
	require.NoError(s.t, err)
	return &denyList{id}
}

// explained is the explanation of a pick, if the request asked for one.
func explained(req *Request, dec picker.Decision) string {
	x := req.Explain
	if x == nil {
		return ""
	}
	var out strings.Builder
	if len(x.Rows) > 0 {
		out.WriteString(picktable.Format(x.Rows, dec.Rank))
	}
	for _, o := range x.Out {
		why := [...]string{OutAside: "aside", OutExcluded: "excluded", OutUnknown: "unknown", OutOverloaded: "overloaded", OutTaint: "lacks " + o.Taint, OutSubset: "not within"}[o.Cause]
		if o.Cause == OutOverloaded {
			why = o.Overload.String()
		}
		fmt.Fprintf(&out, "out %s: %s\n", o.Rank, why)
	}
	if x.Left > 0 {
		fmt.Fprintf(&out, "and %d more\n", x.Left)
	}
	return out.String()
}

// denyList is a filter that sets these workers aside.
type denyList []worker.ID

func (l *denyList) Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	return 1, dst, since != 1
}

func (l *denyList) Standing(r worker.Rank) health.Standing {
	if slices.Contains(*l, r.ID) {
		return health.Barred
	}
	return health.Free
}

func (*denyList) Begin(worker.Rank) (trial uint64) { return 0 }
func (*denyList) End(_ worker.Rank, _ uint64)      {}
