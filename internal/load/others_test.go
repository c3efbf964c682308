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

// teller is a replica of the model below: a book, its bookings, and what is on its way to the others.
type teller struct {
	*Book

	life, version uint64
	held          []*Reservation
	mail          []Told // to this one
}

func (r *teller) say(whole bool, now time.Time) Told {
	r.version++
	m := Told{Life: r.life, Version: r.version, Whole: whole}
	m.Ranks, m.Sum = r.Tell(nil, whole, now)
	return m
}

// check looks at what holds at any time.
func (r *teller) check(t *testing.T) {
	t.Helper()
	for i := range r.entries {
		e := &r.entries[i]
		n, tokens := 0, int64(0)
		for q := e.queue.head; q != nil; q = q.after {
			n++
			tokens += q.load.PrefillTokens
		}
		require.Equal(t, e.queue.n, n)
		require.False(t, e.load.negative(), "%+v", e.load)
		require.LessOrEqual(t, tokens, e.load.PrefillTokens)
		own := e.own()
		require.False(t, own.negative(), "%+v", own)
	}
}

func TestBooksOfReplicasBecomeEqual(t *testing.T) {
	for range 20 {
		seed := *seedFlag
		if seed == 0 {
			seed = rand.Uint64()
		}
		rng, now := newRand(seed), time.Unix(1000, 0)
		some := func() *worker.Snapshot {
			var ws []*worker.Worker
			for id := range worker.ID(6) {
				if id > 3 || rng.IntN(3) > 0 {
					ws = append(ws, testWorker(t, id+1, worker.Role(1+id%3), uint32(1+id%2), 8000))
				}
			}
			return snapshot(t, ws...)
		}
		snap := some()
		var all [3]*teller
		for i := range all {
			all[i] = &teller{Book: New(seed + uint64(i) + 1), life: uint64(i) + 1}
			all[i].Update(snap)
		}
		post := func(from *teller, m Told) {
			for _, to := range all {
				if to == from || rng.IntN(4) == 0 { // lost
					continue
				}
				for range 1 + rng.IntN(6)/5 { // some twice
					to.mail = append(to.mail, m)
				}
			}
		}
		deliver := func(to *teller) {
			if len(to.mail) > 0 { // in any order
				i := rng.IntN(len(to.mail))
				m := to.mail[i]
				to.mail = slices.Delete(to.mail, i, i+1)
				to.Hear(&m, now)
			}
		}
		for step := range 3000 {
			now = now.Add(time.Duration(rng.IntN(20)) * time.Millisecond)
			r := all[rng.IntN(3)]
			switch rng.IntN(12) {
			case 0, 1, 2, 3:
				role := worker.Role(1 + rng.IntN(3))
				req := &Request{Key: key, Ranks: snap.Pool(key).Ranks(role), Params: params(), Now: now, Pick: picker.Request{Role: role, ISLTokens: 1 + rng.IntN(400)}}
				into := new(Reservation)
				if _, err := r.PickAndReserve(req, into); err == nil {
					r.held = append(r.held, into)
				}
			case 4, 5:
				if len(r.held) > 0 {
					r.held[rng.IntN(len(r.held))].PrefillDone(int64(rng.IntN(200)), now)
				}
			case 6, 7, 8:
				if len(r.held) > 0 {
					i := rng.IntN(len(r.held))
					r.held[i].Release(now)
					r.held = slices.Delete(r.held, i, i+1)
				}
			case 9:
				post(r, r.say(rng.IntN(10) == 0, now))
			case 10:
				if len(r.held) > 0 {
					_ = r.held[rng.IntN(len(r.held))].Move(worker.Rank{ID: worker.ID(1 + rng.IntN(6))}, now)
				}
			case 11:
				if rng.IntN(20) == 0 {
					snap = some()
					r.Update(snap) // the others see it later, or never
				}
				if rng.IntN(40) == 0 {
					r.Fade(uint64(1+rng.IntN(3)), time.Duration(rng.IntN(20))*time.Second, now)
				}
			}
			if rng.IntN(7) == 0 { // about as many as are sent
				deliver(all[rng.IntN(3)])
			}
			if step%10 == 0 {
				r.check(t)
			}
		}
		late := 0
		agree := func() {
			t.Helper()
			for _, r := range all {
				r.Update(snap)
			}
			for _, from := range all {
				m := from.say(true, now)
				require.Equal(t, from.OwnSum(), m.Sum)
				for _, to := range all {
					if to != from {
						fresh, sum := to.Hear(&m, now)
						require.True(t, fresh)
						require.Equal(t, m.Sum, sum, "seed %d", seed)
					}
				}
			}
			for _, r := range all { // what comes late changes nothing
				late += len(r.mail)
				for len(r.mail) > 0 {
					deliver(r)
				}
				r.check(t)
				require.Equal(t, all[0].Loads(nil), r.Loads(nil), "seed %d", seed)
			}
		}
		agree()
		for _, r := range all {
			for _, h := range r.held {
				h.Release(now)
			}
		}
		agree()
		require.NotZero(t, late)
		for _, r := range all {
			require.Zero(t, r.OwnSum())
			for i := range r.entries {
				require.Zero(t, r.entries[i].load)
				require.Zero(t, r.entries[i].queue.n)
				require.Empty(t, r.entries[i].others)
			}
		}
	}
}

