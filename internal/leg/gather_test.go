package leg

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// held returns the memory of a body that is not whole, in bytes.
func (g *gather) held() int {
	n := cap(g.whole)
	for _, part := range g.parts {
		n += cap(part)
	}
	return n
}

// piecesOf cuts a body as Envoy does, into buffers of the pool.
func piecesOf(p *wire.Pool, body []byte, size int) (out [][]byte) {
	for len(body) > 0 {
		n := min(size, len(body))
		out = append(out, append(p.Borrow(n+injectRoom), body[:n]...))
		body = body[n:]
	}
	return out
}

// allocated counts the bytes that f allocates. No garbage collection runs meanwhile,
// since one would empty the pool.
func allocated(f func()) int {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// TestALargeBodyIsHeldOnce feeds both legs' machines a body of 10 MB in pieces.
func TestALargeBodyIsHeldOnce(t *testing.T) { //nolint:paralleltest // counts what is allocated
	const size = 10_000_000
	whole := append([]byte(`{"model":"m","prompt":"`), bytes.Repeat([]byte("w"), size-25)...)
	whole = append(whole, `"}`...)
	for _, sized := range []bool{true, false} {
		for _, piece := range []int{16 << 10, 1 << 20} {
			length := ""
			if sized {
				length = fmt.Sprint(size)
			}
			head := &Event{
				Kind: EventRequestHeaders, FullDuplex: true,
				Headers: &wire.Headers{Method: "POST", Path: "/v1/completions", Length: wire.LengthOf(length), RequestID: "r"},
			}
			check := func(name string, leg func(*Event) *gather, body func() []byte) {
				t.Run(fmt.Sprintf("%s, sized %t, pieces of %d", name, sized, piece), func(t *testing.T) { //nolint:paralleltest // see above
					leg(head)
					came := 0
					pieces := piecesOf(new(wire.Pool), whole, piece)
					most := 0
					n := allocated(func() {
						for i, p := range pieces {
							came += len(p)
							g := leg(&Event{Kind: EventRequestBody, Body: p, EndOfStream: i == len(pieces)-1})
							if most = max(most, g.held()); !sized && i < len(pieces)-1 {
								require.LessOrEqual(t, g.held(), came*11/10+largestPart, "as bytes come")
							}
						}
					})
					require.LessOrEqual(t, most, size*11/10, "while it comes")
					require.LessOrEqual(t, cap(body()), size*11/10, "when it is whole")
					if sized {
						require.LessOrEqual(t, n, size*11/10, "allocated")
					} else {
						require.LessOrEqual(t, n, size*22/10, "allocated: the parts, and what they are joined to")
					}
				})
			}
			m := mainOf(testRules(), Way{})
			m.rules.MaxBodyBytes = 64 << 20
			check("main leg", func(ev *Event) *gather { m.Step(testStart, ev); return &m.req.pieces }, func() []byte {
				require.Equal(t, mainResolving, m.phase)
				require.True(t, bytes.Equal(whole, m.req.Body))
				return m.req.Body
			})
			l := &Prefill{rules: m.rules}
			check("prefill leg", func(ev *Event) *gather {
				if ev.EndOfStream {
					l.pieces.add(m.rules.Buffers, ev.Body) // not by Step, which would edit the whole body into another one
					return &l.pieces
				}
				l.Step(testStart, ev, &Ticket{HandOff: sglang.HandOff.Together, Leg: prefill.Leg{Deadline: testStart.Add(time.Minute)}})
				return &l.pieces
			}, func() []byte { return l.pieces.take(m.rules.Buffers) })
		}
	}
}

// TestWhatIsAnnouncedTakesNoMemory: an announced size takes no memory; it only spares
// copies.
func TestWhatIsAnnouncedTakesNoMemory(t *testing.T) {
	t.Parallel()
	p := new(wire.Pool)
	g := gather{announced: 64 << 20}
	for i := range 50 {
		g.add(p, append(p.Borrow(1000), bytes.Repeat([]byte{byte(i)}, 1000)...))
		require.LessOrEqual(t, g.held(), 2*smallestPart)
	}
	require.Len(t, g.take(p), 50_000, "less than was announced is there all the same")

	g = gather{announced: 3_000_000}
	for range 40 {
		g.add(p, append(p.Borrow(100_000), bytes.Repeat([]byte("x"), 100_000)...))
	}
	require.LessOrEqual(t, g.held(), 5_000_000)
	require.True(t, bytes.Equal(bytes.Repeat([]byte("x"), 4_000_000), g.take(p)), "so is more")
	require.Zero(t, wire.LengthOf("67108865").Within(64<<20))
	require.Equal(t, 64<<20, wire.LengthOf("67108864").Within(64<<20))
	for _, s := range []string{"", "-1", "1e3", "9223372036854775808"} {
		require.Equal(t, wire.Length{}, wire.LengthOf(s), s)
	}
}
