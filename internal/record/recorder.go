package record

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Store keeps files. All methods are called by one goroutine.
type Store interface {
	// Create ends the file before and begins the next one.
	Create(began time.Time, life uint64) error
	// Write adds to the file. Room is how many more bytes it may have.
	Write(b []byte) error
	Room() int
	// Flush gives what was written to the system.
	Flush() error
}

// Config configures a Recorder. All but Log is required.
type Config struct {
	Version string
	Stores  []Store
	// World returns the workers.
	World func() *worker.Snapshot
	// Speeds returns what is learned of the ranks, and of hand-offs.
	Speeds func(*worker.Snapshot) []Speed
	// Lost is called for each decision or end that is lost.
	Lost func()
	Log  *slog.Logger // nil: nothing is logged
	// Key is a secret: processes with the same one name a block alike.
	Key []byte
}

const (
	flushEvery  = time.Second
	speedsEvery = 10 * time.Second
	retryAfter  = 10 * time.Second // after a store could not be written

	mostQueued       = 4096    // decisions and ends
	mostQueuedBlocks = 1 << 20 // of the prompts of all of them
	mostKept         = 1 << 13 // blocks of a decision whose memory is used again
)

// Recorder records what is decided. A nil one records nothing. Safe for concurrent use.
type Recorder struct {
	cfg    Config
	cipher cipher.Block
	life   uint64
	keyID  uint64

	numbers atomic.Uint64
	queue   chan item
	blocks  atomic.Int64 // of decisions in the queue
	free    sync.Pool    // of *Decision
	failed  atomic.Pointer[string]

	// Owned by Run.
	outputs []*output
	world   *worker.Snapshot
	ranks   []Rank
}

// item is a decision or, if that is nil, an end.
type item struct {
	number   uint64
	decision *Decision
	end      End
}

// output is one store with what its present file has.
type output struct {
	Store
	encoder
	open   bool
	failed bool
	retry  time.Time // not before
}

// New returns a Recorder.
func New(c Config) (*Recorder, error) {
	mac := hmac.New(sha256.New, c.Key)
	_, _ = mac.Write([]byte("blocks of records"))
	key := mac.Sum(nil)
	block, err := aes.NewCipher(key[:16])
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Recorder{
		cfg: c, cipher: block, queue: make(chan item, mostQueued),
		life: rand.Uint64(), keyID: binary.LittleEndian.Uint64(key[16:]),
	}
	r.free.New = func() any { return new(Decision) }
	for _, s := range c.Stores {
		r.outputs = append(r.outputs, &output{Store: s})
	}
	return r, nil
}

// Failing returns why a store is not written at present; "": all are.
func (r *Recorder) Failing() string {
	if r == nil {
		return ""
	}
	if why := r.failed.Load(); why != nil {
		return *why
	}
	return ""
}

// Decided records a decision, and returns its number; 0: it is not recorded. Fill writes the facts into
// the Decision, whose slices are empty and may be appended to, and keeps no reference to it.
func (r *Recorder) Decided(fill func(*Decision)) (number uint64) {
	if r == nil {
		return 0
	}
	if len(r.queue) == cap(r.queue) {
		r.cfg.Lost()
		return 0
	}
	d := r.free.Get().(*Decision)
	*d = Decision{Chain: d.Chain[:0], Loads: d.Loads[:0]}
	fill(d)
	d.Chain = d.Chain[:min(len(d.Chain), mostChain)]
	n := int64(len(d.Chain))
	number = r.numbers.Add(1)
	if r.blocks.Add(n) <= mostQueuedBlocks {
		select {
		case r.queue <- item{number: number, decision: d}:
			return number
		default:
		}
	}
	r.blocks.Add(-n)
	r.cfg.Lost()
	return 0
}

// Ended records what became of a decision.
func (r *Recorder) Ended(e *End) {
	if r == nil || e.Number == 0 {
		return
	}
	select {
	case r.queue <- item{end: *e}:
	default:
		r.cfg.Lost()
	}
}

// Run writes until ctx ends, and then what is still queued.
func (r *Recorder) Run(ctx context.Context) error {
	if r == nil {
		return nil
	}
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	var told time.Time // of speeds
	for {
		select {
		case it := <-r.queue:
			r.take(&it)
		case now := <-flush.C:
			if now.Sub(told) >= speedsEvery {
				told = now
				r.learned()
			}
			r.flush()
		case <-ctx.Done():
			for len(r.queue) > 0 {
				it := <-r.queue
				r.take(&it)
			}
			r.learned()
			r.flush()
			return nil
		}
	}
}

