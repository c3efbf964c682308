package replay

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trace returns the first requests of the real trace.
func trace(t *testing.T, n int) *Workload {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "data", "mooncake_conversation_trace.jsonl"))
	if errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("the trace is not beside the repository")
	}
	require.NoError(t, err)
	w, err := ParseTrace(text, n, 1)
	require.NoError(t, err)
	Spread(w.Requests)
	return w
}

// Lindley: a request waits as long as the one before it did, and was served, less the time
// between them.
func TestTheQueueOfOneRankIsLindleys(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	w := ten()
	at := time.Duration(0)
	for range 2000 {
		at += time.Duration(rng.ExpFloat64() * float64(110*time.Millisecond))
		w.Requests = append(w.Requests, Request{At: at, Tokens: 1 + rng.IntN(180)})
	}
	r := run(t, Fleet{Ranks: []Rank{{PerToken: 0.001, PerPrompt: 0.01}}}, w, &script{})
	wait, waited := time.Duration(0), 0
	for i := range w.Requests {
		serve := ms(float64(w.Requests[i].Tokens) + 10)
		require.InDelta(t, wait+serve, r.Outcomes[i].FirstToken, 1000, "request %d", i)
		require.InDelta(t, wait, r.Outcomes[i].Queued, 1000, "request %d", i)
		if wait > 0 {
			waited++
		}
		if i+1 < len(w.Requests) {
			wait = max(0, wait+serve-(w.Requests[i+1].At-w.Requests[i].At))
		}
	}
	require.Greater(t, waited, 1000, "else nothing was tried")
}

func TestOneUnlimitedCacheHasTheTracesBound(t *testing.T) {
	w := trace(t, 1500)
	r := run(t, Fleet{Ranks: []Rank{{PerToken: 0.000125}}}, w, &script{})
	require.InDelta(t, w.Bound(), r.Figures(Target{}).Hit, 1e-12)
	require.InDelta(t, 0.270, w.Bound(), 0.0005)
}

// checker fails where a rank counts a block as cached that it never had.
type checker struct {
	script
	t      *testing.T
	w      *Workload
	rng    *rand.Rand
	had    []map[Block]bool
	counts map[string]int
	hits   int
}

func (c *checker) Choose(time.Duration, int, *Request) (Choice, error) {
	return Choice{Rank: c.rng.IntN(4), Decode: 4 + c.rng.IntN(2)}, nil
}

func (c *checker) Leg(_ time.Duration, l Leg) error {
	r := &c.w.Requests[l.Request]
	c.counts[fmt.Sprint(l.Request, l.Role, l.Moment)]++
	if l.Role == Prefill && l.Moment == Began {
		require.Zero(c.t, l.Cached%c.w.BlockTokens)
		for _, b := range r.Blocks[:l.Cached/c.w.BlockTokens] {
			require.True(c.t, c.had[l.Rank][b], "request %d", l.Request)
			c.hits++
		}
		require.Less(c.t, l.Cached, r.Tokens, "the last token is always computed")
	}
	if l.Role == Prefill && l.Moment == Ended {
		for _, b := range r.Blocks {
			c.had[l.Rank][b] = true
		}
	}
	return nil
}

func (c *checker) Events(_ time.Duration, e Events) error {
	if e.Rank < 4 {
		for _, b := range e.Removed {
			delete(c.had[e.Rank], b)
		}
	}
	return nil
}

func TestWhatCountsAsCachedWasStoredThereBefore(t *testing.T) {
	w := trace(t, 2000)
	f := Fleet{}
	c := &checker{t: t, w: w, rng: rand.New(rand.NewPCG(3, 3)), counts: map[string]int{}}
	for range 4 {
		f.Ranks = append(f.Ranks, Rank{PerToken: 0.0001, CacheBlocks: 1500, Prompts: 2, Chunk: 2048})
		c.had = append(c.had, map[Block]bool{})
	}
	for range 2 {
		f.Ranks = append(f.Ranks, Rank{Role: Decode, PerToken: 0.0001, Room: 600, Step: Step{Base: 0.02}})
	}
	r, err := Run(&f, w, c)
	require.NoError(t, err)
	require.Positive(t, c.hits)
	preempted := 0
	for i, o := range r.Outcomes {
		require.Positive(t, o.FirstToken, "request %d", i)
		require.GreaterOrEqual(t, o.End, o.FirstToken+time.Duration(o.Answer-1)*ms(20)-time.Microsecond, "request %d", i)
		for _, m := range []string{fmt.Sprint(i, Prefill, Began), fmt.Sprint(i, Prefill, Ended), fmt.Sprint(i, Decode, Began), fmt.Sprint(i, Decode, FirstToken), fmt.Sprint(i, Decode, Ended)} {
			require.Equal(t, 1, c.counts[m], m)
		}
		preempted += o.Preempted
	}
	require.Positive(t, preempted, "else preemption was not tried")
	require.Len(t, r.Computed, 4)
}

