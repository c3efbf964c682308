package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// magic begins each file; its last byte is the version of the format.
const magic = "batonrec\x01"

// The types of frames.
const (
	frameHeader byte = iota + 1
	frameName
	frameFleet
	frameDecision
	frameEnd
	frameSpeeds
)

const (
	mostFrame  = 1 << 20 // bytes of a payload
	mostChain  = 1 << 16 // blocks of a prompt; what follows is left off
	mostNames  = 4096    // in a file; later ones are none
	mostName   = 256     // bytes
	mostRanks  = 1 << 14 // of a fleet
	mostBlocks = 1 << 20 // different ones in a file
)

// Rank is what is known of a rank.
type Rank struct {
	Rank      worker.Rank
	Role      worker.Role
	Engine    string
	Endpoint  string
	Model     string // one of those that it serves
	Domain    string
	BlockSize int
	Capacity  int  // KV blocks; 0: not known
	Told      bool // its KV events are followed
}

// Load is what was booked on a rank when the pick was made.
type Load struct {
	Rank          worker.Rank
	PrefillTokens int64
	DecodeBlocks  int64
	Requests      int64
}

// Pick is one pick. ID 0: none was made.
type Pick struct {
	Rank         worker.Rank
	Mode, Reason string
	Overlap      int // blocks that it was believed to hold
}

// Decision is one decision. Slices are copied by who keeps them.
type Decision struct {
	At          time.Time
	Model       string
	Attempt     int
	Tokens      int    // of the prompt
	Source      string // of the tokens
	BlockTokens int    // of each block of Chain
	Chain       []uint64
	MaxTokens   int64 // of the answer; below 0: not said
	Target      time.Duration
	Bound       bool   // the request, or the data plane, has limited who may be picked
	Refused     string // why nobody was picked
	Prefill     Pick   // not made: one worker serves
	Decode      Pick
	Loads       []Load
}

// End is what became of a decision.
type End struct {
	Number  uint64 // as Decided has returned it
	Outcome string
	First   time.Duration // until the first token; 0: not known
	Whole   time.Duration
	Output  int64 // tokens of the answer; 0: not known
	Cached  int64 // tokens of the prompt; below 0: not told
}

// Speed is how long a rank takes: seconds for each token, or block, and for each request.
type Speed struct {
	Rank                 worker.Rank // ID 0: of hand-offs
	Model                string      // of hand-offs
	PerToken, PerRequest float64
}

// frame appends a frame.
func frame(dst []byte, kind byte, payload []byte) []byte {
	from := len(dst)
	dst = append(dst, kind)
	dst = binary.AppendUvarint(dst, uint64(len(payload)))
	dst = append(dst, payload...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[from:], crc32.MakeTable(crc32.Castagnoli)))
}

func appendText(dst []byte, s string) []byte {
	s = s[:min(len(s), mostName)]
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendFloat(dst []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
}

// cursor reads a payload. Once something is missing, all that follows is zero, and bad is set.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) uint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.b, c.bad = nil, true
		return 0
	}
	c.b = c.b[n:]
	return v
}

// count reads a number that is at most most.
func (c *cursor) count(most int) int {
	v := c.uint()
	if v > uint64(most) { //nolint:gosec // a constant
		c.b, c.bad = nil, true
		return 0
	}
	return int(v)
}

func (c *cursor) int() int64 {
	v := c.uint()
	return int64(v>>1) ^ -int64(v&1) //nolint:gosec // zigzag
}

func (c *cursor) bytes(n int) []byte {
	if n > len(c.b) {
		c.b, c.bad = nil, true
		return nil
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) text() string { return string(c.bytes(c.count(mostName))) }

func (c *cursor) fixed() uint64 {
	b := c.bytes(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// float reads a number that is finite and not negative.
func (c *cursor) float() float64 {
	v := math.Float64frombits(c.fixed())
	if !(v >= 0) || math.IsInf(v, 1) {
		c.bad = true
		return 0
	}
	return v
}
