package tokens

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
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
	ends   []Compared
	asked  atomic.Int32 // times that the events were looked at
}

func newSampling(t *testing.T) *sampling {
	s := &sampling{t: t, engine: &counting{m: filesModel(t)}}
	s.Resolver, s.told = filesResolver(t, s.engine, func(c *Config) {
		c.Told = func(r worker.Rank, chain []kvindex.LocalHash) bool {
			require.Equal(t, theRank, r)
			s.asked.Add(1)
			return s.holds(chain)
		}
		c.OnCompared = func(end Compared) { s.ends = append(s.ends, end) }
	})
	_, err := s.Engine(context.Background(), filesQuery(t, openai.Completions, `{"model":"m","prompt":"first"}`), []worker.Endpoint{{}})
	require.NoError(t, err)
	synctest.Wait()
	require.Len(t, *s.told, 2)
	return s
}

func (s *sampling) prompt(text string) Prompt {
	s.t.Helper()
	p, ok := s.Fast(filesQuery(s.t, openai.Completions, fmt.Sprintf(`{"model":"m","prompt":%q}`, text)), new(Scratch))
	require.True(s.t, ok)
	require.Equal(s.t, FromLocal, p.Source)
	return p
}

// TestAServedPromptIsComparedWithItsBlocks, which its engine tells a while later.
func TestAServedPromptIsComparedWithItsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		p := s.prompt("some text of more than one block")
		chain := append([]kvindex.LocalHash{}, p.Hashes...)
		served := time.Now()
		s.holds = func(c []kvindex.LocalHash) bool {
			require.Equal(t, chain, c)
			return time.Since(served) > time.Second
		}
		asked := s.engine.count()
		p.Claim.Served(theRank, worker.Endpoint{})
		p.Claim.Served(theRank, worker.Endpoint{}) // once is enough
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []Compared{CompareTold}, s.ends)
		require.Equal(t, asked, s.engine.count(), "no engine is asked")
		require.Len(t, *s.told, 2)
	})
}

// TestABlockThatIsNotToldHasTheEngineAsked: what it then says decides.
func TestABlockThatIsNotToldHasTheEngineAsked(t *testing.T) {
	for _, c := range []struct {
		name string
		odd  bool
		down bool
		end  Compared
	}{{"the same tokens", false, false, CompareEqual}, {"others", true, false, CompareDiffers}, {"no answer", false, true, CompareUnknown}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSampling(t)
				defer s.Close()
				s.holds = func([]kvindex.LocalHash) bool { return false }
				s.engine.down = c.down
				s.engine.odd = func(body []byte) bool { return c.odd && strings.Contains(string(body), "more than") }
				p := s.prompt("some text of more than one block")
				p.Claim.Served(theRank, worker.Endpoint{})
				<-time.After(2 * toldWithin)
				synctest.Wait()
				require.Equal(t, []Compared{c.end}, s.ends)
				_, ok := s.Fast(filesQuery(t, openai.Completions, `{"model":"m","prompt":"a later one"}`), new(Scratch))
				require.Equal(t, !c.odd, ok, "they are out of use if they differ")
				if c.odd {
					require.Len(t, *s.told, 3)
					require.Contains(t, (*s.told)[2].Why, "a request: the engine has ")
				}
			})
		})
	}
}

// TestFewPromptsAreSampled: one in ten seconds, none that is long or has no block, and none
// is kept whose place the next has.
func TestFewPromptsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		defer s.Close()
		s.holds = func([]kvindex.LocalHash) bool { return true }
		for range 100 {
			p := s.prompt("some text of more than one block")
			p.Claim.Served(theRank, worker.Endpoint{})
		}
		synctest.Wait()
		require.Len(t, s.ends, 1)

		<-time.After(sampleEvery)
		for _, text := range []string{strings.Repeat("long ", sampleBytes/5), "ab"} {
			p := s.prompt(text)
			require.Zero(t, p.Claim.sample)
		}
		never := s.prompt("this one is not served")
		<-time.After(sampleEvery)
		p := s.prompt("and this one is")
		never.Claim.Served(theRank, worker.Endpoint{})
		synctest.Wait()
		require.Len(t, s.ends, 1, "it is not kept")
		p.Claim.Served(theRank, worker.Endpoint{})
		synctest.Wait()
		require.Equal(t, []Compared{CompareTold, CompareTold}, s.ends)
		require.Nil(t, s.filesOf("m").sample, "nothing is kept of it")
	})
}

// TestCloseEndsAComparison that waits for events.
func TestCloseEndsAComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampling(t)
		s.holds = func([]kvindex.LocalHash) bool { return false }
		p := s.prompt("some text of more than one block")
		p.Claim.Served(theRank, worker.Endpoint{})
		synctest.Wait()
		s.Close()
		require.Equal(t, []Compared{CompareUnknown}, s.ends)
		p.Claim.Served(theRank, worker.Endpoint{})
	})
}
