package overlap

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func fleet(t testing.TB, events func(id int) bool, n, dp int) *worker.Snapshot {
	ws := make([]*worker.Worker, n)
	for i := range ws {
		at, err := worker.ParseEndpoint("10.0.0.1:" + worker.ID(1000+i).String())
		require.NoError(t, err)
		ws[i] = &worker.Worker{
			ID: worker.ID(i + 1), Role: worker.Aggregated, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"},
			DPSize: uint32(dp), BlockSize: 16,
		}
		if events(i) {
			ws[i].KVEvents = worker.KVEvents{Host: "10.0.0.1", Port: 5557}
		}
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

func parts(t testing.TB) (Config, *Lookup) {
	slots := kvindex.NewSlots()
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, slots)
	require.NoError(t, err)
	cfg := Config{Index: tree, Slots: slots, Predicts: true}
	l, err := New(cfg)
	require.NoError(t, err)
	return cfg, l
}

func ranksOf(s *worker.Snapshot) []worker.Rank {
	return s.Pool(worker.Key{Model: "m"}).AggregatedRanks
}

func stored(chain []kvindex.LocalHash, engine uint64) kvindex.Stored {
	var e kvindex.Stored
	for i, h := range chain {
		e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(engine + uint64(i)), Local: h})
	}
	return e
}

// slowly is what Of should answer, rank by rank.
func slowly(cfg Config, s *worker.Snapshot, ranks []worker.Rank, p Prompt) *answers {
	var all kvindex.Overlap
	cfg.Index.Overlap(p.Hashes, &all)
	out := new(answers)
	for _, r := range ranks {
		guess := p.Estimated || s.Worker(r.ID).KVEvents.IsZero()
		var n, predicted, host, disk uint32
		if slot, ok := cfg.Slots.Slot(r); ok {
			held := cfg.Slots.Held(slot, &all)
			if guess {
				n = held.Routed * uint32(max(p.BlocksPerHash, 1))
			} else {
				told := held.Device
				if cfg.Predicts {
					predicted = held.Routed - min(held.Routed, told)
				}
				n = told + predicted
				host = told + held.Host - min(told+held.Host, n)
				disk = told + held.Host + held.Disk - min(told+held.Host+held.Disk, n+host)
				out.shared = max(out.shared, held.External)
			}
		}
		out.blocks, out.guessed = append(out.blocks, n), append(out.guessed, guess && !p.Estimated)
		out.predicted, out.host, out.disk = append(out.predicted, predicted), append(out.host, host), append(out.disk, disk)
	}
	return out
}

type answers struct {
	blocks, predicted, host, disk []uint32
	shared                        uint32
	guessed                       []bool
}

// column is nil where there is nothing in it.
func column(all []uint32) []uint32 {
	for _, n := range all {
		if n > 0 {
			return all
		}
	}
	return nil
}

