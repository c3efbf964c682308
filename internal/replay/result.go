package replay

import (
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/stats"
)

// Outcome is what became of one request. Durations count from its arrival.
type Outcome struct {
	Choice
	At         time.Duration // its arrival
	Tokens     int           // of the prompt
	Answer     int           // tokens of the answer
	Cached     int           // tokens of the prompt that were found
	Queued     time.Duration // until its prompt was begun
	FirstToken time.Duration
	End        time.Duration
	Preempted  int  // how often
	Refused    bool // it was not served, and all but At and Tokens is 0
}

// Between is the mean time between the answer's tokens; 0 for an answer of one token.
func (o *Outcome) Between() time.Duration {
	if o.Answer < 2 {
		return 0
	}
	return (o.End - o.FirstToken) / time.Duration(o.Answer-1)
}

// Result is one run. Outcomes are by request.
type Result struct {
	BlockTokens int
	Outcomes    []Outcome
	Computed    []int64       // prompt tokens, by rank of those that prefill
	Lost        time.Duration // that ranks spent on prompts of preempted answers

	caches []*cache
}

// Held returns how many leading blocks of the chain a rank has cached at the run's end.
func (r *Result) Held(rank int, chain []Block) int { return r.caches[rank].held(chain) }

// Cached returns how many blocks a rank has cached at the run's end.
func (r *Result) Cached(rank int) int { return r.caches[rank].used.Len() }

// Times sums up durations.
type Times struct {
	Mean, P50, P90, P95, P99 time.Duration
}

// TimesOf sums up durations, and sorts them; without any, it is 0.
func TimesOf(all []time.Duration) Times {
	if len(all) == 0 {
		return Times{}
	}
	slices.Sort(all)
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return Times{
		Mean: sum / time.Duration(len(all)), P50: stats.Quantile(all, 0.50), P90: stats.Quantile(all, 0.90),
		P95: stats.Quantile(all, 0.95), P99: stats.Quantile(all, 0.99),
	}
}

// Each returns all of them.
func (t *Times) Each() [5]*time.Duration {
	return [...]*time.Duration{&t.Mean, &t.P50, &t.P90, &t.P95, &t.P99}
}

// MedianTimes returns the median of each.
func MedianTimes(all []Times) (out Times) {
	for k, median := range out.Each() {
		var v []time.Duration
		for i := range all {
			v = append(v, *all[i].Each()[k])
		}
		*median = stats.Median(v)
	}
	return out
}

// Target is what a request has to keep to count as good.
type Target struct {
	FirstToken time.Duration
	Between    time.Duration // between tokens, on average
}

// Figures sum up one run.
type Figures struct {
	Hit, Believed float64 // shares of the prompt tokens: found, and counted on
	First         Times   // time to the first token
	Between       Times   // mean times between tokens, of answers with more than one
	Goodput       float64 // share of the requests that keep the target
	Busiest       float64 // prompt tokens computed by the busiest rank of those that prefill, over the mean
	Preempted     int     // answers, each as often as it was
	Refused       int     // requests, which count in nothing else
	Lost          time.Duration
}

// Figures returns the sums.
func (r *Result) Figures(t Target) Figures {
	f := Figures{Lost: r.Lost}
	var first, between []time.Duration
	var tokens, hits, believed, good int
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Refused {
			f.Refused++
			continue
		}
		tokens, hits, believed = tokens+o.Tokens, hits+o.Cached, believed+o.Believed*r.BlockTokens
		f.Preempted += o.Preempted
		first = append(first, o.FirstToken)
		if o.Answer > 1 {
			between = append(between, o.Between())
		}
		if o.FirstToken <= t.FirstToken && o.Between() <= t.Between {
			good++
		}
	}
	f.First, f.Between = TimesOf(first), TimesOf(between)
	f.Hit, f.Believed = float64(hits)/float64(max(tokens, 1)), float64(believed)/float64(max(tokens, 1))
	f.Goodput = float64(good) / float64(max(len(r.Outcomes), 1))
	f.Busiest = Busiest(r.Computed)
	return f
}

// Busiest returns what the busiest rank computed over the mean.
func Busiest(computed []int64) float64 {
	var most, all int64
	for _, n := range computed {
		most, all = max(most, n), all+n
	}
	return float64(most) * float64(len(computed)) / float64(max(all, 1))
}
