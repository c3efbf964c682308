package outlen

import (
	"math/bits"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	memory     = 32        // answers: what is heard counts 31/32 after each one more
	enough     = 8         // answers, from which on they are believed
	mostModels = 1024      // known at a time
	mostTokens = 1 << 20   // of one answer
	mostPace   = 100_000.0 // tokens a second of one answer
	mostWhole  = 24 * time.Hour

	defaultFirst  = 500 * time.Millisecond
	defaultPace   = 30.0
	defaultTokens = 4096
)

// NotSaid is the MaxTokens of a request that does not say how many it allows.
const NotSaid = -1

// Answer is what came of one request.
type Answer struct {
	MaxTokens int64         // that the request allows; NotSaid
	Tokens    int64         // of the answer; 0: not known
	First     time.Duration // until its first token; 0: not known
	Whole     time.Duration // until its last
}

// Expectation is what an answer is expected to be.
type Expectation struct {
	First     time.Duration // until its first token
	PerSecond float64       // tokens, from then on
	Tokens    int64         // at most
}

// Lately is what was heard. The zero value is ready.
type Lately struct {
	mu     sync.Mutex
	clock  uint64 // answers booked and heard
	models map[worker.Key]*model
}

// classes are by powers of four of what requests allow, and one for those that do not say.
const classes = 12

// model is what was heard of one model.
type model struct {
	used            uint64 // Lately.clock when an answer was last booked or heard
	first           mean
	tokens, seconds float64 // from the first token to the last, of all answers
	paced           int
	all             lengths
	class           [classes]lengths
}

// mean is a mean in which the past fades.
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

// most is twice what 19 of 20 did not pass, rounded up to a power of two.
func (l *lengths) most() int64 {
	below := 0.0
	for i, n := range l.of {
		if below += n; below >= 0.95*l.sum {
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

// Heard takes what came of an answer. How long one is that does not say it, is judged by
// how long it took; without time it says nothing.
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
		return // neither is known
	case a.Tokens == 0:
		a.Tokens = min(1+int64(max(0, took)*m.tokens/m.seconds), mostTokens)
	}
	m.all.add(a.Tokens)
	m.class[classOf(a.MaxTokens)].add(a.Tokens)
}

// Wrote takes that answers of the model were seen to write so many tokens, in so many
// seconds of each of them together: by who tells of an answer while it runs. Of a model of
// which no answer was booked or heard it is nothing: a worker may have thousands of names.
func (l *Lately) Wrote(k worker.Key, tokens, seconds float64) {
	if !(tokens >= 0 && seconds > 0) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.models[k]; m != nil {
		m.wrote(tokens, min(seconds, mostWhole.Seconds()))
	}
}

// modelOf returns the model, which is known from now on.
func (l *Lately) modelOf(k worker.Key) *model {
	l.clock++
	m := l.models[k]
	if m == nil {
		m = l.add(k)
	}
	m.used = l.clock
	return m
}

// wrote adds to what is known of the pace.
func (m *model) wrote(tokens, seconds float64) {
	if seconds <= 0 {
		return
	}
	fade := 1 - 1.0/memory
	m.tokens, m.seconds = m.tokens*fade+min(tokens, mostPace*seconds), m.seconds*fade+seconds
	m.paced++
}

// until is how long the first token took: where that is not known, as long as it mostly
// does.
func (m *model) until(first time.Duration) float64 {
	if first == 0 {
		return m.first.v
	}
	return first.Seconds()
}

// add makes a model known, and forgets another where there are too many.
func (l *Lately) add(k worker.Key) *model {
	if l.models == nil {
		l.models = make(map[worker.Key]*model)
	}
	if len(l.models) >= mostModels {
		var oldest worker.Key
		least := l.clock
		for k, m := range l.models {
			if m.used < least {
				oldest, least = k, m.used
			}
		}
		delete(l.models, oldest)
	}
	m := new(model)
	l.models[k] = m
	return m
}

// Expect says what the answer of a request that allows so many tokens is expected to be. It
// changes nothing: who only asks leaves no trace.
func (l *Lately) Expect(k worker.Key, maxTokens int64) Expectation {
	e := Expectation{First: defaultFirst, PerSecond: defaultPace, Tokens: defaultTokens}
	l.mu.Lock()
	m := l.models[k]
	if m != nil {
		m.tell(&e, maxTokens)
	}
	l.mu.Unlock()
	if maxTokens > 0 {
		e.Tokens = min(e.Tokens, maxTokens)
	}
	return e
}

// tell writes what is known of the model in place of what is taken for granted.
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

// Booked takes that an answer of the model is to come, which is known from now on.
func (l *Lately) Booked(k worker.Key) {
	l.mu.Lock()
	l.modelOf(k)
	l.mu.Unlock()
}
