package hour

import (
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Step is the shortest span that is told apart, and Steps is how many of them are kept.
const (
	Step  = 10 * time.Second
	Steps = int(time.Hour / Step)
)

// lateSteps is by how many steps a report may be late and still count where it belongs. A time
// further back is that of a clock that was set back.
const lateSteps = 6

// Hour keeps the last hour. Safe for concurrent use.
type Hour struct {
	mu sync.Mutex // guards all below

	start  time.Time // of step 0
	newest int64     // the step in which the latest report was
	bins   [Steps + 1]bin
}

// bin is what was told in one step.
type bin struct {
	requests             [len(outcomes)]uint32
	firstToken, perToken histogram
	prompt               Prompt
	load                 [worker.Aggregated + 1]load // by role
}

type load struct {
	samples uint32
	queue   float64 // sums of the samples
	blocks  float64
}

// Prompt counts the tokens of prompts.
type Prompt struct {
	Asked     int64 `json:"asked"`
	Available int64 `json:"available"` // that the best eligible worker held, as far as the index knew
	Predicted int64 `json:"predicted"` // that the picked worker held, as far as the index knew
	Told      int64 `json:"told"`      // of prompts of which the engine told what was cached
	Delivered int64 `json:"delivered"` // of these, not computed
}

// Sample is how much work a role has at one moment.
type Sample struct {
	Role         worker.Role
	Ranks        int     // of the role
	QueueSeconds float64 // until each has done what is booked on it, added up
	DecodeBlocks int64   // booked on all
}

// New returns an hour that begins now.
func New(now time.Time) *Hour { return &Hour{start: now} }

// atLocked returns the bin of a time.
func (h *Hour) atLocked(now time.Time) *bin {
	step := int64(now.Sub(h.start) / Step)
	for n := 0; h.newest < step && n < len(h.bins); n++ {
		h.newest++
		*h.binLocked(h.newest) = bin{}
	}
	if step > h.newest || step < 0 || step < h.newest-lateSteps { // the clock was set, or nobody told anything for over an hour
		h.start = now.Add(-time.Duration(h.newest) * Step)
		step = h.newest
	}
	return h.binLocked(step)
}

func (h *Hour) binLocked(step int64) *bin { return &h.bins[step%int64(len(h.bins))] }

func (h *Hour) tell(now time.Time, f func(b *bin)) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h.atLocked(now))
}

// Ended counts a request by its outcome, which is a value of the metric's label.
func (h *Hour) Ended(now time.Time, outcome string) {
	h.tell(now, func(b *bin) { b.requests[max(0, slices.Index(outcomes[:], outcome))]++ })
}

// Took notes how long a request took for its first token, and for each further one in the
// mean; 0: not known.
func (h *Hour) Took(now time.Time, firstToken, perToken time.Duration) {
	h.tell(now, func(b *bin) {
		b.firstToken.add(firstToken)
		b.perToken.add(perToken)
	})
}

// Prompt counts the tokens of a prompt.
func (h *Hour) Prompt(now time.Time, p Prompt) {
	h.tell(now, func(b *bin) { b.prompt.add(p) })
}

// Sample notes how much work the roles have.
func (h *Hour) Sample(now time.Time, samples ...Sample) {
	h.tell(now, func(b *bin) {
		for _, s := range samples {
			if int(s.Role) < len(b.load) {
				b.load[s.Role].add(load{1, s.QueueSeconds / float64(max(s.Ranks, 1)), float64(s.DecodeBlocks)})
			}
		}
	})
}

func (l *load) add(o load) {
	l.samples += o.samples
	l.queue += o.queue
	l.blocks += o.blocks
}

func (p *Prompt) add(o Prompt) {
	p.Asked += o.Asked
	p.Available += o.Available
	p.Predicted += o.Predicted
	p.Told += o.Told
	p.Delivered += o.Delivered
}

func (b *bin) add(o *bin) {
	for i, n := range o.requests {
		b.requests[i] += n
	}
	b.firstToken.merge(&o.firstToken)
	b.perToken.merge(&o.perToken)
	b.prompt.add(o.prompt)
	for i := range o.load {
		b.load[i].add(o.load[i])
	}
}