func TestEqualRunsAreEqual(t *testing.T) {
	play := func() (*Result, []Leg, []Report) {
		w := &Workload{BlockTokens: 256}
		for i := range 500 { // twenty conversations, whose prompts grow
			r := Request{At: ms(float64(300 * i)), Tokens: 256*(4+i/20) + 10, Answer: 100 + 7*i%300}
			for k := range 4 + i/20 {
				r.Blocks = append(r.Blocks, Block(1+i%20*1000+k))
			}
			if i >= 20 && i%3 == 0 {
				r.Follows, r.At = i-19, ms(3000)
			}
			w.Requests = append(w.Requests, r)
		}
		s := &script{}
		for i := range w.Requests {
			s.choices = append(s.choices, Choice{Rank: i % 3})
		}
		f := Fleet{ReportEvery: time.Second, EventDelay: ms(10)}
		for range 3 {
			f.Ranks = append(f.Ranks, Rank{
				Role: Whole, PerToken: 0.0002, Chunk: 1000, Room: 150, CacheBlocks: 1000, Prompts: 3, Step: Step{0.02, 0.001, 0.0001},
				Speeds: []Speed{{ms(5e4), 0.5}, {ms(9e4), 1}},
			})
		}
		r := run(t, f, w, s)
		return r, s.legs, s.reports
	}
	one, legs, reports := play()
	two, others, again := play()
	require.Equal(t, one.Outcomes, two.Outcomes)
	require.Equal(t, legs, others)
	require.Equal(t, reports, again)
	require.NotEmpty(t, reports)
	require.Positive(t, one.Lost)
}

func TestALoneAnswerRunsAtTheStatedSpeed(t *testing.T) {
	f := Fleet{Ranks: []Rank{{Role: Whole, PerToken: 0.001, PerPrompt: 0.005, Step: Step{Base: 0.02, PerAnswer: 0.003, PerBlock: 0.001}}}}
	s := &script{}
	r := run(t, f, ten(Request{Tokens: 20, Answer: 5}), s)
	require.Equal(t, ms(25), r.Outcomes[0].FirstToken)
	// Blocks: 3 from the first token on, which has the 21st place.
	require.Equal(t, ms(25+4*26), r.Outcomes[0].End)
	require.Equal(t, ms(26), r.Outcomes[0].Between())
	require.Equal(t, []Leg{
		{Role: Whole, Moment: Began}, {Role: Whole, Moment: FirstToken, At: ms(25)}, {Role: Whole, Moment: Ended, At: ms(129)},
	}, s.legs)
}

func TestAnswersSlowEachOtherDownAndPromptsToo(t *testing.T) {
	f := Fleet{Ranks: []Rank{{Role: Whole, PerToken: 0.001, Chunk: 10, Step: Step{Base: 0.02, PerAnswer: 0.005}}}}
	r := run(t, f, ten(Request{Tokens: 10, Answer: 4}, Request{Tokens: 20, Answer: 3}), &script{})
	// The first prompt alone: 10. The second, in two steps beside the first answer: 2 × (10 + 25).
	require.Equal(t, ms(10), r.Outcomes[0].FirstToken)
	require.Equal(t, ms(80), r.Outcomes[1].FirstToken)
	// Both answers in one step: 30; then the second alone: 25.
	require.Equal(t, ms(110), r.Outcomes[0].End)
	require.Equal(t, ms(135), r.Outcomes[1].End)
}