func TestTheAnswerIsThatOfEachRankWhateverTheNumbering(t *testing.T) {
	now := time.Unix(1000, 0)
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg, l := parts(t)
		l.cfg.Predicts = rng.IntN(3) > 0
		cfg.Predicts = l.cfg.Predicts
		kind := rng.IntN(3)
		s := fleet(t, func(int) bool { return kind == 0 || kind == 1 && rng.IntN(2) == 0 }, 1+rng.IntN(20), 1+rng.IntN(4))
		ranks := ranksOf(s)
		chain := make([]kvindex.LocalHash, 1+rng.IntN(9))
		for i := range chain {
			chain[i] = kvindex.LocalHash(rng.Uint64())
		}
		order := rng.Perm(len(ranks))
		if rng.IntN(2) == 0 { // the usual case: in the pool's order
			for i := range order {
				order[i] = i
			}
		}
		for _, i := range order {
			if rng.IntN(12) == 0 {
				continue // nobody has told of it
			}
			cfg.Index.Attach(ranks[i])
			require.NoError(t, cfg.Index.Store(ranks[i], stored(chain[:rng.IntN(len(chain)+1)], 1)))
			for _, tier := range []kvindex.Tier{kvindex.Host, kvindex.Disk, kvindex.External} {
				if rng.IntN(4) == 0 {
					e := stored(chain[:rng.IntN(len(chain)+1)], 1)
					e.Tier = tier
					require.NoError(t, cfg.Index.Store(ranks[i], e))
				}
			}
			if rng.IntN(3) == 0 {
				cfg.Index.Route(ranks[i], chain[:1+rng.IntN(len(chain))], kvindex.Guess(rng.IntN(2)), now)
			}
		}
		var a Answer
		for range 6 {
			p := Prompt{Hashes: chain, Estimated: rng.IntN(3) == 0, BlocksPerHash: rng.IntN(4)}
			l.Of(s, ranks, p, &a)
			want := slowly(cfg, s, ranks, p)
			require.Equal(t, want.blocks, a.Overlap, "seed %d", seed)
			require.Equal(t, column(want.predicted), column(a.Predicted), "seed %d: predicted", seed)
			require.Equal(t, column(want.host), a.Host, "seed %d: host", seed)
			require.Equal(t, column(want.disk), a.Disk, "seed %d: disk", seed)
			require.Equal(t, want.shared, a.Shared, "seed %d: shared", seed)
			for i := range want.guessed {
				require.Equal(t, want.guessed[i], a.Estimated.Has(i), "seed %d", seed)
			}
			if r := ranks[rng.IntN(len(ranks))]; rng.IntN(2) == 0 { // another numbering
				cfg.Index.Detach(r)
				r = ranks[rng.IntN(len(ranks))]
				cfg.Index.Attach(r)
				require.NoError(t, cfg.Index.Store(r, stored(chain, 1)))
			}
		}
	}
}

func TestRanksInARowAreNotCopied(t *testing.T) {
	cfg, l := parts(t)
	s := fleet(t, func(int) bool { return true }, 10, 8)
	for _, w := range s.Workers() {
		for dp := range w.DPSize {
			cfg.Index.Attach(worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)})
		}
	}
	var a Answer
	l.Of(s, ranksOf(s), Prompt{Hashes: []kvindex.LocalHash{1}}, &a)
	require.Len(t, a.Overlap, 80)
	require.Same(t, &a.held.Blocks[0], &a.Overlap[0])
	require.Nil(t, a.copied)
}

// The answer may have been made before the pool's last ranks had slots.
func TestAnAnswerThatIsTooShortIsNotTakenAsItIs(t *testing.T) {
	room := []uint32{1, 2, 3, 4, 5, 6}
	require.Nil(t, whole([]run{{0, 1, 4}}, 4, room[:4]))
	require.Equal(t, []uint32{2, 3, 4}, whole([]run{{0, 1, 3}}, 3, room[:4]))
	dst := make([]uint32, 5)
	gather(dst, []run{{0, 1, 4}, {4, 9, 1}}, room[:4], 2)
	require.Equal(t, []uint32{4, 6, 8, 0, 0}, dst)
}

func TestNothingIsAskedWithoutHashes(t *testing.T) {
	_, l := parts(t)
	s := fleet(t, func(int) bool { return true }, 2, 1)
	a := Answer{Cached: picker.Cached{Overlap: []uint32{1}}}
	l.Of(s, ranksOf(s), Prompt{}, &a)
	require.Nil(t, a.Overlap)
	l.Of(s, nil, Prompt{Hashes: []kvindex.LocalHash{1}}, &a)
	require.Nil(t, a.Overlap)
}

func TestALookupAllocatesNothing(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		cfg, l := parts(t)
		s := fleet(t, func(i int) bool { return !mixed || i%2 == 0 }, 16, 4)
		chain := []kvindex.LocalHash{1, 2, 3}
		for i, r := range ranksOf(s) {
			cfg.Index.Attach(r)
			require.NoError(t, cfg.Index.Store(r, stored(chain[:i%4], 1)))
			lower := stored(chain, 1)
			lower.Tier = kvindex.Host + kvindex.Tier(i%3)
			require.NoError(t, cfg.Index.Store(r, lower))
			cfg.Index.Route(r, chain, kvindex.Predicted, time.Unix(1, 0))
		}
		var a Answer
		once := func() {
			l.Of(s, ranksOf(s), Prompt{Hashes: chain}, &a)
			l.Of(s, ranksOf(s), Prompt{Hashes: chain, Estimated: true, BlocksPerHash: 4}, &a)
		}
		once()
		require.Zero(t, testing.AllocsPerRun(100, once))
	}
}

