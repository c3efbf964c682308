package replicas

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Message is what one replica tells the others.
type Message struct {
	load.Told
	// Routed are prompts that were sent to ranks which tell of no KV events, since the message before.
	Routed []Routed
	// Aside are the ranks that the replica has set aside by what it has seen itself; nil: as before.
	Aside []worker.Rank
	// Learned is what the replica has learned of how long ranks take, as internal/extproc writes it; nil: as
	// before.
	Learned json.RawMessage
}

// Routed is a prompt that was sent to a rank, by the hashes of its blocks.
type Routed struct {
	Rank  worker.Rank
	Chain []kvindex.LocalHash
}

// Bounds of a message. What is over them is left out by who tells, and refused by who hears.
const (
	MostRanks   = 1 << 16 // with something booked
	MostRouted  = 1 << 15 // blocks of all prompts together
	MostChain   = 1 << 12 // blocks of one prompt, from its beginning
	MostAside   = 1 << 12
	mostTokens  = 1 << 40
	mostLasting = 24 * time.Hour
	// MostMates replicas have less than 1<<31 of them.
	mostRequests = 1 << 20
	mostVersion  = 1 << 62
)

// wire is a Message as JSON. Ids are texts, since JSON's numbers have 53 bits.
type wire struct {
	Life    uint64          `json:"life,string"`
	Version uint64          `json:"version"`
	Whole   bool            `json:"whole,omitempty"`
	Sum     uint64          `json:"sum,string"`
	Ranks   []wireRank      `json:"ranks,omitempty"`
	Routed  []wireRouted    `json:"routed,omitempty"`
	Aside   []wireID        `json:"aside,omitzero"` // [] is not nil
	Learned json.RawMessage `json:"learned,omitempty"`
}

type wireID struct {
	ID uint64 `json:"id,string"`
	DP uint32 `json:"dp,omitempty"`
}

type wireRank struct {
	wireID
	Load  [7]int64   `json:"load"`            // prompt tokens, their blocks, prefill legs, blocks and legs of answers, prompts behind the queue, answers that have not begun
	Queue [][4]int64 `json:"queue,omitempty"` // number, tokens left, age in ms, of it computed in ms
}

type wireRouted struct {
	wireID
	Chain []byte `json:"chain"` // 8 bytes a block
}

func idOf(r worker.Rank) wireID { return wireID{uint64(r.ID), uint32(r.DPRank)} }

func (i wireID) rank() worker.Rank {
	return worker.Rank{ID: worker.ID(i.ID), DPRank: worker.DPRank(i.DP)}
}

// Encode returns the message as bytes. It leaves out what is over the bounds.
func (m *Message) Encode() ([]byte, error) {
	w := wire{Life: m.Life, Version: m.Version, Whole: m.Whole, Sum: m.Sum, Learned: m.Learned}
	for i := range m.Ranks[:min(len(m.Ranks), MostRanks)] {
		b := &m.Ranks[i]
		r := wireRank{wireID: idOf(b.Rank), Load: [7]int64{
			b.PrefillTokens, b.PrefillBlocks, int64(b.PrefillRequests), b.DecodeBlocks, int64(b.DecodeRequests), int64(b.Behind), int64(b.Waiting),
		}}
		for _, q := range b.Queue {
			r.Queue = append(r.Queue, [4]int64{int64(q.ID), q.Tokens, q.Age.Milliseconds(), q.Had.Milliseconds()}) //nolint:gosec // counted from 1
		}
		w.Ranks = append(w.Ranks, r)
	}
	for _, r := range m.Routed {
		x := wireRouted{wireID: idOf(r.Rank)}
		for _, h := range r.Chain {
			x.Chain = binary.LittleEndian.AppendUint64(x.Chain, uint64(h))
		}
		w.Routed = append(w.Routed, x)
	}
	if m.Aside != nil {
		w.Aside = make([]wireID, 0, len(m.Aside))
		for _, r := range m.Aside[:min(len(m.Aside), MostAside)] {
			w.Aside = append(w.Aside, idOf(r))
		}
	}
	return json.Marshal(&w)
}

