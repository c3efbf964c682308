package chat_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
)

// longConversation is about 400 KB of JSON in so many messages, and one turn more of 300
// bytes.
func longConversation(messages int) (before, after []byte) {
	g := newGenerator(7)
	size := 400_000 / messages
	var list []pairs
	for i := range messages - 1 {
		var b strings.Builder
		for b.Len() < size*9/10 {
			fmt.Fprintf(&b, "\tif err := step(%d, %q); err != nil {\n\t\treturn err\n\t}\n", g.IntN(1000), "näme")
		}
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		list = append(list, pairs{{"role", role}, {"content", b.String()}})
	}
	before = encode(list)
	list = append(list,
		pairs{{"role", "assistant"}, {"content", strings.Repeat("ok ", 40)}},
		pairs{{"role", "user"}, {"content", strings.Repeat("go on ", 20)}})
	return before, encode(list)
}

// stopwatch notes how long each round takes, for the percentiles.
type stopwatch struct {
	began time.Time
	took  []time.Duration
}

func (s *stopwatch) start() { s.began = time.Now() }

func (s *stopwatch) stop() { s.took = append(s.took, time.Since(s.began)) }

func (s *stopwatch) report(b *testing.B) {
	slices.Sort(s.took)
	if len(s.took) > 0 {
		b.ReportMetric(float64(s.took[len(s.took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(s.took[len(s.took)*99/100].Microseconds()), "p99-µs")
	}
}

// BenchmarkNextTurn is what the next turn of a conversation of 400 KB costs, from the raw
// messages to the pieces: with what is remembered, and the template run whole.
func BenchmarkNextTurn(b *testing.B) {
	for _, family := range families {
		tpl := loadFamily(b, family)
		for _, messages := range []int{100, 400, 1600} {
			before, after := longConversation(messages)
			add := true
			q := func(raw []byte, plain bool) *chat.Request {
				return &chat.Request{Messages: raw, AddGenerationPrompt: &add, Plain: plain}
			}
			name := fmt.Sprintf("%s/messages=%d", family, messages)
			b.Run(name+"/remembered", func(b *testing.B) {
				b.ReportAllocs()
				store := chat.NewStore(64 << 20)
				_, err := tpl.Render(vllm, q(before, false), store)
				require.NoError(b, err)
				turns := make([][]byte, 64)
				for i := range turns {
					turns[i] = bytes.Replace(after, []byte("go on"), fmt.Appendf(nil, "go %d", i), 1)
				}
				i := 0
				var times stopwatch
				for b.Loop() {
					// Each turn is a new one: a store that has seen it would have nothing to do.
					turn := turns[i%len(turns)]
					if i >= len(turns) {
						b.StopTimer()
						turn = bytes.Replace(after, []byte("go on"), fmt.Appendf(nil, "go %d", i), 1)
						b.StartTimer()
					}
					i++
					times.start()
					_, err := tpl.Render(vllm, q(turn, false), store)
					times.stop()
					if err != nil {
						b.Fatal(err)
					}
				}
				times.report(b)
			})
			b.Run(name+"/whole", func(b *testing.B) {
				b.ReportAllocs()
				store := chat.NewStore(64 << 20)
				var times stopwatch
				for b.Loop() {
					times.start()
					_, err := tpl.Render(vllm, q(after, true), store)
					times.stop()
					if err != nil {
						b.Fatal(err)
					}
				}
				times.report(b)
			})
			b.Run(name+"/first", func(b *testing.B) {
				b.ReportAllocs()
				var times stopwatch
				for b.Loop() {
					times.start()
					_, err := tpl.Render(vllm, q(after, true), nil)
					times.stop()
					if err != nil {
						b.Fatal(err)
					}
				}
				times.report(b)
			})
		}
	}
}
