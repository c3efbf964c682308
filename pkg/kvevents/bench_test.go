package kvevents

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
)

// blockEvents appends events as of an engine with blocks of 64 tokens: stores of one
// block each, in chains of 32. Once the engine holds 20,000 blocks, each store comes with
// the removal of the oldest block.
type blockEvents struct {
	n uint64
}

func (g *blockEvents) append(b []byte) []byte {
	const held, chain, size = 20_000, 32, 64
	n := g.n
	g.n++
	hash := func(n uint64) int64 { return int64(n*0x9e3779b97f4a7c15 + 1) }
	if n%2 == 1 && n > 2*held {
		b = append(b, "\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91"...)
		return append(appendInt64(b, hash((n-1)/2-held)), "\xa6medium\xa3GPU"...)
	}
	if n > 2*held {
		n /= 2
	}
	b = append(b, "\x87\xa4type\xabBlockStored\xacblock_hashes\x91"...)
	b = append(appendInt64(b, hash(n)), "\xb1parent_block_hash"...)
	if n%chain == 0 {
		b = append(b, 0xc0)
	} else {
		b = appendInt64(b, hash(n-1))
	}
	b = append(b, "\xa9token_ids\xdc\x00\x40"...)
	for i := range uint64(size) {
		b = append(b, 0xcd, byte(n>>8+i), byte(n))
	}
	return append(b, "\xaablock_size\x40\xa7lora_id\xc0\xa6medium\xa3GPU"...)
}

func (g *blockEvents) message(events int) []byte {
	b := []byte{0x93, 0xca, 0, 0, 0, 0, 0xdc, byte(events >> 8), byte(events)}
	for range events {
		b = g.append(b)
	}
	return append(b, 0)
}

// BenchmarkApply decodes events of one block of 64 tokens and gives them to the plain
// map. The map takes most of the time; BenchmarkDecode only decodes.
func BenchmarkApply(b *testing.B) { benchmarkEvents(b, true) }

// BenchmarkDecode decodes events of one block of 64 tokens.
func BenchmarkDecode(b *testing.B) { benchmarkEvents(b, false) }

func benchmarkEvents(b *testing.B, apply bool) {
	for _, per := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d events a message", per), func(b *testing.B) {
			var g blockEvents
			var messages [][]byte
			for g.n < 100_000 {
				messages = append(messages, g.message(per))
			}
			index := newTree(b)
			cfg := Config{Index: index}.withDefaults()
			s := newStream(&cfg, one, source{addr: "x", blockSize: 64})
			index.Attach(one)
			b.ReportAllocs()
			i, events := 0, 0
			for b.Loop() {
				if i == len(messages) {
					i = 0
					b.StopTimer()
					_ = index.Clear(one)
					b.StartTimer()
				}
				if apply {
					s.apply(message{payload: messages[i]})
				} else {
					_, _ = s.decoder.Decode(messages[i])
				}
				i++
				events += per
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
			require.Empty(b, s.snapshot().Refused.Map())
		})
	}
}

// BenchmarkApplyPlane is BenchmarkApply for Dynamo's event plane.
func BenchmarkApplyPlane(b *testing.B) {
	index := newTree(b)
	cfg := Config{Index: index, Channels: []Channel{newHand()}}.withDefaults()
	p := newPlane(&cfg)
	index.Attach(one)
	p.add(one, newPlaneRank(&cfg, one))
	var messages [][]byte
	for n := range uint64(20_000) {
		var parent any
		if n%32 > 0 {
			parent = n - 1
		}
		messages = append(messages, envelope(b, 1, n, "kv-events", routed(n, planeStored(parent, n), nil)))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i == len(messages) {
			i = 0
			b.StopTimer()
			p.remove(one)
			_ = index.Clear(one)
			p.add(one, newPlaneRank(&cfg, one))
			b.StartTimer()
		}
		p.intakes[0].Envelope(messages[i])
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkReceive reads messages of one event each over a real socket, once with our
// reader and once with the library that docs/decisions/0007 compares it with.
func BenchmarkReceive(b *testing.B) {
	var g blockEvents
	frames := appendFrame(appendFrame(appendFrame(nil, flagMore, nil), flagMore, be64(1)), 0, g.message(1))
	var wire []byte
	for len(wire) < 64<<10 {
		wire = append(wire, frames...)
	}
	publish := func(b *testing.B) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		go func() {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			p := newPeer(nc)
			if p.greet(0, "PUB") != nil {
				return
			}
			if _, _, err := p.read(); err != nil {
				return
			}
			for p.write(wire) == nil {
			}
		}()
		b.Cleanup(func() { _ = l.Close() })
		return l
	}
	b.Run("ours", func(b *testing.B) {
		c, err := dialZMQ(b.Context(), (&net.Dialer{}).DialContext, publish(b).Addr().String(), typeSub, connConfig{maxBytes: 1 << 20, timeout: 5e9})
		require.NoError(b, err)
		defer c.close()
		require.NoError(b, c.subscribe(""))
		b.ReportAllocs()
		var got [][]byte
		for b.Loop() {
			if got, err = c.receive(got); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("zmq4", func(b *testing.B) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		sub := zmq4.NewSub(ctx)
		defer sub.Close()
		require.NoError(b, sub.Dial("tcp://"+publish(b).Addr().String()))
		require.NoError(b, sub.SetOption(zmq4.OptionSubscribe, ""))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := sub.Recv(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
