package record

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("BATON_TEST_RECORD_DIR"); dir != "" {
		recordForever(dir)
	}
	goleak.VerifyTestMain(m)
}

func fleet(t testing.TB, prefill, decode int) *worker.Snapshot {
	t.Helper()
	var ws []*worker.Worker
	for i := range prefill + decode {
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:30000", i+1))
		require.NoError(t, err)
		w := &worker.Worker{ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 64, CapacityBlocks: 1000,
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998}}
		if i >= prefill {
			w.Role, w.Bootstrap = worker.Decode, worker.Bootstrap{}
		}
		ws = append(ws, w)
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

func rank(id int) worker.Rank { return worker.Rank{ID: worker.ID(id)} }

type rig struct {
	*Recorder
	world atomic.Pointer[worker.Snapshot]
	lost  atomic.Int64
	log   bytes.Buffer
}

func newRig(t testing.TB, stores ...Store) *rig {
	t.Helper()
	r := &rig{}
	key := make([]byte, 32)
	_, _ = cryptorand.Read(key)
	r.world.Store(fleet(t, 2, 2))
	var err error
	r.Recorder, err = New(Config{
		Version: "1.2.3", Key: key, Stores: stores, World: r.world.Load, Lost: func() { r.lost.Add(1) }, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Speeds: func(*worker.Snapshot) []Speed {
			return []Speed{{Rank: rank(1), PerToken: 0.001, PerRequest: 0.02}, {Model: "m", PerToken: 1e-6, PerRequest: 0.005}}
		},
	})
	require.NoError(t, err)
	return r
}

// drain writes what is queued.
func (r *rig) drain(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, r.Run(ctx))
}

func read(t testing.TB, files ...[]byte) *Log {
	t.Helper()
	l := NewLog()
	for _, f := range files {
		require.NoError(t, l.Read(bytes.NewReader(f)))
	}
	l.Done()
	return l
}

func memory() *Memory { return &Memory{MaxBytes: 64 << 20, FileBytes: 4 << 20} }

// decide records a decision for a prompt of these blocks.
func (r *rig) decide(at time.Time, blocks ...uint64) uint64 {
	return r.Decided(func(d *Decision) {
		d.At, d.Model, d.Attempt, d.Tokens, d.BlockTokens, d.Source = at, "m", 1, 64*len(blocks)+3, 64, "request ids"
		d.Chain = append(d.Chain, blocks...)
		d.MaxTokens, d.Target = -1, time.Second
		d.Prefill = Pick{rank(1), "kv", "lowest_cost", 2}
		d.Decode = Pick{rank(3), "kv", "tie", 0}
		d.Loads = append(d.Loads, Load{rank(1), 100, 2, 1}, Load{rank(2), 0, 0, 0})
	})
}

func TestWhatIsRecordedIsRead(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	now := time.Now()
	first := r.decide(now, 7, 8, 9)
	r.drain(t)
	second := r.Decided(func(d *Decision) {
		d.At, d.Model, d.Tokens, d.BlockTokens, d.Bound, d.Refused = now.Add(time.Second), "m", 300, 64, true, "queue_full"
		d.Chain = append(d.Chain, 7, 8, 10)
		d.Decode = Pick{Rank: rank(99), Mode: "kv"}
	})
	r.Ended(&End{Number: first, Outcome: "ok", First: 30 * time.Millisecond, Whole: time.Second, Output: 17, Cached: 64})
	r.Ended(&End{Number: second + 5, Outcome: "ok"})
	r.drain(t)
	require.Zero(t, r.lost.Load())

	l := read(t, m.Files()...)
	require.Equal(t, "1.2.3", l.Version)
	require.Len(t, l.Requests, 2)
	a, b := &l.Requests[0], &l.Requests[1]
	require.WithinDuration(t, now, a.At, time.Millisecond)
	require.Equal(t, time.Second, b.At.Sub(a.At))
	require.Equal(t, Pick{rank(1), "kv", "lowest_cost", 2}, a.Prefill)
	require.Equal(t, Load{rank(1), 100, 2, 1}, a.Seen)
	require.Equal(t, End{first, "ok", 30 * time.Millisecond, time.Second, 17, 64}, a.End)
	require.Equal(t, []any{195, "request ids", 64, int64(-1), time.Second, 1}, []any{a.Tokens, a.Source, a.BlockTokens, a.MaxTokens, a.Target, a.Attempt})
	require.Equal(t, []any{true, "queue_full", Pick{}, rank(99), ""}, []any{b.Bound, b.Refused, b.Prefill, b.Decode.Rank, b.End.Outcome})
	ca, cb := l.Chain(nil, a), l.Chain(nil, b)
	require.Len(t, ca, 3)
	require.Equal(t, 3, l.Blocks(b))
	require.Equal(t, ca[:2], cb[:2], "a shared prefix has the same hashes")
	require.NotEqual(t, ca[2], cb[2])
	require.NotContains(t, ca, uint64(7), "hashes are keyed")
	require.Len(t, l.Fleets, 1)
	require.Equal(t, 2, l.Fleets[0].Decisions)
	require.Equal(t, Rank{rank(3), worker.Decode, "sglang", "10.0.0.3:30000", "m", "", 64, 1000, false}, l.Fleets[0].Ranks[2])
	require.Equal(t, []Speed{{Rank: rank(1), PerToken: 0.001, PerRequest: 0.02}, {Model: "m", PerToken: 1e-6, PerRequest: 0.005}}, l.Speeds)
	require.Equal(t, []string{"left out, 1 times: a worker that its file does not list", "left out, 1 times: an end without its decision, which is in an older file or was lost"}, l.Notes)
}

