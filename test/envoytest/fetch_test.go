//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// tokensOf is a completion of two tokens with the prompt's own, so that nobody is asked
// for them.
func tokensOf(prompt string) string {
	ids, _ := json.Marshal(enginesim.Tokenize(prompt))
	return fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":2}`, ids)
}

// fetched is how many blocks the decode workers have pulled from prefill.
func (f *fleet) fetched() (blocks uint64) {
	f.t.Helper()
	for _, w := range f.decode {
		if s, ok := f.state(w); ok {
			blocks += s.Handoff.PulledBlocks
		}
	}
	return blocks
}

// known waits until the index has so many blocks of the decode workers' as they hold.
func (f *fleet) known() {
	f.t.Helper()
	for _, w := range f.decode {
		f.await("the index to know what "+w.Name+" holds", func() bool {
			s, ok := f.state(w)
			n, _ := f.gauge("baton_worker_index_blocks", fmt.Sprintf(`worker_id="%s"`, w.Info.ID))
			return ok && float64(s.Ranks[0].CachedBlocks) == n
		})
	}
}

// TestAConversationIsDecodedWhereItsBlocksAre: vLLM's decode pulls what it lacks, so
// the turns of a conversation go to the decode worker that has the turns before, and
// what they have in common is moved once. With a fetch cost of 0 they go anywhere.
func TestAConversationIsDecodedWhereItsBlocksAre(t *testing.T) {
	t.Parallel()
	const chats, turns = 12, 8
	moved := map[string]uint64{}
	var mu sync.Mutex
	t.Run("each", func(t *testing.T) {
		for name, config := range map[string]string{"as it is": "", "without": "routing: {decode: {cost: blocks, fetch_cost: 0}}\n"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, layout{
					prefill: 1, decode: 4, simArgs: []string{"--engine", "vllm"}, config: config, fullDuplex: true,
				})
				var said [chats]string
				for turn := range turns {
					for c := range chats {
						said[c] += strings.Repeat(fmt.Sprintf("what %d says in turn %d ", c, turn), 30)
						requireAnswer(t, f.send(t.Context(), "/v1/completions", tokensOf(said[c])), said[c], 2)
						f.known() // else the next turn is a race
					}
				}
				mu.Lock()
				defer mu.Unlock()
				moved[name] = f.fetched()
			})
		}
	})
	if t.Failed() {
		return
	}
	t.Logf("blocks moved: %v", moved)
	require.Less(t, moved["as it is"], moved["without"]*9/10)
}

// TestOfFiveDecodeWorkersNoneIsLeftWithoutWork: 256 requests of one turn that begin
// alike, one at a time and many at a time. Whoever has pulled the beginning first must
// not get all of them.
func TestOfFiveDecodeWorkersNoneIsLeftWithoutWork(t *testing.T) {
	t.Parallel()
	const requests = 256
	for _, atATime := range []int{1, 16} {
		t.Run(fmt.Sprintf("%d at a time", atATime), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, layout{prefill: 1, decode: 5, simArgs: []string{"--engine", "vllm"}, fullDuplex: true})
			beginning := strings.Repeat("you are of help to whoever asks ", 100)
			next := make(chan int)
			var wg sync.WaitGroup
			replies := make([]*reply, requests)
			for range atATime {
				wg.Go(func() {
					for i := range next {
						replies[i] = f.send(t.Context(), "/v1/completions", tokensOf(fmt.Sprintf("%s question %d", beginning, i)))
					}
				})
			}
			for i := range requests {
				next <- i
			}
			close(next)
			wg.Wait()
			for i, r := range replies {
				requireAnswer(t, r, fmt.Sprintf("%s question %d", beginning, i), 2)
			}
			served := map[string]int{}
			for _, w := range f.decode {
				s, ok := f.state(w)
				require.True(t, ok)
				served[w.Name] = int(s.OK)
			}
			for name, n := range served {
				require.GreaterOrEqual(t, 2*len(f.decode)*n, requests, "%s: %v", name, served)
			}
			t.Logf("served: %v, blocks moved: %d", served, f.fetched())
		})
	}
}
