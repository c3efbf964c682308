package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// batch is how many writes are timed as one where there is no query between
// them: the rivals' runner does the same, and a clock reading costs as much as
// a small write.
const batch = 4096

// runner applies a trace to one index.
type runner struct {
	t     *trace
	index *kvindex.Tree
	ranks []worker.Rank
	out   map[string]any
	ops   []op
	begun time.Time
}

// now reads the monotonic clock alone, as the rivals' runner does.
func (r *runner) now() time.Duration { return time.Since(r.begun) }

func newRunner(t *trace) (*runner, error) {
	r := &runner{t: t, begun: time.Now(), out: map[string]any{}, ops: make([]op, 0, batch)}
	for e := range t.engines {
		r.ranks = append(r.ranks, worker.Rank{ID: worker.ID(e + 1)})
	}
	r.out["base_kib"] = anonKiB()
	var err error
	r.index, err = kvindex.NewTree(kvindex.TreeConfig{MaxBytes: min(2<<30, kvindex.MostBytes)}, kvindex.NewSlots())
	if err != nil {
		return nil, err
	}
	for _, rank := range r.ranks {
		r.index.Attach(rank)
	}
	return r, nil
}

func (r *runner) mode(name string) error {
	switch name {
	case "replay":
		r.replay()
	case "writes":
		r.rateOf("write_blocks_per_s", func() (int, time.Duration) { return r.bulk(0, len(r.t.ops)) })
	case "reads":
		r.reads()
	case "both":
		r.both()
	default:
		return fmt.Errorf("mode %q: expected replay, writes, reads or both", name)
	}
	return nil
}

// write applies an operation that changes something. The traces are whole: a
// refused one is a fault of ours.
func (r *runner) write(o *op) {
	var err error
	switch o.kind {
	case opStore:
		err = r.index.Store(r.ranks[o.engine], o.store)
	case opRemove:
		err = r.index.Remove(r.ranks[o.engine], o.remove)
	case opClear:
		err = r.index.Clear(r.ranks[o.engine])
	}
	if err != nil {
		panic(err)
	}
}

// bulk applies the writes among the operations [from, to).
func (r *runner) bulk(from, to int) (blocks int, took time.Duration) {
	for from < to {
		end := min(from+batch, to)
		r.ops = r.ops[:0]
		for i := from; i < end; i++ {
			var o op
			r.t.read(i, &o)
			if o.kind != opQuery && o.kind != opMark {
				r.ops = append(r.ops, o)
				blocks += o.n
			}
		}
		t0 := r.now()
		for i := range r.ops {
			r.write(&r.ops[i])
		}
		took += r.now() - t0
		from = end
	}
	return blocks, took
}

func (r *runner) rate(key string, blocks int, took time.Duration) {
	if took > 0 {
		r.out[key] = int(float64(blocks) / took.Seconds())
	}
}

func (r *runner) latencies(l []uint32) {
	if len(l) == 0 {
		return
	}
	slices.Sort(l)
	for key, p := range map[string]float64{"q_p50": .5, "q_p99": .99, "q_p999": .999} {
		r.out[key] = l[int(float64(len(l)-1)*p)]
	}
}

func clamp(d time.Duration) uint32 { return uint32(min(d, math.MaxUint32)) }

// replay does everything in order and sums up the answers.
func (r *runner) replay() {
	lat := make([]uint32, 0, r.t.queries)
	r.rateOf("fill_blocks_per_s", func() (int, time.Duration) { return r.bulk(0, r.t.steady) })
	var blocks [opMark + 1]int
	var spent [opMark + 1]time.Duration
	var sum uint64
	var dst kvindex.Overlap
	var o op
	for i := r.t.steady; i < len(r.t.ops); i++ {
		r.t.read(i, &o)
		t0 := r.now()
		if o.kind == opQuery {
			r.index.Overlap(o.chain, &dst)
		} else {
			r.write(&o)
		}
		d := r.now() - t0
		if o.kind == opQuery {
			sum += r.checksum(len(lat), &dst)
			lat = append(lat, clamp(d))
		}
		blocks[o.kind] += o.n
		spent[o.kind] += d
	}
	r.rate("store_blocks_per_s", blocks[opStore], spent[opStore])
	r.rate("remove_blocks_per_s", blocks[opRemove], spent[opRemove])
	r.latencies(lat)
	r.out["checksum"] = fmt.Sprintf("%016x", sum)
	r.out["rss_bytes_per_entry"] = r.bytesAnEntry(len(lat) * 4)
	const cleared = 8
	t0 := r.now()
	for _, rank := range r.ranks[:cleared] {
		if err := r.index.Clear(rank); err != nil {
			panic(err)
		}
	}
	r.out["clear_us"] = (r.now() - t0).Microseconds() / cleared
}

func (r *runner) rateOf(key string, f func() (int, time.Duration)) {
	n, took := f()
	r.rate(key, n, took)
}

func (r *runner) bytesAnEntry(less int) int {
	base, _ := r.out["base_kib"].(int)
	return ((anonKiB()-base)*1024 - less) / r.t.live
}

// checksum is a query's share of the sum that every exact index must come to.
func (r *runner) checksum(q int, dst *kvindex.Overlap) (sum uint64) {
	for e, rank := range r.ranks {
		slot, _ := r.index.Slot(rank)
		if n := dst.At(slot); n > 0 {
			sum += share(q, e, n)
		}
	}
	return sum
}

// share is murmur3's finalizer over a query, an engine and its overlap.
func share(q, engine int, overlap uint32) uint64 {
	x := (uint64(engine)<<32 | uint64(overlap)) + uint64(q)*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// reads applies all writes and asks the last fifth of the queries five times.
func (r *runner) reads() {
	r.bulk(0, len(r.t.ops))
	var asked []int
	for i := range r.t.ops {
		if kind(r.t.words[r.t.ops[i]]) == opQuery {
			asked = append(asked, i)
		}
	}
	asked = asked[len(asked)-r.t.queries/5:]
	lat := make([]uint32, 0, 5*len(asked))
	var dst kvindex.Overlap
	var o op
	for range 5 {
		for _, i := range asked {
			r.t.read(i, &o)
			t0 := r.now()
			r.index.Overlap(o.chain, &dst)
			lat = append(lat, clamp(r.now()-t0))
		}
	}
	r.latencies(lat)
}

// both writes on one thread as fast as it can and queries on another.
func (r *runner) both() {
	r.bulk(0, r.t.steady)
	var stop atomic.Bool
	done := make(chan []uint32)
	go func() {
		runtime.LockOSThread()
		lat := make([]uint32, 0, 1<<22)
		var dst kvindex.Overlap
		var o op
		for !stop.Load() {
			for i := r.t.steady; i < len(r.t.ops) && !stop.Load(); i++ {
				r.t.read(i, &o)
				if o.kind == opQuery {
					t0 := r.now()
					r.index.Overlap(o.chain, &dst)
					lat = append(lat, clamp(r.now()-t0))
				}
			}
		}
		done <- lat
	}()
	r.rateOf("write_blocks_per_s", func() (int, time.Duration) { return r.bulk(r.t.steady, len(r.t.ops)) })
	stop.Store(true)
	r.latencies(<-done)
}

// anonKiB is the process's resident memory that is no file's.
func anonKiB() int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}
