package enginesim

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log" //nolint:depguard // zmq4 takes no other
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// wireEvent is an event as a subscriber decodes it.
type wireEvent struct {
	Type   string   `msgpack:"type"`
	Hashes []int64  `msgpack:"block_hashes"`
	Parent *int64   `msgpack:"parent_block_hash"`
	Tokens []uint32 `msgpack:"token_ids"`
	Size   int      `msgpack:"block_size"`
	Medium string   `msgpack:"medium"`
}

type wireBatch struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // read by the decoder
	TS       float64
	Events   []wireEvent
	Rank     *int
}

// mirror is a cache that is rebuilt from events only.
type mirror struct {
	next   uint64
	blocks map[int64]CachedBlock
}

func (m *mirror) apply(t testing.TB, seq uint64, payload []byte) {
	t.Helper()
	require.Equal(t, m.next, seq, "no gap")
	m.next++
	var b wireBatch
	require.NoError(t, msgpack.Unmarshal(payload, &b))
	for _, e := range b.Events {
		switch e.Type {
		case "BlockStored":
			require.Len(t, e.Tokens, e.Size*len(e.Hashes))
			parent := e.Parent
			for i, h := range e.Hashes {
				if parent != nil {
					require.Contains(t, m.blocks, *parent, "the parent is there first")
				}
				require.NotContains(t, m.blocks, h)
				m.blocks[h] = CachedBlock{Hash: h, Parent: parent, Tokens: e.Tokens[i*e.Size : (i+1)*e.Size]}
				parent = &h
			}
		case "BlockRemoved":
			for _, h := range e.Hashes {
				require.Contains(t, m.blocks, h)
				delete(m.blocks, h)
			}
			for _, b := range m.blocks {
				require.False(t, b.Parent != nil && slices.Contains(e.Hashes, *b.Parent), "leaves go first")
			}
		case "AllBlocksCleared":
			clear(m.blocks)
		default:
			require.Fail(t, "unknown event", e.Type)
		}
	}
}

func (m *mirror) requireEqual(t testing.TB, rs core.RankState) {
	t.Helper()
	require.Equal(t, rs.EventSeq, m.next)
	require.Len(t, m.blocks, len(rs.Blocks))
	for _, b := range rs.Blocks {
		require.Equal(t, b, m.blocks[b.Hash])
	}
}

// subscribe returns the messages of one rank. The client is zmq4, so that our server is
// tested with another library.
func subscribe(t testing.TB, s *Sim, rank int, topic string) <-chan [][]byte {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	sub := zmq4.NewSub(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	pub, _ := s.EventsAddr(rank)
	require.NoError(t, sub.Dial("tcp://"+pub))
	require.NoError(t, sub.SetOption(zmq4.OptionSubscribe, topic))
	out := make(chan [][]byte, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := sub.Recv()
			if err != nil {
				return
			}
			out <- m.Frames
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = sub.Close()
		<-done
	})
	Eventually(t, s.Ranks[rank].Subscribed, "the subscription is in")
	return out
}

func receive(t testing.TB, c <-chan [][]byte) [][]byte {
	t.Helper()
	select {
	case f := <-c:
		return f
	case <-time.After(10 * time.Second):
		require.Fail(t, "no message")
		return nil
	}
}