// Two books that hear of each other expect the same of each rank as one book with all bookings.
func TestWhatAnotherHasBookedIsAsIfItWereOnesOwn(t *testing.T) {
	s, now := fleet(t, 2, 1), time.Unix(1000, 0)
	one, a, b := New(1), New(1), New(1)
	for _, book := range []*Book{one, a, b} {
		book.Update(s)
		for _, r := range s.Pool(key).PrefillRanks {
			book.SetPace(r, picker.Pace{PerToken: 1e-3, PerRequest: 0.01})
		}
	}
	var version uint64
	hear := func() {
		for i, from := range []*Book{a, b} {
			version++
			m := Told{Life: uint64(i + 1), Version: version}
			m.Ranks, m.Sum = from.Tell(nil, false, now)
			[]*Book{b, a}[i].Hear(&m, now)
		}
	}
	var held []*Reservation
	for i := range 20 { // in turn at the two
		now = now.Add(100 * time.Millisecond)
		books := []*Book{one, []*Book{a, b}[i%2]}
		var at [2]worker.Rank
		for k, book := range books {
			req := prefillRequest(s, 100+30*i, params())
			req.Params.InSeconds, req.Now = true, now
			r := new(Reservation)
			d, err := book.PickAndReserve(req, r)
			require.NoError(t, err)
			at[k], held = d.Rank, append(held, r)
		}
		require.Equal(t, at[0], at[1], "request %d", i)
		if i%3 == 2 {
			for range 2 {
				held[0].Release(now)
				held = held[1:]
			}
		}
		hear()
		for _, r := range s.Pool(key).PrefillRanks {
			want := one.Wait(r, now)
			require.InDelta(t, want, a.Wait(r, now), 1e-6)
			require.InDelta(t, want, b.Wait(r, now), 1e-6)
		}
	}
}

