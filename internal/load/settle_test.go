package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// hand is one rank. The test makes its bookings, KV events and reports.
type hand struct {
	t    *testing.T
	b    *Book
	s    *worker.Snapshot
	p    picker.Params
	now  time.Time
	rank worker.Rank
}

func newHand(t *testing.T) *hand {
	t.Helper()
	h := &hand{t: t, b: New(1), s: snapshot(t, testWorker(t, 1, worker.Decode, 1, 8000)), p: picker.DecodeOverride(*params()), now: time.Unix(1000, 0)}
	h.b.Update(h.s)
	h.rank = h.s.Pool(key).DecodeRanks[0]
	return h
}

// book books an answer to a prompt of one block.
func (h *hand) book(g Growth) *Reservation {
	h.t.Helper()
	r := new(Reservation)
	_, err := h.b.PickAndReserve(&Request{
		Key: key, Ranks: h.s.Pool(key).DecodeRanks, Params: &h.p, Now: h.now, Growth: g,
		Pick: picker.Request{Role: worker.Decode, ISLTokens: 16},
	}, r)
	require.NoError(h.t, err)
	return r
}

func (h *hand) holds() float64 {
	h.t.Helper()
	n, known := h.b.DecodingBlocks(h.rank, h.now)
	require.True(h.t, known)
	return float64(n)
}

// tells gives the book KV events of so many blocks every tenth of a second, for a time.
func (h *hand) tells(d time.Duration, blocks int) {
	for range d / (100 * time.Millisecond) {
		h.now = h.now.Add(100 * time.Millisecond)
		h.b.Wrote(h.rank, blocks, true, h.now)
	}
}

func (h *hand) reports(blocks, requests int64) {
	h.t.Helper()
	_, known := h.b.Report(h.rank, Report{Blocks: blocks, Requests: requests}, h.now)
	require.True(h.t, known)
}

// Blocks that KV events told before a report are part of the report.
func TestWhatAReportHasInItIsNotCountedAgain(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	r := h.book(Growth{PerSecond: 1, Most: 1e6})
	h.tells(10*time.Second+500*time.Millisecond, 100)
	h.reports(10_500, 1)
	require.InDelta(t, 10_500, h.holds(), 1)
	h.tells(600*time.Millisecond, 100) // the window that began before the report ends
	require.InDelta(t, 11_100, h.holds(), 0.06*11_100, "the report counts for less and less")
	require.InDelta(t, 599, h.b.entries[0].written.off.blocks, 2)
	require.InDelta(t, 1000, h.b.entries[0].written.pace, 2)
	r.Release(h.now)
}

// The blocks of an answer beyond what was expected are in the last report, or were heard
// since. They come off once.
func TestTheExcessOfAnAnswerComesOffOnce(t *testing.T) {
	t.Parallel()
	for _, expected := range []float64{1, 100, 400} { // each answer writes 100 blocks a second
		h := newHand(t)
		one, two := h.book(Growth{PerSecond: expected, Most: 1e6}), h.book(Growth{PerSecond: expected, Most: 1e6})
		h.tells(20*time.Second, 20)
		h.reports(4002, 2)
		h.tells(1100*time.Millisecond, 20)
		whole := h.holds()
		one.Release(h.now)
		require.InDelta(t, whole/2, h.holds(), 30, "expected: %v", expected)
		two.Release(h.now)
		require.Zero(t, h.holds())
	}
}

// An answer that was over when its engine reported has no part in the report, and has
// written nothing since.
func TestAnAnswerThatWasOverBeforeTheReportTakesNothingWithIt(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{false, true} {
		h := newHand(t)
		over, runs := h.book(Growth{PerSecond: 400, Most: 1e6}), h.book(Growth{PerSecond: 400, Most: 1e6})
		if events {
			h.tells(10*time.Second, 20)
		} else {
			h.now = h.now.Add(10 * time.Second)
		}
		h.reports(1001, 1) // the blocks of the other answer, which has written 100 a second
		if events {
			h.tells(1100*time.Millisecond, 10)
		} else {
			h.now = h.now.Add(1100 * time.Millisecond)
		}
		over.Release(h.now)
		want := 1111.0 + 330 // 330 of the 3,000 blocks that the report has corrected
		if !events {
			want += 330 // without events the answer's lower speed is not known
		}
		require.InDelta(t, want, h.holds(), 40, "events: %v", events)
		runs.Release(h.now)
		require.Zero(t, h.holds())
	}
}

// The report says which requests were over only while it counts. A booking that is
// released later may be any that existed at the report, also one that the engine had not
// begun by then.
func TestWhoWasOverIsForgottenWithTheReport(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	one, two := h.book(Growth{PerSecond: 1, Most: 1e6}), h.book(Growth{PerSecond: 1, Most: 1e6})
	h.tells(5*time.Second, 10)
	h.reports(501, 1)        // the engine has postponed the other answer
	h.tells(time.Minute, 20) // then it runs both again, and does not report any more
	whole := h.holds()
	one.Release(h.now)
	require.InDelta(t, whole/2, h.holds(), 0.1*whole)
	two.Release(h.now)
	require.Zero(t, h.holds())
}