func TestReplayingTheEventsGivesTheCache(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, PageSize: 4, CapacityBlocks: 40, DPSize: 2, Topic: "kv@sim"})
	rnd := rand.New(rand.NewPCG(1, 2))
	subs := []<-chan [][]byte{subscribe(t, s, 0, ""), subscribe(t, s, 1, "kv@")}
	const began = 1 // the message before the subscription, which says that the cache is empty
	mirrors := []*mirror{{next: began, blocks: map[int64]CachedBlock{}}, {next: began, blocks: map[int64]CachedBlock{}}}
	var prompt string
	for i := range 190 {
		switch {
		case i%50 == 49:
			require.Equal(t, 200, post(t.Context(), s.URL()+"/flush_cache", "").status)
			continue
		case i%5 == 0:
			prompt = fmt.Sprintf("topic %d", rnd.IntN(4))
		default:
			for range rnd.IntN(12) {
				prompt += fmt.Sprintf(" w%d", rnd.IntN(3))
			}
		}
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d}`, prompt, 1+rnd.IntN(9))
		require.Equal(t, 200, post(t.Context(), s.URL()+completions, body).status)
	}
	st := s.State(true)
	for rank, m := range mirrors {
		for m.next < st.Ranks[rank].EventSeq {
			f := receive(t, subs[rank])
			require.Len(t, f, 3)
			require.Equal(t, "kv@sim", string(f[0]))
			m.apply(t, binary.BigEndian.Uint64(f[1]), f[2])
		}
		require.NotEmpty(t, st.Ranks[rank].Blocks)
		m.requireEqual(t, st.Ranks[rank])
	}
}

func TestDisaggregatedWorkersPublishWhatTheyCache(t *testing.T) {
	p, d := pair(t, Config{PageSize: 2})
	_, dec := both(t, p, d, 1, "a b c d", `,"max_tokens":5`)
	require.Equal(t, 200, dec.status)
	require.Equal(t, 2, p.State(false).Ranks[0].CachedBlocks, "prefill has the prompt")
	require.Equal(t, 4, d.State(false).Ranks[0].CachedBlocks, "decode has prompt and answer, but for the last token")
	const began = 1 // the message that says that the cache is empty
	require.Equal(t, uint64(began+1), p.State(false).Ranks[0].EventSeq)
	require.Equal(t, uint64(began+2), d.State(false).Ranks[0].EventSeq)

	_, quiet := pair(t, Config{PageSize: 2, NoDecodeEvents: true})
	require.NotNil(t, quiet.Identity().KVEvents)
	require.Equal(t, uint64(began), quiet.State(false).Ranks[0].EventSeq)
}

// replay asks for all messages from seq on and returns those before the end mark.
func replay(t testing.TB, s *Sim, rank int, seq uint64) [][][]byte {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d := zmq4.NewDealer(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer d.Close() //nolint:errcheck // a client's end
	_, addr := s.EventsAddr(rank)
	require.NoError(t, d.Dial("tcp://"+addr))
	require.NoError(t, d.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, seq))))
	var out [][][]byte
	for {
		m, err := d.Recv()
		require.NoError(t, err)
		require.Len(t, m.Frames, 4)
		require.Empty(t, m.Frames[0])
		if binary.BigEndian.Uint64(m.Frames[2]) == ^uint64(0) {
			require.Empty(t, m.Frames[1])
			require.Empty(t, m.Frames[3])
			return out
		}
		out = append(out, m.Frames)
	}
}

func TestReplay(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, PageSize: 1, ReplayBuffer: 4, Topic: "t"})
	sub := subscribe(t, s, 0, "")
	ask := func(i int) {
		require.Equal(t, 200, post(t.Context(), s.URL()+completions, fmt.Sprintf(`{"prompt":"p%d","max_tokens":1}`, i)).status)
	}
	require.Len(t, replay(t, s, 0, 0), 1, "that the cache is empty")
	s.DropEvents(0, 2)
	for i := range 3 {
		ask(i)
	}
	require.Equal(t, uint64(3), binary.BigEndian.Uint64(receive(t, sub)[1]), "the first two were dropped")
	for _, tc := range []struct {
		name string
		from uint64
		want []uint64
	}{
		{"all", 0, []uint64{0, 1, 2, 3}},
		{"a tail", 2, []uint64{2, 3}},
		{"nothing new", 4, nil},
		{"the future", 9, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []uint64
			for _, f := range replay(t, s, 0, tc.from) {
				require.Equal(t, "t", string(f[1]))
				got = append(got, binary.BigEndian.Uint64(f[2]))
			}
			require.Equal(t, tc.want, got)
		})
	}
	for i := range 3 {
		ask(10 + i)
	}
	got := replay(t, s, 0, 0)
	require.Len(t, got, 4, "only what the buffer holds")
	require.Equal(t, uint64(3), binary.BigEndian.Uint64(got[0][2]))
	f := receive(t, sub)
	require.Equal(t, f[2], got[1][3], "the payload is the one that was published")
}