func TestPromptsAtOnceShareTheSpeed(t *testing.T) {
	w := ten(Request{Tokens: 30}, Request{Tokens: 10}, Request{Tokens: 10})
	f := Fleet{Ranks: []Rank{{PerToken: 0.001, Prompts: 2, Chunk: 10}}}
	r := run(t, f, w, &script{})
	// The first alone in a step that begins as it arrives; then 5 of two in each step.
	require.Equal(t, []time.Duration{ms(50), ms(30), ms(50)}, []time.Duration{r.Outcomes[0].FirstToken, r.Outcomes[1].FirstToken, r.Outcomes[2].FirstToken})
	f.Ranks[0].Prompts = 1
	r = run(t, f, w, &script{})
	require.Equal(t, []time.Duration{ms(30), ms(40), ms(50)}, []time.Duration{r.Outcomes[0].FirstToken, r.Outcomes[1].FirstToken, r.Outcomes[2].FirstToken})
}

// Two prompts of 11 tokens in blocks of ten, in a room of five: with its tenth token an answer
// begins a third block.
func TestThePreemptedAnswerLosesWhatItHasComputed(t *testing.T) {
	f := Fleet{Ranks: []Rank{{Role: Whole, PerToken: 0.001, PerPrompt: 0.1, Prompts: 2, Room: 5, Step: Step{Base: 0.02}}}}
	w := ten(Request{Tokens: 11, Answer: 12, Blocks: []Block{1}}, Request{Tokens: 11, Answer: 12, Blocks: []Block{2}})
	r := run(t, f, w, &script{})
	require.Zero(t, r.Outcomes[0].Preempted)
	require.Equal(t, 1, r.Outcomes[1].Preempted)
	// The first prompt alone, then the second beside the first answer.
	require.Equal(t, ms(111), r.Outcomes[0].FirstToken)
	require.Equal(t, ms(111+131), r.Outcomes[1].FirstToken)
	// Nine steps later the younger has its tenth token and is sent back, a step before the older
	// ends. Then all its 21 tokens are computed, nothing of them cached, which makes its 11th.
	require.Equal(t, ms(242+10*20), r.Outcomes[0].End)
	require.Equal(t, ms(121), r.Lost)
	require.Equal(t, ms(442+121+20), r.Outcomes[1].End)
	require.Equal(t, 1, r.Figures(Target{}).Preempted)
}

func TestOfAPairTheTransferIsPartOfTheFirstToken(t *testing.T) {
	blocks := []Block{1, 2}
	w := ten(Request{Tokens: 25, Answer: 3, Blocks: blocks}, Request{At: time.Second, Tokens: 25, Answer: 3, Blocks: blocks}, Request{At: 2 * time.Second, Tokens: 25, Answer: 1, Blocks: blocks})
	f := Fleet{
		Ranks:      []Rank{{PerToken: 0.001}, {Role: Decode, Step: Step{Base: 0.02}}, {Role: Decode, Step: Step{Base: 0.02}, Domain: 1}},
		Near:       Transfer{Base: 0.002, PerBlock: 0.001},
		Far:        Transfer{Base: 0.03, PerBlock: 0.01},
		EventDelay: ms(1),
	}
	s := &script{choices: []Choice{{Decode: 1}, {Decode: 2}, {Decode: 1}}}
	r := run(t, f, w, s)
	require.Equal(t, ms(25+2+3+20), r.Outcomes[0].FirstToken)
	require.Equal(t, ms(50+40), r.Outcomes[0].End)
	require.Equal(t, ms(5+30+30+20), r.Outcomes[1].FirstToken, "20 of 25 tokens are cached, and the domain is another")
	require.Equal(t, ms(5+2+3+20), r.Outcomes[2].End)
	require.Equal(t, []Events{{Rank: 0, Stored: blocks}, {Rank: 1, Stored: blocks}, {Rank: 2, Stored: blocks}}, s.events)
	require.Equal(t, []time.Duration{ms(26), ms(31), ms(1066)}, s.heard, "a delay after they were stored")
	f.FetchesLacking = true
	r = run(t, f, w, s)
	require.Equal(t, ms(5+2+1+20), r.Outcomes[2].End, "decode lacks what is not a whole block")
}

func TestARankIsAsFastAsItsScheduleSays(t *testing.T) {
	f := Fleet{Ranks: []Rank{{PerToken: 0.001, Speeds: []Speed{{ms(100), 0.5}, {ms(300), 2}}}}}
	r := run(t, f, ten(Request{Tokens: 10}, Request{At: ms(100), Tokens: 10}, Request{At: ms(400), Tokens: 10}), &script{})
	require.Equal(t, []time.Duration{ms(10), ms(20), ms(5)}, []time.Duration{r.Outcomes[0].FirstToken, r.Outcomes[1].FirstToken, r.Outcomes[2].FirstToken})
}