// Decode reads what Encode has written. An error says what is wrong with it.
func Decode(b []byte) (*Message, error) {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("replicas: %w", err)
	}
	switch {
	case w.Life == 0 || w.Version == 0 || w.Version > mostVersion:
		return nil, errors.New("replicas: expected a life and a version above 0, and no version that large")
	case len(w.Ranks) > MostRanks:
		return nil, fmt.Errorf("replicas: %d ranks: expected %d at most", len(w.Ranks), MostRanks)
	case len(w.Aside) > MostAside:
		return nil, fmt.Errorf("replicas: %d ranks are aside: expected %d at most", len(w.Aside), MostAside)
	}
	m := &Message{Told: load.Told{Life: w.Life, Version: w.Version, Whole: w.Whole, Sum: w.Sum}, Learned: w.Learned}
	for i := range w.Ranks {
		x, err := w.Ranks[i].booked()
		if err != nil {
			return nil, err
		}
		m.Ranks = append(m.Ranks, x)
	}
	blocks := 0
	for _, x := range w.Routed {
		n := len(x.Chain) / 8
		blocks += n
		if len(x.Chain)%8 != 0 || n > MostChain || blocks > MostRouted {
			return nil, fmt.Errorf("replicas: rank %s: a routed prompt of %d bytes: expected whole blocks of 8, %d at most, and %d of all prompts", x.rank(), len(x.Chain), MostChain, MostRouted)
		}
		r := Routed{Rank: x.rank(), Chain: make([]kvindex.LocalHash, 0, n)}
		for i := range n {
			r.Chain = append(r.Chain, kvindex.LocalHash(binary.LittleEndian.Uint64(x.Chain[8*i:])))
		}
		m.Routed = append(m.Routed, r)
	}
	if w.Aside != nil {
		m.Aside = make([]worker.Rank, 0, len(w.Aside))
		for _, id := range w.Aside {
			m.Aside = append(m.Aside, id.rank())
		}
	}
	return m, nil
}

func (r *wireRank) booked() (b load.Booked, err error) {
	l := &r.Load
	for i, n := range l {
		if n < 0 || n > mostTokens || i != 0 && i != 1 && i != 3 && n > mostRequests {
			return b, fmt.Errorf("replicas: rank %s: load %v: expected no number below 0 or that large", r.rank(), *l)
		}
	}
	b = load.Booked{Rank: r.rank(), Load: load.Load{
		PrefillTokens: l[0], PrefillBlocks: l[1], PrefillRequests: int32(l[2]), DecodeBlocks: l[3], DecodeRequests: int32(l[4]), //nolint:gosec // checked above
	}, Behind: int32(l[5]), Waiting: int32(l[6])} //nolint:gosec // checked above
	if len(r.Queue) > load.MostQueued {
		return b, fmt.Errorf("replicas: rank %s: %d prompts: expected %d at most", r.rank(), len(r.Queue), load.MostQueued)
	}
	left := b.PrefillTokens
	for _, q := range r.Queue {
		x := load.Queued{ID: uint64(q[0]), Tokens: q[1], Age: time.Duration(q[2]) * time.Millisecond, Had: time.Duration(q[3]) * time.Millisecond} //nolint:gosec // only compared
		left -= x.Tokens
		if x.Tokens <= 0 || left < 0 || q[2] < 0 || q[2] > mostLasting.Milliseconds() || q[3] < 0 || q[3] > q[2] {
			return b, fmt.Errorf("replicas: rank %s: prompts %v of %d tokens: expected tokens above 0, not more than those, an age of at most a day and no more computed than that", r.rank(), r.Queue, b.PrefillTokens)
		}
		b.Queue = append(b.Queue, x)
	}
	return b, nil
}