// Readers beside a writer that moves ranks to other slots: an answer must never
// be torn so that it does not fit the pool.
func TestAnswersFitThePoolWhileTheNumberingChanges(t *testing.T) {
	cfg, l := parts(t)
	s := fleet(t, func(i int) bool { return i%3 > 0 }, 12, 2)
	ranks := ranksOf(s)
	chain := []kvindex.LocalHash{1, 2}
	stop := make(chan struct{})
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				return
			default:
			}
			r := ranks[rng.IntN(len(ranks))]
			cfg.Index.Attach(r)
			_ = cfg.Index.Store(r, stored(chain, 1))
			cfg.Index.Detach(ranks[rng.IntN(len(ranks))])
		}
	})
	for range 2 {
		readers.Go(func() {
			var a Answer
			for range 3000 {
				l.Of(s, ranks, Prompt{Hashes: chain}, &a)
				if len(a.Overlap) != len(ranks) {
					t.Error("an answer of another length")
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
}

func TestEveryPartIsRequired(t *testing.T) {
	slots := kvindex.NewSlots()
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, slots)
	require.NoError(t, err)
	for _, c := range []Config{{Index: tree}, {Slots: slots}} {
		_, err := New(c)
		require.ErrorContains(t, err, "expected an index, and its slots")
	}
}

// TestWhatIsGuessedBeyondTheKnownIsOfRanksThatHoldAllOfThat alone, and never more than the
// prompt has.
func TestWhatIsGuessedBeyondTheKnownIsOfRanksThatHoldAllOfThat(t *testing.T) {
	t.Parallel()
	cfg, l := parts(t)
	s := fleet(t, func(i int) bool { return i != 3 }, 5, 1)
	ranks := ranksOf(s)
	known, all := []kvindex.LocalHash{1, 2}, []kvindex.LocalHash{11, 12}
	for i, told := range []int{2, 1, 2} {
		cfg.Index.Attach(ranks[i])
		require.NoError(t, cfg.Index.Store(ranks[i], stored(known[:told], 1)))
	}
	cfg.Index.Attach(ranks[3])
	cfg.Index.Route(ranks[3], known, kvindex.Estimated, time.Unix(1, 0)) // it tells nothing
	for _, i := range []int{0, 1, 3} {
		cfg.Index.Route(ranks[i], all, kvindex.Estimated, time.Unix(1, 0))
	}
	beyond := func(hashes []kvindex.LocalHash, weight float64, most int) (a Answer) {
		var guess Answer
		l.Of(s, ranks, Prompt{Hashes: hashes}, &a)
		l.Of(s, ranks, Prompt{Hashes: all, Estimated: true, BlocksPerHash: 4}, &guess)
		a.Beyond(len(hashes), &guess, weight, most)
		return a
	}
	a := beyond(known, 1, 9)
	require.Equal(t, []uint32{8, 1, 2, 8, 0}, a.Overlap)
	require.Equal(t, []uint32{6, 0, 0, 0, 0}, a.Predicted)
	require.True(t, a.Estimated.Has(3))
	a = beyond(known, 0.5, 7)
	require.Equal(t, []uint32{4, 1, 2, 7, 0}, a.Overlap)
	require.Equal(t, []uint32{2, 0, 0, 0, 0}, a.Predicted)
	a = beyond(known, 0, 9)
	require.Nil(t, a.Predicted)
	require.Equal(t, []uint32{2, 1, 2, 8, 0}, a.Overlap)
	require.Equal(t, []uint32{8, 8, 0, 8, 0}, beyond(nil, 1, 9).Overlap, "where nothing is known all is guessed")
	require.Nil(t, beyond([]kvindex.LocalHash{77}, 1, 9).Predicted, "nobody holds what is known")
}
