package health

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0: random") //nolint:gochecknoglobals // test flag

// model is the slow twin: the same rules, counting everybody at each question.
type model struct {
	cfg      Config
	snap     *worker.Snapshot
	workers  map[worker.ID]*patient
	budget   int
	ahead    int
	welcomed bool
	nextTime time.Time
	lines    []string // what the hooks would hear
}

type patient struct {
	w *worker.Worker
	RankHealth
	dead     bool
	kept     bool   // by a pool in which it was alone
	ends     []bool // of requests, good or not
	refusals int    // in a row
	servedAt time.Time
	slow     []uint64 // the request that was slow, if one was
	with     worker.ID
	withAt   time.Time
	wanted   bool      // a probe is to come, on suspicion
	due      time.Time // of the probe to come
	asked    time.Time
	flying   flight
	tried    bool
	loops    string // where a Baton has answered in its place
	arrival  []*question
}

// question is one at a worker's arrival.
type question struct {
	at      string
	waiting bool
	due     time.Time
	tries   int
}

func (m *model) mates(p *patient) (pools [][]*patient) {
	for _, k := range m.snap.Keys() {
		pool := m.snap.Pool(k)
		for _, ws := range [][]*worker.Worker{pool.Prefill, pool.Decode, pool.Aggregated} {
			var members []*patient
			for _, w := range ws {
				members = append(members, m.workers[w.ID])
			}
			if slices.Contains(members, p) {
				pools = append(pools, members)
			}
		}
	}
	return pools
}

func (m *model) limit(members []*patient) int {
	return int(math.Ceil(m.cfg.MaxShare * float64(len(members))))
}

func count(ps []*patient, is func(*patient) bool) (n int) {
	for _, p := range ps {
		if is(p) {
			n++
		}
	}
	return n
}

func isAside(p *patient) bool   { return p.State.aside() }
func isJudged(p *patient) bool  { return p.State.aside() && !p.dead }
func isHealthy(p *patient) bool { return p.State == Healthy }

func (p *patient) tally() (w tally) {
	for i, good := range p.ends {
		weight := math.Pow(fade, float64(len(p.ends)-1-i))
		if good {
			w.good += weight
		} else {
			w.bad += weight
		}
	}
	return w
}

func (m *model) odd(p *patient, w tally) bool { return m.every(p, w.odd) }

func (m *model) every(p *patient, holds func(others tally) bool) bool {
	for _, members := range m.mates(p) {
		var others tally
		for _, x := range members {
			if x != p {
				others = others.plus(x.tally())
			}
		}
		if !holds(others) {
			return false
		}
	}
	return true
}

func (m *model) unlikely(p *patient, o Outcome) bool {
	rare := map[bool]float64{true: chanceOfBreak, false: chance}[o == BrokeOff]
	return m.every(p, func(others tally) bool { return others.unlikely(p.ConsecutiveErrors, rare) })
}

func (m *model) hasMate(p *patient) bool {
	for _, members := range m.mates(p) {
		if count(members, func(x *patient) bool { return x != p && !isAside(x) }) > 0 {
			return true
		}
	}
	return false
}

// mated reports whether each pool of p has another worker that is healthy.
func (m *model) mated(p *patient) bool {
	for _, members := range m.mates(p) {
		if count(members, func(x *patient) bool { return x != p && isHealthy(x) }) == 0 {
			return false
		}
	}
	return true
}

func (m *model) update(s *worker.Snapshot, now time.Time) {
	before := m.workers
	m.snap, m.workers = s, map[worker.ID]*patient{}
	for _, w := range s.Workers() {
		p := before[w.ID]
		if p == nil || p.w.Endpoint != w.Endpoint || w.Role == worker.Prefill && !p.w.Bootstrap.Equal(w.Bootstrap) {
			p = &patient{RankHealth: RankHealth{Rank: rankOf(w.ID)}}
			p.arrival = append(p.arrival, &question{at: "http://" + w.Endpoint.String(), waiting: true, due: now})
			if w.Role == worker.Prefill {
				p.arrival = append(p.arrival, &question{at: "http://" + w.Bootstrap.Host + ":8998", waiting: true, due: now})
			}
		}
		p.w = w
		m.workers[w.ID] = p
	}
	for {
		var back []*patient
		for _, p := range m.workers {
			over := func(members []*patient) bool { return count(members, isJudged) > m.limit(members) }
			if isJudged(p) && slices.ContainsFunc(m.mates(p), over) {
				back = append(back, p)
			}
		}
		if len(back) == 0 {
			return
		}
		m.move(slices.MinFunc(back, func(a, b *patient) int {
			x, y := a.Reason == ReasonServerErrors, b.Reason == ReasonServerErrors
			if x != y {
				return map[bool]int{true: -1, false: 1}[x]
			}
			return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Rank.ID, b.Rank.ID))
		}), Recovering, ReasonShare, now)
	}
}

