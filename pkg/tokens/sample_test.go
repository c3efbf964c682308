package tokens

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var theRank = worker.Rank{ID: 7, DPRank: 1}

// sampling is a resolver whose files are in use, with a rank of which the events tell the
// prompts for which holds says so.
type sampling struct {
	*Resolver
	t      *testing.T
	engine *counting
	holds  func(chain []kvindex.LocalHash) bool
	told   *[]Standing
	mu     sync.Mutex
	ends   []Compared // guarded by mu
}

func newSampling(t *testing.T) *sampling {
	s := &sampling{t: t, engine: &counting{m: filesModel(t)}}
	s.Resolver, s.told = filesResolver(t, s.engine, func(c *Config) {
		c.Told = func(r worker.Rank, chain []kvindex.LocalHash) bool {
			require.Equal(t, theRank, r)
			return s.holds(chain)
		}
		c.OnCompared = func(end Compared) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ends = append(s.ends, end)
		}
	})
	_, err := s.Engine(context.Background(), filesQuery(t, openai.Completions, `{"model":"m","prompt":"first"}`), []worker.Endpoint{{}})
	require.NoError(t, err)
	synctest.Wait()
	require.Len(t, *s.told, 2)
	return s
}

func (s *sampling) ended() []Compared {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ends)
}

func (s *sampling) prompt(text string) Prompt {
	s.t.Helper()
	p, ok := s.Fast(filesQuery(s.t, openai.Completions, fmt.Sprintf(`{"model":"m","prompt":%q}`, text)), new(Scratch))
	require.True(s.t, ok)
	require.Equal(s.t, FromLocal, p.Source)
	return p
}

// TestAComputedPromptIsComparedWithItsBlocks, which its engine tells a while later.
func TestAComputedPromptIsComparedWithItsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		p := s.prompt(oneText)
		chain := append([]kvindex.LocalHash{}, p.Hashes...)
		computed := time.Now()
		s.holds = func(c []kvindex.LocalHash) bool {
			require.Equal(t, chain, c)
			return time.Since(computed) > time.Second
		}
		asked := s.engine.count()
		p.Claim.Computed(theRank, worker.Endpoint{})
		p.Claim.Computed(theRank, worker.Endpoint{}) // once is enough
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []Compared{CompareTold}, s.ended())
		require.Equal(t, asked, s.engine.count(), "no engine is asked")
		require.Len(t, *s.told, 2)
	})
}

// TestABlockThatIsNotToldHasTheEngineAsked: what it then says decides, if it can be compared
// with what was computed.
func TestABlockThatIsNotToldHasTheEngineAsked(t *testing.T) {
	text, talk := `{"model":"m","prompt":"some text of more than one block"}`, `{"model":"m","messages":[{"role":"user","content":"hello"}]%s}`
	for _, c := range []struct {
		name       string
		path       openai.Path
		body       string
		swap, more bool
		down       bool
		end        Compared
		asked      int
	}{
		{"the same tokens", openai.Completions, text, false, false, false, CompareEqual, 1},
		{"others", openai.Completions, text, true, false, false, CompareDiffers, 1},
		{"another count, which the usage will tell", openai.Completions, text, false, true, false, CompareUnknown, 1},
		{"no answer", openai.Completions, text, false, false, true, CompareUnknown, 0},
		{"messages", openai.ChatCompletions, fmt.Sprintf(talk, ""), false, false, false, CompareEqual, 1},
		{"other tokens of messages", openai.ChatCompletions, fmt.Sprintf(talk, ""), true, false, false, CompareDiffers, 1},
		{"what /tokenize does not take", openai.ChatCompletions, fmt.Sprintf(talk, `,"reasoning_effort":"low"`), true, false, false, CompareUnknown, 0},
		{"a list", openai.Completions, `{"model":"m","prompt":["some text","of more than one"]}`, true, false, false, CompareUnknown, 0},
		{"a long body", openai.Completions, `{"model":"m","prompt":"` + strings.Repeat("long ", sampleBytes/5) + `"}`, true, false, false, CompareUnknown, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSampling(t)
				defer s.Close()
				s.holds = func([]kvindex.LocalHash) bool { return false }
				before := s.engine.count()
				s.engine.down = c.down
				s.engine.swap, s.engine.odd = func([]byte) bool { return c.swap }, func([]byte) bool { return c.more }
				p, ok := s.Fast(filesQuery(t, c.path, c.body), new(Scratch))
				require.True(t, ok)
				p.Claim.Computed(theRank, worker.Endpoint{})
				<-time.After(2 * toldWithin)
				synctest.Wait()
				require.Equal(t, []Compared{c.end}, s.ended())
				require.Equal(t, c.asked, s.engine.count()-before)
				_, ok = s.Fast(filesQuery(t, c.path, c.body), new(Scratch))
				require.Equal(t, c.end != CompareDiffers, ok, "they are out of use if they differ")
				if c.end == CompareDiffers {
					require.Len(t, *s.told, 3)
					require.Contains(t, (*s.told)[2].Why, "a request: the engine has ")
				}
			})
		})
	}
}