// A request that is booked after a report has no part in it, and its end does not change
// it.
func TestAReportIsOfTheRequestsThatWereThere(t *testing.T) {
	t.Parallel()
	long := func(h *hand) *Reservation {
		r := new(Reservation)
		_, err := h.b.PickAndReserve(&Request{
			Key: key, Ranks: h.s.Pool(key).DecodeRanks, Params: &h.p, Now: h.now,
			Pick: picker.Request{Role: worker.Decode, ISLTokens: 16_000},
		}, r)
		require.NoError(t, err)
		return r
	}
	t.Run("an answer was over", func(t *testing.T) {
		t.Parallel()
		h := newHand(t)
		over, runs := h.book(Growth{}), h.book(Growth{})
		h.now = h.now.Add(time.Second)
		h.reports(1, 1)
		h.now = h.now.Add(time.Second)
		before := h.holds()
		long(h).Release(h.now)
		require.InDelta(t, before, h.holds(), 0)
		over.Release(h.now)
		require.InDelta(t, 1, h.holds(), 0)
		runs.Release(h.now)
	})
	t.Run("it holds more than is booked", func(t *testing.T) {
		t.Parallel()
		h := newHand(t)
		one, two := h.book(Growth{}), h.book(Growth{})
		h.now = h.now.Add(time.Second)
		h.reports(4002, 2)
		var since []*Reservation
		h.now = h.now.Add(time.Millisecond)
		for range 8 {
			since = append(since, h.book(Growth{}))
		}
		since[0].Release(h.now)
		require.InDelta(t, 4002+7, h.holds(), 1)
		one.Release(h.now)
		require.InDelta(t, 2001+7, h.holds(), 1)
		two.Release(h.now)
		require.InDelta(t, 7, h.holds(), 1, "what was found goes with those that it was found with")
		for _, r := range since[1:] {
			r.Release(h.now)
		}
		require.Zero(t, h.holds())
	})
	t.Run("others have sent requests there, too", func(t *testing.T) {
		t.Parallel()
		h := newHand(t)
		one := h.book(Growth{})
		h.now = h.now.Add(time.Second)
		h.reports(4001, 5)
		h.now = h.now.Add(time.Millisecond)
		next := h.book(Growth{})
		one.Release(h.now)
		require.InDelta(t, 3201, h.holds(), 1, "theirs go on")
		next.Release(h.now)
	})
	t.Run("one has come from another rank", func(t *testing.T) {
		t.Parallel()
		b, s := New(1), snapshot(t, testWorker(t, 1, worker.Decode, 2, 8000))
		b.Update(s)
		h := &hand{t: t, b: b, s: s, p: picker.DecodeOverride(*params()), now: time.Unix(1000, 0)}
		one, two := h.book(Growth{}), h.book(Growth{})
		h.rank = two.Rank()
		require.NotEqual(t, one.Rank(), h.rank)
		h.reports(401, 1)
		h.now = h.now.Add(time.Millisecond)
		require.NoError(t, one.Move(h.rank, h.now))
		one.Release(h.now)
		require.InDelta(t, 401, h.holds(), 1)
		two.Release(h.now)
	})
}

// The blocks of a rank's last answer do not count for its next one.
func TestAnAnswerBeginsWithNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	h := newHand(t)
	one := h.book(Growth{PerSecond: 1, Most: 1e6})
	h.tells(10*time.Second+800*time.Millisecond, 100)
	one.Release(h.now)
	two := h.book(Growth{PerSecond: 1000, Most: 1e6})
	h.tells(2*time.Second, 100)
	require.InDelta(t, 2001, h.holds(), 10)
	two.Release(h.now)
}

// plainAnswer is an answer that records its own blocks beyond what was expected.
type plainAnswer struct {
	r      *Reservation
	g      Growth
	began  time.Time
	pace   float64
	beyond float64 // blocks found beyond what was expected
	seen   time.Time
}

func (a *plainAnswer) at(now time.Time, pace float64) float64 {
	return max(0, min(pace*(now.Sub(a.began)-a.g.After).Seconds(), a.g.Most))
}

// find adds the difference that has arisen since the last call.
func (a *plainAnswer) find(now time.Time) {
	more := func(pace float64) float64 { return a.at(now, pace) - a.at(a.seen, pace) }
	a.beyond += more(a.pace) - more(a.g.PerSecond)
	a.seen = now
}

// plainRank computes what a rank holds without sums: it has each answer, and an answer
// that ends takes its own difference with it.
type plainRank struct {
	running    []*plainAnswer
	correction float64
	of         float64 // answers of the last report that still run
	reported   time.Time
	compared   time.Time
}