func (m *model) move(p *patient, to State, r Reason, now time.Time) {
	from := p.State
	if from == Probing {
		from = Aside
	}
	m.lines = append(m.lines, fmt.Sprint(p.Rank.ID, from, to, r))
	p.State, p.Reason, p.Since, p.tried = to, r, now, false
	if !to.aside() {
		p.dead, p.wanted, p.loops = false, false, ""
	}
}

func (m *model) aside(p *patient, dead bool, r Reason, now time.Time) {
	if p.State.aside() {
		p.dead = p.dead || dead
		p.kept = p.kept && (!dead || !r.proof() && r != ReasonUnconnected)
		if dead && (r.proof() || r == ReasonUnconnected) && !p.Reason.proof() && !p.Reason.silence() {
			m.lines = append(m.lines, fmt.Sprint(p.Rank.ID, Aside, Aside, r))
			p.Reason, p.Since, p.tried = r, now, false
		}
		return
	}
	full := func(members []*patient) bool { return count(members, isJudged) >= m.limit(members) }
	last := func(members []*patient) bool { return len(members)-count(members, isAside) <= 1 }
	pools := m.mates(p)
	if !dead && (slices.ContainsFunc(pools, full) || len(pools) > 0 && !m.hasMate(p)) {
		if p.SparedFor == "" {
			m.lines = append(m.lines, fmt.Sprint(p.Rank.ID, "spared", r))
		}
		p.SparedFor = r
		return
	}
	p.kept = !dead && slices.ContainsFunc(pools, last)
	if p.State == Recovering {
		p.Relapses = min(p.Relapses+1, maxRelapses)
	}
	p.SparedFor, p.wanted = "", false
	m.move(p, Aside, r, now)
	p.dead, p.due = dead, now.Add(min(m.cfg.ProbeInterval<<(2*min(p.Relapses, mostQuadrupled)), m.cfg.MaxHold))
}

func (m *model) report(id worker.ID, r Report, now time.Time) {
	if r.Outcome == NotStarted {
		return
	}
	p := m.workers[id]
	if p == nil {
		return
	}
	if p.w.Role != worker.Prefill {
		m.budget = min(m.budget+1, 500)
	}
	if r.Outcome == Unreached {
		if p.State.aside() {
			return
		}
		defer func() {
			if p.State == Healthy {
				m.move(p, Doubted, "unreached", now)
			}
			m.suspect(p, now)
		}()
		if p.wanted || p.flying != grounded {
			return
		}
	}
	bad := slices.Contains([]Outcome{ServerError, Refused, ConnectionLost, BrokeOff, Unreached}, r.Outcome)
	if bad || r.Outcome == OK {
		p.ends = append(p.ends, !bad)
		p.ends = p.ends[max(0, len(p.ends)-1000):]
		if p.refusals++; !bad {
			p.refusals = 0
		}
	}
	stalled := slices.Contains([]Reason{"overdue", "timeout", "silent", "no-connection"}, p.Reason)
	switch {
	case r.Outcome == OK:
		p.ConsecutiveErrors, p.SparedFor, p.slow, p.servedAt = 0, "", nil, now
		if p.State == Recovering {
			p.Relapses = 0
			m.move(p, Healthy, ReasonAnswered, now)
		} else if p.State.aside() && stalled {
			m.move(p, Recovering, ReasonAnswered, now)
		}
		m.believe(p, ReasonAnswered, now)
	case r.Outcome == ConnectFailed:
		m.aside(p, true, "connect-failed", now)
	case bad && (r.Outcome != Refused || r.Proven):
		p.ConsecutiveErrors++
		trial := p.State == Recovering
		if enough := p.ConsecutiveErrors >= m.cfg.ServerErrors || trial; enough && (r.Proven || trial && m.odd(p, p.tally()) || m.unlikely(p, r.Outcome)) {
			m.aside(p, false, ReasonServerErrors, now)
		}
	case !bad && !p.State.aside() && (r.Since.IsZero() || !r.Since.Before(p.servedAt)):
		if len(p.slow) > 0 && (r.Request == 0 || p.slow[0] != r.Request) {
			defer m.aside(p, false, Reason(r.Outcome.String()), now)
		}
		p.slow = []uint64{r.Request}
	}
	if slices.Contains([]Outcome{ConnectionLost, BrokeOff, Overdue, Timeout}, r.Outcome) {
		m.suspect(p, now)
	}
}