// TestWhatASilentReplicaHasBookedFades over the time that bookings lately took, comes back with its
// next message, and ends with its process.
func TestWhatASilentReplicaHasBookedFades(t *testing.T) {
	now := time.Unix(1000, 0)
	s := snapshot(t, testWorker(t, 1, worker.Aggregated, 1, 8000))
	b := New(1)
	b.Update(s)
	rank := worker.Rank{ID: 1}
	m := Told{Life: 7, Version: 1, Ranks: []Booked{{Rank: rank, Load: Load{PrefillTokens: 1000, DecodeBlocks: 100, DecodeRequests: 10}, Queue: []Queued{{ID: 1, Tokens: 600}, {ID: 2, Tokens: 400}}}}}
	_, sum := b.Hear(&m, now)
	require.Equal(t, checksum(rank, &m.Ranks[0].Load), sum)
	require.Equal(t, int64(1000), b.Heard(7).PrefillTokens)
	blocks := func() int64 { n, _ := b.DecodingBlocks(rank, now); return n }
	require.EqualValues(t, 100, blocks())
	b.Fade(7, 21*time.Second, now) // nothing has ended here: half after 21 s
	h := b.Heard(7)
	require.True(t, h.Fades)
	require.InDelta(t, 500, h.PrefillTokens, 10)
	require.InDelta(t, 50, blocks(), 1)
	b.Fade(7, time.Hour, now)
	require.Zero(t, b.Heard(7).Load)
	require.Zero(t, blocks())
	_, sum = b.Hear(&Told{Life: 7, Version: 2}, now)
	require.Equal(t, checksum(rank, &m.Ranks[0].Load), sum, "what it has told is still known")
	require.EqualValues(t, 100, blocks(), "a word of it makes all count again")
	require.Equal(t, int64(1000), b.Heard(7).PrefillTokens)
	b.Fade(7, time.Second, now)
	require.EqualValues(t, 10, b.Heard(7).DecodeRequests, "one of ten is no half second's loss")
	m.Version = 3
	_, _ = b.Hear(&m, now)
	require.Zero(t, b.Totals().Load, "none of it is this book's")
	own, known := b.Load(rank)
	require.True(t, known)
	require.Zero(t, own)
	require.Equal(t, m.Ranks[0].Load, b.LoadOfAll(rank))
	b.Forget(7, now)
	require.Zero(t, blocks())
	require.Zero(t, b.Heard(7))
}

// TestALotOfPromptsIsToldInPart: only the oldest of a long queue are told one by one, and all are in the sums.
func TestALotOfPromptsIsToldInPart(t *testing.T) {
	s, now := fleet(t, 1, 1), time.Unix(1000, 0)
	a, b := New(1), New(2)
	a.Update(s)
	b.Update(s)
	var held []*Reservation
	for range 1000 {
		r := new(Reservation)
		_, err := a.PickAndReserve(prefillRequest(s, 160, params()), r)
		require.NoError(t, err)
		held = append(held, r)
	}
	m := Told{Life: 1, Version: 1}
	m.Ranks, m.Sum = a.Tell(nil, false, now)
	require.Len(t, m.Ranks, 1)
	require.Len(t, m.Ranks[0].Queue, MostQueued)
	b.Hear(&m, now)
	require.EqualValues(t, 160_000, b.Heard(1).PrefillTokens)
	require.EqualValues(t, 160_000, b.QueuedISLTokens(s.Pool(key).PrefillRanks, nil, now))
	before := b.Wait(worker.Rank{ID: 1}, now)
	b.ReportQueue(worker.Rank{ID: 1}, 1000, now)
	require.InDelta(t, before, b.Wait(worker.Rank{ID: 1}, now), 1e-6, "the engine has no other ones")
	require.InDelta(t, a.Wait(worker.Rank{ID: 1}, now), before, 1e-6)
	for _, r := range held[:990] {
		r.Release(now)
	}
	m.Version++
	m.Ranks, m.Sum = a.Tell(m.Ranks[:0], false, now)
	b.Hear(&m, now)
	require.EqualValues(t, 1600, b.Heard(1).PrefillTokens)
	require.Equal(t, 10, b.entries[0].queue.n)
}

