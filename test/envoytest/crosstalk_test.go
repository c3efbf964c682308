//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestRequestsAtOnceNeverSeeEachOther: bodies go through shared buffers. Many
// clients send prompts of all sizes, some leave in the middle, some prefills
// fail, and every answer must be the answer to its own prompt.
func TestRequestsAtOnceNeverSeeEachOther(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := layout{
		prefill: 2, decode: 2, config: "tokens: {wait: 5ms}\nprefill: {orphan_grace: 500ms, " + inLoad + "}\n",
		prefillArgs: []string{"--prefill-us-per-token", "5"},
	}
	both(t, l, func(t *testing.T, f *fleet) {
		f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Status: 500, Count: 2})
		const clients, each = 16, 12
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(c)))
				for i := range each {
					f.oneOfMany(t, r, fmt.Sprintf("client %d request %d ", c, i))
				}
			})
		}
		wg.Wait()
	})
}

func (f *fleet) oneOfMany(t *testing.T, r *rand.Rand, name string) {
	sizes := []int{10, 300, 5_000, 70_000, 250_000}
	word := string(rune('a' + r.IntN(26)))
	prompt := name + strings.Repeat(word+" ", sizes[r.IntN(len(sizes))]/2)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if r.IntN(8) == 0 { // leaves, at any moment
		short, stop := context.WithTimeout(ctx, time.Duration(r.IntN(30))*time.Millisecond)
		defer stop()
		f.send(short, "/v1/completions", completion(prompt, 50, true))
		return
	}
	reply := f.send(ctx, "/v1/completions", completion(prompt, 3, r.IntN(2) == 0))
	if reply.err != nil || reply.status != http.StatusOK {
		t.Errorf("%s (%d bytes): %d %v %.200s", name, len(prompt), reply.status, reply.err, reply.body)
		return
	}
	want := strings.TrimSpace(enginesim.Answer(enginesim.Tokenize(prompt), 3))
	if got := strings.TrimSpace(reply.text()); got != want {
		t.Errorf("%s got another's answer: %q, expected %q", name, got, want)
	}
}