func (m *model) suspect(p *patient, now time.Time) {
	if p == nil || p.State.aside() || p.wanted || p.flying != grounded {
		return
	}
	p.wanted, p.due = true, now
	if next := p.asked.Add(m.cfg.ProbeInterval); !p.asked.IsZero() && next.After(now) {
		p.due = next
	}
}

func (m *model) handoff(prefill, decode worker.ID, now time.Time) (blamed worker.ID) {
	a, b := m.workers[prefill], m.workers[decode]
	another := func(p *patient, with worker.ID) bool {
		return p != nil && p.with != 0 && p.with != with && now.Sub(p.withAt) < time.Minute
	}
	forget := func(p *patient, with worker.ID) {
		if p != nil && p.with == with {
			p.with = 0
		}
	}
	ofA, ofB := another(a, decode), another(b, prefill)
	if ofA && !ofB {
		forget(m.workers[a.with], prefill)
		forget(b, prefill)
	}
	if ofB && !ofA {
		forget(m.workers[b.with], decode)
		forget(a, decode)
	}
	if a != nil && (ofA || !ofB) {
		a.with, a.withAt = decode, now
	}
	if b != nil && (ofB || !ofA) {
		b.with, b.withAt = prefill, now
	}
	if ofB {
		blamed = decode
		m.aside(b, false, ReasonHandoff, now)
	}
	if ofA {
		blamed = prefill
		m.aside(a, false, ReasonHandoff, now)
	}
	return blamed
}

// begin returns whose probe begins now, nil for nobody's, or which question at an arrival.
func (m *model) begin(now time.Time) (*patient, *question) {
	if now.Before(m.nextTime) {
		return nil, nil
	}
	var suspect, back, newcomer *patient
	var question *question
	for _, p := range m.workers {
		for _, q := range p.arrival {
			if q.waiting && !q.due.After(now) && (question == nil ||
				cmp.Or(q.due.Compare(question.due), cmp.Compare(p.Rank.ID, newcomer.Rank.ID), cmp.Compare(q.at, question.at)) < 0) {
				newcomer, question = p, q
			}
		}
	}
	for _, p := range m.workers {
		for _, row := range []struct {
			first *(*patient)
			on    bool
		}{{&suspect, p.wanted}, {&back, p.State == Aside}} {
			if f := *row.first; row.on && !p.due.After(now) && (f == nil || cmp.Or(p.due.Compare(f.due), cmp.Compare(p.Rank.ID, f.Rank.ID)) < 0) {
				*row.first = p
			}
		}
	}
	welcomed := m.welcomed
	m.welcomed = question != nil && (!m.welcomed || suspect == nil && back == nil)
	switch {
	case m.welcomed:
		question.waiting = false
		m.nextTime = now.Add(time.Second / time.Duration(m.cfg.MaxProbes))
		return newcomer, question
	case suspect != nil && (back == nil || m.ahead < 3):
		m.ahead++
		if back == nil {
			m.ahead = 0
		}
		suspect.asked, suspect.flying, suspect.wanted = now, onSuspicion, false
		back = suspect
	case back == nil:
		m.welcomed = welcomed
		return nil, nil
	case back.flying != grounded:
		back.due, m.welcomed = now.Add(m.cfg.ProbeInterval), welcomed
		return nil, nil
	default:
		m.ahead, back.flying, back.State = 0, onSchedule, Probing
	}
	m.nextTime = now.Add(time.Second / time.Duration(m.cfg.MaxProbes))
	return back, nil
}