func TestAnotherProcessHashesOtherwise(t *testing.T) {
	var chains [2][]uint64
	for i := range chains {
		m := memory()
		r := newRig(t, m)
		r.decide(time.Now(), 7)
		r.drain(t)
		l := read(t, m.Files()...)
		chains[i] = l.Chain(nil, &l.Requests[0])
	}
	require.NotEqual(t, chains[0], chains[1], "no file says which prompt it was")
}

func TestReplicasWithOneKeyNameABlockAlike(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	conf := r.cfg
	r.decide(time.Now(), 7)
	r.drain(t)
	another := &rig{}
	var err error
	conf.Stores = []Store{memory()}
	another.Recorder, err = New(conf)
	require.NoError(t, err)
	another.decide(time.Now(), 7)
	another.drain(t)
	l := read(t, append(m.Files(), conf.Stores[0].(*Memory).Files()...)...)
	require.Len(t, l.Requests, 2)
	require.Equal(t, l.Chain(nil, &l.Requests[0]), l.Chain(nil, &l.Requests[1]))
	require.Empty(t, l.Notes)
}

func TestABlockIsNamedWithAllThatComesBeforeIt(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	r.decide(time.Now(), 7, 8)
	r.decide(time.Now(), 8, 7)
	r.drain(t)
	l := read(t, m.Files()...)
	a, b := l.Chain(nil, &l.Requests[0]), l.Chain(nil, &l.Requests[1])
	require.NotContains(t, a, b[0])
	require.NotContains(t, a, b[1])
}

func TestLoadsOfAllRanksAreRead(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	for i := range 3 {
		r.Decided(func(d *Decision) {
			d.At, d.Decode = time.Now(), Pick{Rank: rank(i + 2)}
			for k := range 4 {
				d.Loads = append(d.Loads, Load{rank(k + 1), int64(10*k - i), int64(k), 1})
			}
		})
	}
	r.drain(t)
	l := read(t, m.Files()...)
	for i := range 3 {
		require.Equal(t, Load{rank(i + 2), int64(10*(i+1) - i), int64(i + 1), 1}, l.Requests[i].Seen)
	}
}

func TestTheSamePrefixIsWrittenOnce(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	long := make([]uint64, 1000)
	for i := range long {
		long[i] = rand.Uint64()
	}
	now := time.Now()
	r.decide(now, long...)
	r.drain(t)
	before := len(m.Files()[0])
	require.Greater(t, before, 8000)
	r.decide(now, long...)
	r.decide(now, append(slices.Clone(long), 1)...)
	r.drain(t)
	require.Less(t, len(m.Files()[0])-before, 200)
	l := read(t, m.Files()...)
	require.Equal(t, l.Chain(nil, &l.Requests[0]), l.Chain(nil, &l.Requests[2])[:1000])
}

func TestWorkersThatChangeAreAnotherFleet(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	r.decide(time.Now(), 1)
	r.drain(t)
	r.world.Store(fleet(t, 3, 2))
	r.decide(time.Now(), 1)
	r.decide(time.Now(), 1)
	r.drain(t)
	l := read(t, m.Files()...)
	require.Len(t, l.Fleets, 2)
	require.Equal(t, []int{1, 2}, []int{l.Fleets[0].Decisions, l.Fleets[1].Decisions})
	require.Equal(t, worker.Prefill, l.Fleets[1].Ranks[2].Role)
	require.Equal(t, int64(100), l.Requests[1].Seen.PrefillTokens, "loads are told anew")
}