func TestLegsTellTheWorkersClockAndAreHeardLater(t *testing.T) {
	f := Fleet{Ranks: []Rank{{PerToken: 0.001, Ahead: time.Hour}}, LegDelay: ms(3)}
	s := &script{}
	run(t, f, ten(Request{Tokens: 10}), s)
	require.Equal(t, []Leg{{Moment: Began, At: time.Hour}, {Moment: Ended, At: time.Hour + ms(10)}}, s.legs)
	require.Equal(t, []time.Duration{ms(3), ms(13)}, s.at)
}

func TestReportsTellWhatRuns(t *testing.T) {
	f := Fleet{Ranks: []Rank{{Role: Whole, PerToken: 0.001, Step: Step{Base: 0.02}}}, ReportEvery: ms(50)}
	s := &script{}
	run(t, f, ten(Request{Tokens: 40, Answer: 2}, Request{Tokens: 40, Answer: 1}), s)
	// At 50 the first has its first token, and the second is computed beside it.
	require.Equal(t, []Report{{Running: 1, Blocks: 5, Waiting: 1}}, s.reports)
}

func TestARequestThatFollowsArrivesAPauseAfterTheEnd(t *testing.T) {
	f := Fleet{Ranks: []Rank{{PerToken: 0.001}}}
	r := run(t, f, ten(Request{Tokens: 10}, Request{Tokens: 10, At: ms(7), Follows: 1}, Request{At: ms(12), Tokens: 10}), &script{})
	require.Equal(t, ms(17), r.Outcomes[1].At)
	require.Equal(t, ms(5+10), r.Outcomes[1].FirstToken)
}

func TestFaultsAreRefused(t *testing.T) {
	one := ten(Request{Tokens: 1})
	for _, f := range []Fleet{
		{}, {Ranks: []Rank{{Role: Decode}}}, {Ranks: []Rank{{}, {Role: Whole}}}, {Ranks: []Rank{{Role: 3}}}, {Ranks: []Rank{{Speeds: []Speed{{}}}}},
		{Ranks: []Rank{{Chunk: -1}}}, {Ranks: []Rank{{PerToken: math.NaN()}}},
	} {
		_, err := Run(&f, one, &script{})
		require.ErrorContains(t, err, "expected", "%+v", f)
	}
	f := Fleet{Ranks: []Rank{{}}}
	for _, w := range []*Workload{
		ten(), ten(Request{}), ten(Request{Tokens: 9, Blocks: []Block{1}}), ten(Request{At: 1, Tokens: 9}, Request{Tokens: 9}), ten(Request{Tokens: 9, Follows: 1}),
	} {
		_, err := Run(&f, w, &script{})
		require.ErrorContains(t, err, "expected", "%+v", w)
	}
	_, err := Run(&f, one, &script{choices: []Choice{{Rank: 1}}})
	require.ErrorContains(t, err, "request 0: chosen {Rank:1 Decode:0 Believed:0}: expected ranks of the fleet")
}

func TestFiguresSumUp(t *testing.T) {
	r := &Result{BlockTokens: 10, Computed: []int64{30, 10}, Lost: time.Second, Outcomes: []Outcome{
		{Tokens: 100, Cached: 20, Choice: Choice{Believed: 3}, FirstToken: ms(100), End: ms(200), Answer: 11},
		{Tokens: 100, FirstToken: ms(300), End: ms(300), Answer: 1},
		{Tokens: 200, Cached: 80, FirstToken: ms(200), End: ms(1200), Answer: 11, Preempted: 2},
	}}
	f := r.Figures(Target{FirstToken: ms(250), Between: ms(50)})
	require.InDelta(t, 0.25, f.Hit, 1e-12)
	require.InDelta(t, 30.0/400, f.Believed, 1e-12)
	require.InDelta(t, 1.5, f.Busiest, 1e-12)
	require.InDelta(t, 1.0/3, f.Goodput, 1e-12, "the second is late, the third slow")
	require.Equal(t, Times{Mean: ms(200), P50: ms(200), P90: ms(300), P95: ms(300), P99: ms(300)}, f.First)
	require.Equal(t, Times{Mean: ms(55), P50: ms(10), P90: ms(100), P95: ms(100), P99: ms(100)}, f.Between)
	require.Equal(t, 2, f.Preempted)
	require.Equal(t, time.Second, f.Lost)
}