// answered takes the answer to a question at an arrival.
func (m *model) answered(p *patient, q *question, v verdict, now time.Time) {
	switch v {
	case well, answered, stranger:
	case looped:
		m.leadsBack(p, q.at, now)
	default:
		q.waiting, q.due = true, now.Add(min(m.cfg.ProbeInterval<<q.tries, m.cfg.MaxHold))
		q.tries++
	}
}

func (m *model) leadsBack(p *patient, at string, now time.Time) {
	if !p.State.aside() {
		m.aside(p, true, ReasonLeadsBack, now)
	} else if p.Reason != ReasonLeadsBack {
		m.lines = append(m.lines, fmt.Sprint(p.Rank.ID, Aside, Aside, ReasonLeadsBack))
		p.Reason, p.Since, p.dead, p.tried, p.kept = ReasonLeadsBack, now, true, false, false
	}
	p.loops = at
}

func (m *model) probed(p *patient, asked probe, v verdict, now time.Time) {
	on := p.flying
	p.flying = grounded
	dead := v == unreachable || v == unconnected || v == silent
	served := p.servedAt.After(p.asked)
	switch {
	case v == looped && on == onSuspicion:
		m.leadsBack(p, asked.at, now)
		return
	case v == looped && p.State == Probing:
		p.State, p.due = Aside, now.Add(m.cfg.ProbeInterval)
		m.leadsBack(p, asked.at, now)
		return
	case on == onSchedule && p.State == Probing && v == stranger && p.loops == "":
		p.State, p.due = Aside, now.Add(m.cfg.ProbeInterval)
		if p.Reason != ReasonOtherModels {
			m.lines = append(m.lines, fmt.Sprint(p.Rank.ID, Aside, Aside, ReasonOtherModels))
			p.Reason, p.Since, p.dead, p.tried, p.kept = ReasonOtherModels, now, true, false, false
		}
	case p.loops != "" && p.State == Probing:
		p.State, p.due = Aside, now.Add(m.cfg.ProbeInterval)
		if (v == well || v == answered) && asked.at == p.loops && asked.path == "/v1/models" {
			p.loops = ""
		}
		return
	case on == onSuspicion && v == unreachable:
		m.aside(p, true, "connect-failed", now)
		return
	case on == onSuspicion && v == stranger:
		m.aside(p, true, "other-models", now)
		return
	case on == onSuspicion && v == unconnected && !served:
		m.aside(p, true, "no-connection", now)
		return
	case on == onSuspicion && v == silent && !served && m.mated(p):
		m.aside(p, true, "silent", now)
		return
	case on == onSuspicion && v == silent:
		m.doubt(p, ReasonSilent, now)
	case on == onSuspicion && (v == late || v == unconnected):
		m.doubt(p, ReasonPageLate, now)
	case on == onSuspicion && v != unclear:
		m.believe(p, ReasonProbe, now)
	case on == onSchedule && p.State == Probing && v == well:
		p.ConsecutiveErrors = 0
		m.move(p, Recovering, ReasonProbe, now)
	case on == onSchedule && p.State == Probing:
		p.State, p.due, p.dead = Aside, now.Add(m.cfg.ProbeInterval), p.dead || dead
		if r := map[verdict]Reason{unreachable: "connect-failed", unconnected: "no-connection"}[v]; r != "" {
			m.aside(p, true, r, now)
		}
	}
	if on == onSuspicion && p.State == Doubted {
		p.wanted, p.due = true, now.Add(m.cfg.ProbeInterval)
	}
}

func (m *model) doubt(p *patient, r Reason, now time.Time) {
	if p.State == Healthy && !p.servedAt.After(p.asked) {
		m.move(p, Doubted, r, now)
	}
}

func (m *model) believe(p *patient, r Reason, now time.Time) {
	if p.State == Doubted {
		m.move(p, Healthy, r, now)
	}
}

func (m *model) standing(p *patient) Standing {
	switch {
	case p.State == Healthy:
		return Free
	case p.State.aside() && !p.kept:
		return Barred
	case p.State.aside(), p.tried, p.State == Doubted:
		return Tried
	default:
		return Half
	}
}

func (m *model) allows(p *patient) bool {
	open := false
	for _, members := range m.mates(p) {
		open = open || count(members, isHealthy) == 0
	}
	s := m.standing(p)
	return s == Free || s == Half || s == Tried && open
}

type inFlight struct {
	p        *patient
	question *question // nil: a probe
	probe    probe
}