func (r *Recorder) take(it *item) {
	if it.decision == nil {
		r.each(func(o *output) { o.end(&it.end) })
		return
	}
	r.follow()
	d := it.decision
	r.blocks.Add(-int64(len(d.Chain)))
	r.seal(d.Chain)
	r.each(func(o *output) {
		if len(o.blocks)+len(d.Chain) > mostBlocks {
			o.open = false
			if !r.begin(o) {
				return
			}
		}
		o.decision(it.number, d)
	})
	if cap(d.Chain) <= mostKept {
		r.free.Put(d)
	}
}

// seal puts keyed hashes in the place of a prompt's own.
func (r *Recorder) seal(chain []uint64) {
	var in, out [aes.BlockSize]byte
	for i, h := range chain {
		copy(in[:8], out[:8])
		binary.LittleEndian.PutUint64(in[8:], h)
		r.cipher.Encrypt(out[:], in[:])
		chain[i] = binary.LittleEndian.Uint64(out[:8])
	}
}

// each writes something to each store. A file that has no room for it is followed by another one.
func (r *Recorder) each(write func(*output)) {
	for _, o := range r.outputs {
		if !o.open && !r.begin(o) {
			continue
		}
		write(o)
		if len(o.out) > o.Room() {
			if !r.begin(o) {
				continue
			}
			write(o)
		}
		r.write(o)
	}
}

func (r *Recorder) write(o *output) {
	if !o.open || len(o.out) == 0 {
		return
	}
	err := o.Write(o.out)
	o.out = o.out[:0]
	r.judge(o, err)
}

// begin begins a file, and reports whether it is there.
func (r *Recorder) begin(o *output) bool {
	now := time.Now()
	o.open = false
	if now.Before(o.retry) {
		r.cfg.Lost()
		return false
	}
	h := header{r.cfg.Version, now, r.life, r.keyID}
	if !r.judge(o, o.Create(now, r.life)) {
		return false
	}
	o.open = true
	r.follow()
	o.encoder.begin(&h, r.ranks)
	if r.world != nil {
		o.encoder.learned(r.cfg.Speeds(r.world))
	}
	return true
}

// judge tells once that a store cannot be written, and once that it can again.
func (r *Recorder) judge(o *output, err error) bool {
	if err != nil {
		r.cfg.Lost()
		why := err.Error()
		r.failed.Store(&why)
		if !o.failed {
			r.cfg.Log.Error("decisions are not recorded: check that record.dir can be written to, and that its disk is not full", logkey.Err, err)
		}
		o.open, o.failed, o.retry = false, true, time.Now().Add(retryAfter)
		return false
	}
	if o.failed && o.open {
		o.failed = false
		r.failed.Store(nil)
		r.cfg.Log.Info("decisions are recorded again")
	}
	return true
}

// follow writes the ranks if the workers have changed.
func (r *Recorder) follow() {
	now := r.cfg.World()
	if now == r.world {
		return
	}
	r.world, r.ranks = now, ranksOf(now)
	for _, o := range r.outputs {
		if o.open {
			o.encoder.fleet(r.ranks)
		}
	}
}

func ranksOf(s *worker.Snapshot) (out []Rank) {
	for _, w := range s.Workers() {
		model, domain := w.Base().Model, s.TransferTaint(w.ID)
		for dp := range worker.DPRank(w.DPSize) {
			at := w.EndpointOf(dp)
			out = append(out, Rank{
				Rank: worker.Rank{ID: w.ID, DPRank: dp}, Role: w.Role, Engine: string(w.Engine), Endpoint: at.String(), Model: model, Domain: domain,
				BlockSize: int(w.BlockSize), Capacity: int(min(w.CapacityBlocks, 1<<40)), Told: !w.KVEvents.IsZero(), //nolint:gosec // bounded
			})
		}
	}
	return out
}

func (r *Recorder) learned() {
	if r.world == nil {
		return
	}
	speeds := r.cfg.Speeds(r.world)
	for _, o := range r.outputs {
		if o.open {
			o.encoder.learned(speeds)
			r.write(o)
		}
	}
}

func (r *Recorder) flush() {
	for _, o := range r.outputs {
		if o.open {
			r.judge(o, o.Flush())
		}
	}
}

// Queued returns how many decisions and ends wait to be written.
func (r *Recorder) Queued() int { return len(r.queue) }
