package outlen

import (
	"math/bits"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	memory     = 32        // answers: what is known counts 31/32 after each further one
	enough     = 8         // answers, from which on they are used
	mostModels = 1024      // kept at a time
	mostTokens = 1 << 20   // of one answer
	mostPace   = 100_000.0 // tokens a second of one answer
	mostWhole  = 24 * time.Hour

	defaultFirst  = 500 * time.Millisecond
	defaultPace   = 30.0
	defaultTokens = 4096
)

// NotSaid is the MaxTokens of a request that does not set a limit.
const NotSaid = -1

// Answer is how the answer to one request was.
type Answer struct {
	MaxTokens int64         // that the request allows, or NotSaid
	Tokens    int64         // of the answer; 0: not known
	First     time.Duration // until its first token; 0: not known
	Whole     time.Duration // until its last token
}

// Expectation is how an answer is expected to be.
type Expectation struct {
	First     time.Duration // until its first token
	PerSecond float64       // tokens, from then on
	Tokens    int64         // at most
}

// Lately is what is known of the latest answers of each model. The zero value is ready.
type Lately struct {
	mu     sync.Mutex
	models recent.Map[worker.Key, *model] // guarded by mu; the newest was booked or reported last
}

// classes are by powers of four of the tokens that requests allow; one is for requests
// without a limit.
const classes = 12

// model is what is known of one model's answers.
type model struct {
	first           mean
	tokens, seconds float64 // from the first token to the last, over all answers
	paced           int
	all             lengths
	class           [classes]lengths
}

// mean is a mean in which older values count less.
type mean struct {
	v float64
	n int
}

func (m *mean) add(v float64) {
	m.n = min(m.n+1, memory)
	m.v += (v - m.v) / float64(m.n)
}

// lengths counts answers by the power of two of their tokens.
type lengths struct {
	of  [22]float64
	sum float64
	n   int
}

func (l *lengths) add(tokens int64) {
	for i := range l.of {
		l.of[i] *= 1 - 1.0/memory
	}
	l.of[min(bits.Len64(uint64(tokens)), len(l.of)-1)]++
	l.sum = l.sum*(1-1.0/memory) + 1
	l.n++
}

// most is twice the length that 19 of 20 answers did not exceed, rounded up to a power of
// two.
func (l *lengths) most() int64 {
	below := 0.0
	for i, n := range l.of {
		below += n
		if below >= 0.95*l.sum {
			return 2 << i
		}
	}
	return mostTokens
}

func classOf(maxTokens int64) int {
	if maxTokens <= 0 {
		return classes - 1
	}
	return min(bits.Len64(uint64(maxTokens-1))/2, classes-2)
}

// Heard takes how an answer was. If its length is not known, it is worked out from how
// long it took. An answer without a time is ignored.
func (l *Lately) Heard(k worker.Key, a Answer) {
	if a.Tokens < 0 || a.Whole <= 0 || a.First < 0 || a.First > a.Whole {
		return
	}
	a.Tokens, a.Whole, a.First = min(a.Tokens, mostTokens), min(a.Whole, mostWhole), min(a.First, mostWhole)
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.modelOf(k)
	if a.First > 0 {
		m.first.add(a.First.Seconds())
	}
	took := a.Whole.Seconds() - m.until(a.First)
	switch {
	case a.Tokens > 1:
		m.wrote(float64(a.Tokens-1), took)
	case a.Tokens == 0 && m.paced == 0:
		return // neither the length nor the pace is known
	case a.Tokens == 0:
		a.Tokens = min(1+int64(max(0, took)*m.tokens/m.seconds), mostTokens)
	}
	m.all.add(a.Tokens)
	m.class[classOf(a.MaxTokens)].add(a.Tokens)
}

// Wrote takes that running answers of the model were seen to write so many tokens, in so
// many seconds, summed over the answers. It is ignored for a model of which no answer was
// booked or reported: a worker may have thousands of names.
func (l *Lately) Wrote(k worker.Key, tokens, seconds float64) {
	if !(tokens >= 0 && seconds > 0) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m, known := l.models.Get(k, time.Time{}); known {
		m.wrote(tokens, min(seconds, mostWhole.Seconds()))
	}
}

// modelOf returns the model of k, which is kept from now on. If there are too many, the one
// that was booked or reported longest ago is dropped.
func (l *Lately) modelOf(k worker.Key) *model {
	m, known := l.models.Get(k, time.Time{})
	if !known {
		m = new(model)
		if l.models.Len() == mostModels {
			l.models.DropOldest()
		}
	}
	l.models.Put(k, m, time.Time{})
	return m
}

// wrote adds to the sums of the pace.
func (m *model) wrote(tokens, seconds float64) {
	if seconds <= 0 {
		return
	}
	fade := 1 - 1.0/memory
	m.tokens, m.seconds = m.tokens*fade+min(tokens, mostPace*seconds), m.seconds*fade+seconds
	m.paced++
}

// until is how long the first token took; if that is not known, the mean for the model.
func (m *model) until(first time.Duration) float64 {
	if first == 0 {
		return m.first.v
	}
	return first.Seconds()
}

// Expect says how the answer of a request that allows so many tokens is expected to be.
// It changes nothing.
func (l *Lately) Expect(k worker.Key, maxTokens int64) Expectation {
	e := Expectation{First: defaultFirst, PerSecond: defaultPace, Tokens: defaultTokens}
	l.mu.Lock()
	m, known := l.models.Get(k, time.Time{})
	if known {
		m.tell(&e, maxTokens)
	}
	l.mu.Unlock()
	if maxTokens > 0 {
		e.Tokens = min(e.Tokens, maxTokens)
	}
	return e
}

// tell replaces the defaults in e by what is known of the model.
func (m *model) tell(e *Expectation, maxTokens int64) {
	if m.first.n > 0 {
		e.First = time.Duration(m.first.v * float64(time.Second))
	}
	if m.paced > 0 && m.seconds > 0 {
		e.PerSecond = m.tokens / m.seconds
	}
	if c := &m.class[classOf(maxTokens)]; c.n >= enough {
		e.Tokens = min(c.most(), mostTokens)
	} else if m.all.n >= enough {
		e.Tokens = min(max(m.all.most(), defaultTokens), mostTokens)
	}
}

// Booked takes that an answer of the model is booked. The model is kept from now on.
func (l *Lately) Booked(k worker.Key) {
	l.mu.Lock()
	l.modelOf(k)
	l.mu.Unlock()
}