const oneText = "some text of more than one block"

// TestFewPromptsAreSampled: one at a time, one in ten seconds, and one that is never computed
// is given up.
func TestFewPromptsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		s.holds = func([]kvindex.LocalHash) bool { return true }
		burst := func() {
			for range 100 {
				p := s.prompt(oneText)
				p.Claim.Computed(theRank, worker.Endpoint{})
				synctest.Wait()
			}
		}
		burst()
		require.Len(t, s.ended(), 1)
		<-time.After(sampleEvery)
		require.Zero(t, s.prompt("ab").Claim.sample, "it has no block")
		never := s.prompt("this one is not computed")
		require.NotZero(t, never.Claim.sample)
		<-time.After(sampleLost - time.Second)
		burst()
		require.Len(t, s.ended(), 1)
		<-time.After(time.Second)
		burst()
		require.Equal(t, []Compared{CompareTold, CompareTold}, s.ended())
		never.Claim.Computed(theRank, worker.Endpoint{})
		synctest.Wait()
		require.Len(t, s.ended(), 2, "it is given up")
	})
}

// TestAnswersThatTakeLongAreCompared: a sample waits for the answer to begin.
func TestAnswersThatTakeLongAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		s.holds = func([]kvindex.LocalHash) bool { return true }
		var waiting []Prompt
		for range 600 {
			waiting = append(waiting, s.prompt(oneText))
			if len(waiting) > 20 {
				waiting[0].Claim.Computed(theRank, worker.Endpoint{})
				waiting = waiting[1:]
			}
			<-time.After(time.Second)
		}
		synctest.Wait()
		require.Greater(t, len(s.ended()), 20)
	})
}

// TestADatedPromptIsNotJudgedAroundMidnight, when an engine may have another date.
func TestADatedPromptIsNotJudgedAroundMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight
		m, err := local.New(local.Files{Tokenizer: bytesTokenizer(), Config: []byte(`{"chat_template": "{{ strftime_now('%d') }}{{ messages[0].content }}"}`)}, local.Limits{})
		require.NoError(t, err)
		require.True(t, m.Dated())
		f := newFiles("m", m, nil)
		texts, messages := form{CallerOf(worker.VLLM), false}, form{CallerOf(worker.VLLM), true}
		require.True(t, f.unsure(messages, time.Now()))
		require.False(t, f.unsure(texts, time.Now()))
		<-time.After(aroundMidnight)
		require.False(t, f.unsure(messages, time.Now()))
		<-time.After(24*time.Hour - 2*aroundMidnight + time.Second)
		require.True(t, f.unsure(messages, time.Now()))
		require.False(t, newFiles("m", filesModel(t), nil).unsure(messages, time.Now()))
	})
}

// TestCloseEndsAComparison that waits for events.
func TestCloseEndsAComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		s.holds = func([]kvindex.LocalHash) bool { return false }
		p := s.prompt(oneText)
		p.Claim.Computed(theRank, worker.Endpoint{})
		synctest.Wait()
		s.Close()
		require.Equal(t, []Compared{CompareUnknown}, s.ended())
		p.Claim.Computed(theRank, worker.Endpoint{})
	})
}

// TestAPromptThatMayBeCutClaimsNothing: what an engine counts in a prompt as long as its model
// allows may be what it has left of it.
func TestAPromptThatMayBeCutClaimsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		for limit, claims := range map[int]bool{0: true, 9: true, 8: false} { // it has 8 tokens
			q := filesQuery(t, openai.Completions, `{"model":"m","prompt":"12345678"}`)
			q.MaxModelLen = limit
			p, ok := s.Fast(q, new(Scratch))
			require.True(t, ok)
			require.Equal(t, 8, p.ISLTokens)
			require.Equal(t, claims, p.Claim != Claim{}, limit)
		}
	})
}

// TestFilesThatWereReplacedSayNothing of those that took their place.
func TestFilesThatWereReplacedSayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		s.holds = func([]kvindex.LocalHash) bool { return false }
		s.engine.swap = func(body []byte) bool { return strings.Contains(string(body), "more than") }
		p := s.prompt(oneText)
		p.Claim.Computed(theRank, worker.Endpoint{})
		s.Use("m", filesModel(t))
		p.Claim.Counted(p.ISLTokens + 1)
		<-time.After(2 * toldWithin)
		synctest.Wait()
		require.Equal(t, []Compared{CompareDiffers}, s.ended())
		require.Len(t, *s.told, 2)
	})
}