func TestTheNewestMessageCounts(t *testing.T) {
	now := time.Unix(1000, 0)
	b := New(1)
	b.Update(fleet(t, 2, 1))
	say := func(version uint64, whole bool, id worker.ID, tokens int64) Told {
		m := Told{Life: 1, Version: version, Whole: whole}
		if id != 0 {
			m.Ranks = []Booked{{Rank: worker.Rank{ID: id}, Load: Load{PrefillTokens: tokens, PrefillRequests: 1}}}
		}
		return m
	}
	for _, c := range []struct {
		m     Told
		fresh bool
		one   int64 // tokens of rank 1
		two   int64
	}{
		{say(2, false, 1, 20), true, 20, 0},
		{say(1, false, 1, 10), false, 20, 0}, // late
		{say(2, false, 1, 20), false, 20, 0}, // twice
		{say(3, false, 2, 30), true, 20, 30},
		{say(5, true, 2, 50), true, 0, 50}, // of rank 1 nothing is left, which a lost message has said
		{say(4, false, 1, 40), false, 0, 50},
		{say(6, false, 9, 60), true, 0, 50}, // a worker that is not known here
		{say(7, true, 0, 0), true, 0, 0},
	} {
		fresh, _ := b.Hear(&c.m, now)
		require.Equal(t, c.fresh, fresh, "%+v", c.m)
		require.Equal(t, c.one, b.entries[0].load.PrefillTokens, "%+v", c.m)
		require.Equal(t, c.two, b.entries[1].load.PrefillTokens, "%+v", c.m)
	}
}

// TestAReportKnowsWhoseAnswersAreStillToCome: an engine that does not run yet what another replica has just
// sent takes nothing of it off, and what others' answers had in a report goes with those alone that it had.
func TestAReportKnowsWhoseAnswersAreStillToCome(t *testing.T) {
	now := time.Unix(1000, 0)
	s := snapshot(t, testWorker(t, 1, worker.Decode, 1, 8000))
	a, b, rank := New(1), New(2), worker.Rank{ID: 1}
	a.Update(s)
	b.Update(s)
	var held []*Reservation
	book := func(n int) {
		for range n {
			r := new(Reservation)
			req := &Request{Key: key, Ranks: s.Pool(key).DecodeRanks, Params: params(), Now: now, Pick: picker.Request{Role: worker.Decode, ISLTokens: 1600}, Growth: Growth{After: time.Minute, PerSecond: 1, Most: 1}}
			_, err := a.PickAndReserve(req, r)
			require.NoError(t, err)
			held = append(held, r)
		}
	}
	version := uint64(0)
	tell := func() {
		version++
		m := Told{Life: 1, Version: version}
		m.Ranks, m.Sum = a.Tell(nil, false, now)
		b.Hear(&m, now)
	}
	book(10)
	tell()
	for _, k := range []*Book{a, b} {
		k.Report(rank, Report{}, now)
		blocks, _ := k.DecodingBlocks(rank, now)
		require.EqualValues(t, 1000, blocks)
	}
	b.Report(rank, Report{Blocks: 1200, Requests: 10}, now) // they run, and have grown
	book(10)                                                // after the report
	tell()
	blocks, _ := b.DecodingBlocks(rank, now)
	require.EqualValues(t, 2200, blocks)
	for _, r := range held[:5] {
		r.Release(now)
	}
	tell()
	blocks, _ = b.DecodingBlocks(rank, now)
	require.EqualValues(t, 1600, blocks, "five of those that had grown by 20")
	for _, r := range held[5:] {
		r.Release(now)
	}
	tell()
	blocks, _ = b.DecodingBlocks(rank, now)
	require.Zero(t, blocks)
}

// TestAPromptComesOnce: one that fades away and comes back is not counted as new work again.
func TestAPromptComesOnce(t *testing.T) {
	s, now := fleet(t, 1, 1), time.Unix(1000, 0)
	b, rank := New(1), worker.Rank{ID: 1}
	b.Update(s)
	b.SetPace(rank, picker.Pace{PerToken: 1e-3})
	m := Told{Life: 7, Version: 1, Ranks: []Booked{{Rank: rank, Load: Load{PrefillTokens: 1000, PrefillRequests: 1}, Queue: []Queued{{ID: 5, Tokens: 1000}}}}}
	b.Hear(&m, now)
	came := b.entries[0].flow.arrivals
	b.Fade(7, time.Hour, now)
	b.Hear(&Told{Life: 7, Version: 2}, now)
	require.InDelta(t, came, b.entries[0].flow.arrivals, 1e-9)
	require.Equal(t, 1, b.entries[0].queue.n)
}
