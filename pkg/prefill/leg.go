package prefill

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Leg is what the prefill leg must know of the decision, and to which replica it
// reports. Other legs have one as well: see LegKind.
type Leg struct {
	Kind     LegKind
	Owner    string      // the replica that booked the attempt: an opaque name of at most 255 bytes
	Nonce    uint64      // names the attempt; unique at its owner
	Prefill  worker.Rank // the prefill rank; of a CollectLeg and an AnswerLeg the decode rank
	Room     Room
	Deadline time.Time // millisecond resolution
}

// LegKind says what a leg is for, and so at which listener it is accepted.
type LegKind uint8

// The kinds.
const (
	MirrorLeg  LegKind = iota // Envoy's copy of the main leg
	SyncLeg                   // a prefill that the plugin asks for itself
	CollectLeg                // a decode request that collects held KV which no other decode takes
	AnswerLeg                 // decode's answer, whose first events the plugin reads
	numLegKinds
)

// The errors of Open. With either of them the leg reaches no worker.
var (
	ErrLegMissing = errors.New("prefill: leg token missing")
	ErrLegInvalid = errors.New("prefill: leg token invalid")
)

const (
	legVersion = 2
	legFixed   = 1 + 1 + 8 + 8 + 4 + 8 + 8 + 1 // bytes up to and including the owner's length
	legMAC     = 16
	legMaxText = 512
)

// Sealer seals and opens leg tokens with one key. Safe for concurrent use.
type Sealer struct {
	macs sync.Pool // of hash.Hash, keyed
}

// NewSealer returns a Sealer for the key, which must have at least 16 bytes. All
// replicas behind one Envoy need the same key.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) < 16 {
		return nil, fmt.Errorf("prefill: leg key has %d bytes: expected at least 16", len(key))
	}
	k := append([]byte(nil), key...)
	return &Sealer{macs: sync.Pool{New: func() any { return hmac.New(sha256.New, k) }}}, nil
}

func (s *Sealer) mac(dst, msg []byte) []byte {
	h := s.macs.Get().(hash.Hash)
	defer s.macs.Put(h)
	h.Reset()
	h.Write(msg)
	var sum [sha256.Size]byte
	return append(dst, h.Sum(sum[:0])[:legMAC]...)
}

// Seal returns the token of l for the x-baton-leg header.
func (s *Sealer) Seal(l Leg) (string, error) {
	if len(l.Owner) > math.MaxUint8 {
		return "", fmt.Errorf("prefill: leg owner has %d bytes: expected at most 255", len(l.Owner))
	}
	var buf [legFixed + math.MaxUint8 + legMAC]byte
	b := append(buf[:0], legVersion, byte(l.Kind))
	b = binary.BigEndian.AppendUint64(b, l.Nonce)
	b = binary.BigEndian.AppendUint64(b, uint64(l.Prefill.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(l.Prefill.DPRank))
	b = binary.BigEndian.AppendUint64(b, uint64(l.Room))
	b = binary.BigEndian.AppendUint64(b, uint64(l.Deadline.UnixMilli()))
	b = append(b, byte(len(l.Owner)))
	b = append(b, l.Owner...)
	b = s.mac(b, b)
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// Open verifies a token and returns its Leg. It does not check the deadline. An empty
// token gives ErrLegMissing. Any other token that was not sealed with the key gives
// ErrLegInvalid, without the reason.
func (s *Sealer) Open(token string) (Leg, error) {
	if token == "" {
		return Leg{}, ErrLegMissing
	}
	// The decoder would skip line ends, but a token must have one spelling only.
	if len(token) > legMaxText || strings.ContainsAny(token, "\r\n") {
		return Leg{}, ErrLegInvalid
	}
	var buf [legMaxText]byte
	b, err := base64.RawURLEncoding.Strict().AppendDecode(buf[:0], []byte(token))
	if err != nil || len(b) < legFixed+legMAC || b[0] != legVersion {
		return Leg{}, ErrLegInvalid
	}
	msg := b[:len(b)-legMAC]
	var want [legMAC]byte
	if !hmac.Equal(b[len(msg):], s.mac(want[:0], msg)) || int(msg[legFixed-1]) != len(msg)-legFixed || msg[1] >= byte(numLegKinds) {
		return Leg{}, ErrLegInvalid
	}
	return Leg{
		Kind:  LegKind(msg[1]),
		Nonce: binary.BigEndian.Uint64(msg[2:]),
		Prefill: worker.Rank{
			ID:     worker.ID(binary.BigEndian.Uint64(msg[10:])),
			DPRank: worker.DPRank(binary.BigEndian.Uint32(msg[18:])),
		},
		Room:     Room(binary.BigEndian.Uint64(msg[22:])),
		Deadline: time.UnixMilli(int64(binary.BigEndian.Uint64(msg[30:]))),
		Owner:    string(msg[legFixed:]),
	}, nil
}