func (p *plainRank) booked(now time.Time) (n float64) {
	for _, a := range p.running {
		n += 1 + a.at(now, a.g.PerSecond)
	}
	return n
}

func (p *plainRank) holds(now time.Time) float64 {
	n := p.booked(now) + p.correction*max(0, 1-now.Sub(p.reported).Seconds()/reportLasts.Seconds())
	for _, a := range p.running {
		n += a.beyond
	}
	return max(0, n)
}

func (p *plainRank) compare(now time.Time) {
	for _, a := range p.running {
		a.beyond *= 1 - now.Sub(p.compared).Seconds()/offLasts.Seconds()
		a.find(now)
	}
	p.compared = now
}

func (p *plainRank) report(now time.Time) (own float64) {
	for _, a := range p.running {
		own += 1 + a.at(now, a.pace)
		a.beyond, a.seen = 0, now
	}
	p.correction, p.reported, p.of = own-p.booked(now), now, float64(len(p.running))
	return own
}

func (p *plainRank) end(i int) {
	if !p.running[i].began.After(p.reported) {
		p.correction *= (p.of - 1) / p.of
		p.of--
	}
	p.running = slices.Delete(p.running, i, i+1)
}

// run is three minutes of a rank, with a plain twin for comparison.
type run struct {
	*hand
	plainRank

	rng     *rand.Rand
	pace    float64 // of each answer
	growth  Growth  // expected growth
	reports bool

	written, told float64 // blocks of answers that are over; blocks told of all answers
	lately        float64 // the most that was held lately
}

func newRun(t *testing.T, rng *rand.Rand) *run {
	t.Helper()
	x := &run{
		hand: newHand(t), rng: rng, pace: 100 * (1 + rng.Float64()), reports: rng.IntN(3) == 0,
		growth: Growth{PerSecond: 300*rng.Float64() + 10, Most: 1e6},
	}
	if rng.IntN(2) == 0 {
		x.growth.Most = 4000
	}
	x.b.Wrote(x.rank, 0, true, x.now)
	x.compared = x.now
	return x
}

func (x *run) begin() {
	g := x.growth
	g.After = time.Duration(x.rng.IntN(500)) * time.Millisecond
	x.running = append(x.running, &plainAnswer{r: x.book(g), g: g, began: x.now, pace: x.pace, seen: x.now})
}

func (x *run) over(i int) {
	x.written += x.running[i].at(x.now, x.pace)
	x.running[i].r.Release(x.now)
	x.end(i)
}

// step is a tenth of a second. It returns the difference between the two, as a share of
// what was held lately. It is 0 if nothing was compared in this step.
func (x *run) step(mayEnd bool) (off float64) {
	x.now = x.now.Add(100 * time.Millisecond)
	n := x.rng.IntN(60)
	switch {
	case n < 2 && len(x.running) < 12 || len(x.running) < 2:
		x.begin()
	case n < 4 && len(x.running) > 2 && mayEnd:
		x.over(x.rng.IntN(len(x.running)))
	}
	whole := slices.IndexFunc(x.running, func(a *plainAnswer) bool { return a.at(x.now, x.pace) >= x.growth.Most })
	if whole >= 0 {
		x.over(whole)
	}
	sum := x.written
	for _, a := range x.running {
		sum += a.at(x.now, x.pace)
	}
	full := int(sum - x.told)
	x.told += float64(full)
	_, compared := x.b.Wrote(x.rank, full, true, x.now)
	if compared {
		x.compare(x.now)
		want := x.plainRank.holds(x.now)
		x.lately = max(want, x.lately*0.967, 500)
		off = (x.hand.holds() - want) / x.lately
	}
	if x.reports && n == 4 {
		x.hand.reports(int64(x.report(x.now)+0.5), int64(len(x.running)))
		require.InDelta(x.t, x.plainRank.holds(x.now), x.hand.holds(), 2)
	}
	return off
}

// The sums of a rank must equal the sum over its answers, whatever ends and is reported
// in between.
func TestARankHoldsWhatItsAnswersHoldOneByOne(t *testing.T) {
	t.Parallel()
	seed, rounds := *seedFlag, 60
	if seed == 0 {
		seed = rand.Uint64()
	}
	if testing.Short() {
		rounds = 6
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	rng, worst := newRand(seed), 0.0
	for round := range rounds {
		x := newRun(t, rng)
		for tick := range 1800 {
			off := x.step(tick > 20) // by tick 20 the pace is known
			worst = max(worst, off, -off)
			require.InDelta(t, 0, off, 0.05, "round %d: %v blocks, expected %v", round, x.hand.holds(), x.plainRank.holds(x.now))
		}
		for _, a := range x.running {
			a.r.Release(x.now)
		}
		require.Zero(t, x.hand.holds())
	}
	t.Logf("at most %.1f %% off", 100*worst)
}