// recorded is a file of a few decisions, with an end for each.
func recorded(t testing.TB) []byte {
	m := memory()
	r := newRig(t, m)
	now := time.Now()
	for i := range uint64(4) {
		n := r.decide(now.Add(time.Duration(i)*time.Second), 1, 2, i+3)
		r.Ended(&End{Number: n, Outcome: "ok", Cached: -1})
	}
	r.drain(t)
	return m.Files()[0]
}

func TestAFileCutAnywhereIsReadUpToThere(t *testing.T) {
	whole := recorded(t)
	last := 0
	for n := range len(whole) + 1 {
		l := read(t, whole[:n])
		require.GreaterOrEqual(t, len(l.Requests), last, "cut at %d", n)
		last = len(l.Requests)
		for i := range l.Requests {
			require.Len(t, l.Chain(nil, &l.Requests[i]), 3)
		}
		require.LessOrEqual(t, len(l.Notes), 1)
	}
	require.Equal(t, 4, last)
}

func TestADamagedByteEndsTheFile(t *testing.T) {
	whole := recorded(t)
	for n := range whole {
		b := slices.Clone(whole)
		b[n] ^= 0x41
		l := read(t, b, whole)
		require.NotEmpty(t, l.Notes, "byte %d", n)
		require.GreaterOrEqual(t, len(l.Requests), 4, "the next file is read")
	}
}

func TestAnotherVersionIsLeftOut(t *testing.T) {
	b := recorded(t)
	b[len(magic)-1] = 9
	l := read(t, b)
	require.Empty(t, l.Requests)
	require.Equal(t, []string{"left out, 1 times: a file of version 9 of the format: this program reads version 1"}, l.Notes)
	require.Equal(t, []string{"left out, 1 times: a file that is no record"}, read(t, []byte("an essay of some length")).Notes)
}

func TestClocksThatJump(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	now := time.Now().Round(0) // by the wall
	r.decide(now.Add(time.Hour), 1)
	r.decide(now.Add(-time.Hour), 1)
	r.decide(now.Add(2*time.Hour), 1)
	r.drain(t)
	l := read(t, m.Files()...)
	require.Len(t, l.Requests, 3)
	require.Equal(t, l.Requests[0].At, l.Requests[1].At)
	require.Equal(t, time.Hour, l.Requests[2].At.Sub(l.Requests[1].At).Round(time.Second))
	require.Equal(t, []string{"left out, 1 times: time that ran backwards: such decisions count as simultaneous"}, l.Notes)
}

func TestSeveralProcessesAreOneTimeline(t *testing.T) {
	now := time.Now()
	var files [][]byte
	for i := range 2 {
		m := memory()
		r := newRig(t, m)
		for k := range 3 {
			r.Ended(&End{Number: r.decide(now.Add(time.Duration(2*k+i)*time.Second), uint64(k)), Outcome: fmt.Sprint(i, k)}) //nolint:gosec // small
		}
		r.drain(t)
		files = append(files, m.Files()[0])
	}
	l := read(t, files...)
	var order []string
	for i := range l.Requests {
		order = append(order, l.Requests[i].End.Outcome)
	}
	require.Equal(t, []string{"0 0", "1 0", "0 1", "1 1", "0 2", "1 2"}, order)
	require.Equal(t, []string{"blocks are named by 2 keys (leg.key_file), so what prompts share is not seen where their keys differ"}, l.Notes)
}

func TestTheFilesStayWithinTheirBound(t *testing.T) {
	dir := &Dir{Path: filepath.Join(t.TempDir(), "new"), MaxBytes: 100 << 10, FileBytes: 20 << 10}
	r := newRig(t, dir)
	require.NoError(t, os.MkdirAll(dir.Path, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir.Path, "notes.txt"), make([]byte, 1<<20), 0o600))
	now := time.Now()
	for i := range 500 {
		for range 10 {
			r.decide(now.Add(time.Duration(i)*time.Second), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64())
		}
		r.drain(t)
		files, err := Files(dir.Path)
		require.NoError(t, err)
		sum := int64(0)
		for _, f := range files {
			info, err := os.Stat(f)
			require.NoError(t, err)
			require.LessOrEqual(t, info.Size(), int64(dir.FileBytes))
			sum += info.Size()
		}
		require.LessOrEqual(t, sum, dir.MaxBytes)
	}
	dir.close()
	require.FileExists(t, filepath.Join(dir.Path, "notes.txt"), "what is not ours stays")
	files, _ := Files(dir.Path)
	require.Len(t, files, 5)
	var all [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		all = append(all, b)
	}
	l := read(t, all...)
	require.Empty(t, l.Notes, "each file stands alone")
	require.Greater(t, len(l.Requests), 400)
	require.Zero(t, r.lost.Load())
}

func TestAFolderThatCannotBeWrittenStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		dir, m := &Dir{Path: path, MaxBytes: 1 << 20, FileBytes: 1 << 18}, memory()
		r := newRig(t, dir, m)
		for range 3 {
			r.decide(time.Now(), 1)
			r.drain(t)
		}
		require.Equal(t, int64(3), r.lost.Load())
		require.NotEmpty(t, r.Failing())
		require.Equal(t, 1, strings.Count(r.log.String(), "not recorded"), "it is told once")
		require.NoError(t, os.Remove(path))
		<-time.After(retryAfter)
		r.decide(time.Now(), 1)
		r.drain(t)
		require.Empty(t, r.Failing())
		require.Equal(t, 1, strings.Count(r.log.String(), "recorded again"))
		dir.close()
		require.Len(t, read(t, m.Files()...).Requests, 4, "the other store has all")
	})
}

// full is a disk that takes so much.
type full struct {
	Memory
	left int
}

func (f *full) Write(b []byte) error {
	if f.left -= len(b); f.left < 0 {
		return errors.New("no space left on device")
	}
	return f.Memory.Write(b)
}

func TestAFullDiskIsCountedAndToldOnce(t *testing.T) {
	r := newRig(t, &full{Memory: *memory(), left: 2000})
	for range 1000 {
		r.decide(time.Now(), rand.Uint64())
		r.drain(t)
	}
	require.Greater(t, r.lost.Load(), int64(900))
	require.Equal(t, 1, strings.Count(r.log.String(), "not recorded"))
	require.Equal(t, "no space left on device", r.Failing())
}

func TestWhatFindsNoRoomIsLost(t *testing.T) {
	r := newRig(t, memory())
	for range mostQueued + 10 {
		r.decide(time.Now(), 1)
	}
	require.Equal(t, int64(10), r.lost.Load())
	long := make([]uint64, 2*mostChain)
	r = newRig(t, memory())
	for range 2 * mostQueuedBlocks / mostChain {
		r.decide(time.Now(), long...)
	}
	require.Equal(t, int64(mostQueuedBlocks/mostChain), r.lost.Load(), "blocks in the queue are bounded")
	r.drain(t)
	require.NotZero(t, r.decide(time.Now(), 1))
}

func TestANilRecorderRecordsNothing(t *testing.T) {
	var r *Recorder
	require.Zero(t, r.Decided(func(*Decision) { t.Fatal("called") }))
	r.Ended(&End{Number: 1})
	require.NoError(t, r.Run(context.Background()))
	require.Empty(t, r.Failing())
}

func TestNamesAreBounded(t *testing.T) {
	m := memory()
	r := newRig(t, m)
	for i := range mostNames + 10 {
		r.Decided(func(d *Decision) { d.At, d.Model = time.Now(), strings.Repeat("x", i%1000)+fmt.Sprint(i) })
		if i%1000 == 0 {
			r.drain(t)
		}
	}
	r.drain(t)
	l := read(t, m.Files()...)
	require.Len(t, l.Requests, mostNames+10)
	require.Empty(t, l.Notes)
}

// TestAKilledProcessLosesAboutASecond: what had been written a second before the kill is read.
func TestAKilledProcessLosesAboutASecond(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), "BATON_TEST_RECORD_DIR="+dir)
	require.NoError(t, cmd.Start())
	began := time.Now()
	inFiles := func() (l *Log) {
		l = NewLog()
		files, _ := Files(dir)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			require.NoError(t, l.Read(bytes.NewReader(b)))
		}
		l.Done()
		return l
	}
	require.Eventually(t, func() bool { return time.Since(began) > 2*time.Second && len(inFiles().Requests) > 0 }, 30*time.Second, 50*time.Millisecond)
	killed := time.Now()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	l := inFiles()
	require.WithinDuration(t, killed, l.Requests[len(l.Requests)-1].At, 1500*time.Millisecond)
	require.LessOrEqual(t, len(l.Notes), 1)
}