func TestTheTrackerAgreesWithItsSlowTwin(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	for round := range uint64(8) {
		(&duel{t: t, rng: rand.New(rand.NewPCG(seed, round))}).run(2500)
	}
}

// duel does the same to both.
type duel struct {
	t      *testing.T
	rng    *rand.Rand
	tr     *Tracker
	m      *model
	now    time.Time
	lines  []string
	flying []inFlight
	trials map[worker.ID][]uint64
}

func (d *duel) run(steps int) {
	c := Config{MaxShare: []float64{0.3, 0.5, 1}[d.rng.IntN(3)], MaxProbes: []int{1, 20, 1000}[d.rng.IntN(3)]}
	c.Hooks = Hooks{
		Transition: func(x Transition) { d.lines = append(d.lines, fmt.Sprint(x.Rank.ID, x.From, x.To, x.Reason)) },
		Spared:     func(x worker.Rank, r Reason, _ time.Time) { d.lines = append(d.lines, fmt.Sprint(x.ID, "spared", r)) },
	}
	d.tr = New(c)
	d.tr.rng = newRand(noJitter{})
	d.m = &model{cfg: c.withDefaults(), budget: 300}
	d.now, d.trials = zero, map[worker.ID][]uint64{}
	d.update()
	for range steps {
		d.lines, d.m.lines = nil, nil
		if d.rng.IntN(3) == 0 {
			d.now = d.now.Add(time.Duration(d.rng.IntN(400)) * time.Millisecond)
		}
		d.step()
		d.compare()
	}
}

func (d *duel) update() {
	var text string
	for id := 1; id <= 9; id++ {
		if d.rng.IntN(4) == 0 {
			continue
		}
		text += fmt.Sprintf("%d %s %d models=%s", id, []string{"prefill", "prefill", "decode"}[id%3], 8000+d.rng.IntN(8)/7, []string{"a", "b", "a,b", "b"}[d.rng.IntN(4)])
		if d.rng.IntN(10) == 0 {
			text += " draining"
		}
		if d.rng.IntN(5) == 0 {
			text += " bootstrap=10.0.0.2"
		}
		text += "\n"
	}
	s := parseWorkers(d.t, text)
	d.tr.Update(s, d.now)
	d.m.update(s, d.now)
}

func (d *duel) step() {
	id := worker.ID(1 + d.rng.IntN(9))
	p := d.m.workers[id]
	switch d.rng.IntN(16) {
	case 0:
		if d.rng.IntN(20) == 0 {
			d.update()
		}
	case 1:
		d.tr.Suspect(rankOf(id), d.now)
		d.m.suspect(p, d.now)
	case 2:
		other := worker.ID(1 + d.rng.IntN(9))
		if id != other {
			require.Equal(d.t, d.m.handoff(id, other, d.now), d.tr.HandoffFailed(rankOf(id), rankOf(other), d.now).ID)
		}
	case 3:
		other := worker.ID(1 + d.rng.IntN(9))
		d.tr.HandoffServed(rankOf(id), rankOf(other))
		for _, id := range []worker.ID{id, other} {
			if p := d.m.workers[id]; p != nil {
				p.with = 0
			}
		}
	case 4:
		d.mate(id, p)
	case 5, 6:
		d.begin()
	case 7, 8:
		d.result()
	case 9, 10:
		d.trial(id, p)
	default:
		r := Report{Outcome: Outcome(d.rng.IntN(int(numOutcomes))), Request: d.rng.Uint64N(4), Proven: d.rng.IntN(5) == 0}
		if d.rng.IntN(3) == 0 {
			r.Outcome = OK
		}
		if d.rng.IntN(2) == 0 {
			r.Since = d.now.Add(-time.Duration(d.rng.IntN(1000)) * time.Millisecond)
		}
		for range 1 + d.rng.IntN(3) {
			d.tr.Report(rankOf(id), r, d.now)
			d.m.report(id, r, d.now)
		}
	}
}