// recordForever is the process that is killed.
func recordForever(dir string) {
	t := &testing.T{}
	r := newRig(t, &Dir{Path: dir, MaxBytes: 1 << 30, FileBytes: 64 << 20})
	go func() {
		for range time.Tick(time.Millisecond) {
			r.decide(time.Now(), rand.Uint64())
		}
	}()
	_ = r.Run(context.Background())
}

// TestTheSizeOfARealTrace: at 16 ranks, of which all loads change with each request, and blocks of 64 tokens.
func TestTheSizeOfARealTrace(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "data", "mooncake_conversation_trace.jsonl"))
	if errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("the trace is not beside the repository")
	}
	require.NoError(t, err)
	dir := &Dir{Path: t.TempDir(), MaxBytes: 1 << 30, FileBytes: 64 << 20}
	r := newRig(t, dir)
	r.world.Store(fleet(t, 8, 8))
	rng := rand.New(rand.NewPCG(1, 1))
	var loads [16]Load
	n, fresh, known := 0, 0, map[[2]uint64]bool{}
	for line := range bytes.Lines(text) {
		var l struct {
			Timestamp float64  `json:"timestamp"`
			Tokens    int      `json:"input_length"`
			Answer    int64    `json:"output_length"`
			Hashes    []uint64 `json:"hash_ids"`
		}
		require.NoError(t, json.Unmarshal(line, &l))
		number := r.Decided(func(d *Decision) {
			d.At, d.Model, d.Attempt, d.Tokens, d.BlockTokens, d.Source, d.MaxTokens = time.Unix(0, int64(l.Timestamp*1e6)), "Qwen/Qwen3-235B-A22B-FP8", 1, l.Tokens, 64, "local tokenizer", 4096
			for i := range l.Tokens / 64 {
				h := [2]uint64{l.Hashes[i/8] + 1, uint64(i % 8)}
				if !known[h] {
					known[h], fresh = true, fresh+1
				}
				d.Chain = append(d.Chain, h[0]<<3|h[1])
			}
			for i := range loads {
				loads[i] = Load{rank(i + 1), rng.Int64N(100_000), rng.Int64N(30_000), rng.Int64N(64)}
			}
			d.Loads = append(d.Loads, loads[:]...)
			d.Prefill, d.Decode = Pick{rank(1 + n%8), "kv", "lowest_cost", len(d.Chain) / 2}, Pick{rank(9 + n%8), "kv", "lowest_cost", 0}
		})
		r.Ended(&End{Number: number, Outcome: "ok", First: time.Duration(rng.Int64N(3e10)), Whole: time.Duration(rng.Int64N(3e11)), Output: l.Answer, Cached: int64(l.Tokens / 2)})
		if n++; n%100 == 0 {
			r.drain(t)
		}
	}
	r.drain(t)
	require.Zero(t, r.lost.Load())
	dir.close()
	files, _ := Files(dir.Path)
	size := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		size += len(b)
	}
	each := float64(size-8*fresh) / float64(n)
	t.Logf("%d requests, %d different blocks, %d files, %d bytes: %.1f a request beside 8 for each block", n, fresh, len(files), size, each)
	require.LessOrEqual(t, each, 300.0)
}

func FuzzRead(f *testing.F) {
	f.Add(recorded(f))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := NewLog()
		require.NoError(t, l.Read(bytes.NewReader(b)))
		l.Done()
		checkLog(t, l, len(b))
	})
}

// FuzzFrames gives the reader payloads in whole frames, which a damaged file hardly has.
func FuzzFrames(f *testing.F) {
	f.Add(frameFleet, []byte{1, 1, 0, 1, 0, 0, 0, 64, 1, 0}, frameDecision, bytes.Repeat([]byte{0}, 30))
	f.Fuzz(func(t *testing.T, a byte, first []byte, b byte, second []byte) {
		e := &encoder{}
		e.begin(&header{Version: "v", Began: time.Unix(1, 0), Life: 1}, nil)
		for range 3 {
			e.out = frame(frame(e.out, a, first), b, second)
		}
		l := NewLog()
		require.NoError(t, l.Read(bytes.NewReader(e.out)))
		l.Done()
		checkLog(t, l, len(e.out))
	})
}

func checkLog(t *testing.T, l *Log, size int) {
	require.LessOrEqual(t, len(l.Requests), size)
	for i := range l.Requests {
		r := &l.Requests[i]
		require.Len(t, l.Chain(nil, r), l.Blocks(r))
		require.LessOrEqual(t, l.Blocks(r), size)
	}
	for _, s := range l.Speeds {
		require.GreaterOrEqual(t, s.PerToken, 0.0)
	}
}