func (d *duel) mate(id worker.ID, p *patient) {
	switch d.rng.IntN(6) {
	case 0:
		d.tr.Began(rankOf(id), d.now)
		if p != nil {
			p.refusals = 0
			d.m.believe(p, ReasonAnswered, d.now)
		}
		return
	case 1:
		d.tr.MateServed()
		d.m.budget = min(d.m.budget+100, 500)
		return
	}
	worse := func(z float64) bool {
		return d.m.every(p, func(others tally) bool { return p.tally().and(false).worse(others, z) })
	}
	run := func(chance float64) bool {
		return d.m.every(p, func(others tally) bool { return others.sudden(p.refusals+1, chance) })
	}
	trial := p != nil && p.State == Recovering
	free := p != nil && d.m.hasMate(p) && (trial || worse(5) || run(0.001))
	odd := p != nil && (run(0.02) || d.m.odd(p, p.tally().and(false)) && (d.m.budget >= 300 || worse(3)))
	want := free || d.m.budget >= 100 && odd && d.m.hasMate(p)
	if want && !trial {
		d.m.budget = max(d.m.budget-100, -5000)
	}
	require.Equal(d.t, want, d.tr.AskMate(rankOf(id)))
}

func (d *duel) begin() {
	got, any := d.tr.begin(d.now)
	want, question := d.m.begin(d.now)
	require.Equal(d.t, want != nil, any)
	if !any {
		return
	}
	require.Equal(d.t, want.Rank, got.rank)
	at, path := "http://"+want.w.Endpoint.String(), "/health"
	if question != nil {
		at, path = question.at, "/v1/models"
	} else if want.loops != "" {
		at, path = want.loops, "/v1/models"
	}
	require.Equal(d.t, []string{at, path}, []string{got.at, got.path})
	d.flying = append(d.flying, inFlight{want, question, got})
}

func (d *duel) result() {
	if len(d.flying) == 0 {
		return
	}
	i := d.rng.IntN(len(d.flying))
	f := d.flying[i]
	d.flying = slices.Delete(d.flying, i, i+1)
	known := d.m.workers[f.probe.rank.ID] == f.p
	if d.rng.IntN(2) == 0 {
		d.tr.unanswered(f.probe.rank, f.probe.number, ReasonSilent, d.now)
		if known && f.question == nil && f.p.flying == onSuspicion {
			d.m.doubt(f.p, ReasonSilent, d.now)
		}
	}
	v := verdict(d.rng.IntN(int(stranger) + 1))
	if v == looped && d.rng.IntN(3) > 0 {
		v = answered
	}
	d.tr.probed(f.probe, v, d.now)
	switch {
	case !known:
	case f.question != nil:
		d.m.answered(f.p, f.question, v, d.now)
	default:
		d.m.probed(f.p, f.probe, v, d.now)
	}
}

func (d *duel) trial(id worker.ID, p *patient) {
	if d.rng.IntN(2) == 0 {
		n := d.tr.Begin(worker.Rank{ID: id})
		require.Equal(d.t, p != nil && d.m.standing(p) == Half, n != 0)
		if n != 0 {
			p.tried = true
			d.trials[id] = append(d.trials[id], n)
		}
	} else if ns := d.trials[id]; len(ns) > 0 {
		// Of several trials the last one may be under way, and no other.
		last := ns[len(ns)-1]
		d.trials[id] = ns[:len(ns)-1]
		e := d.tr.find(rankOf(id))
		current := e != nil && e.trial.Load() == last
		d.tr.End(worker.Rank{ID: id}, last)
		if current {
			p.tried = false
		}
	}
}

func (d *duel) compare() {
	require.Equal(d.t, d.m.lines, d.lines)
	status := d.tr.Status()
	require.Len(d.t, status, len(d.m.workers))
	for _, got := range status {
		p := d.m.workers[got.Rank.ID]
		want := p.RankHealth
		want.Suspected = !want.State.aside() && (p.wanted || p.flying == onSuspicion)
		want.Unheard = got.Unheard // TestAWorkerIsUnheardUntilSomethingOfItAnswers
		require.Equal(d.t, want, got)
		one, known := d.tr.Lookup(got.Rank)
		require.True(d.t, known)
		require.Equal(d.t, got, one)
		require.Equal(d.t, d.m.standing(p), d.tr.Standing(got.Rank))
		require.Equal(d.t, p.State.aside() && !p.kept, d.tr.Aside(got.Rank))
		require.Equal(d.t, d.m.allows(p), d.tr.Allows(got.Rank))
	}
	require.Equal(d.t, d.m.budget, d.tr.budget)
	checkInvariants(d.t, d.tr)
}
