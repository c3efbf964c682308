package core

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// Birth distinguishes a process from the one before it at the same address.
type Birth struct {
	At   time.Time
	Seed int64
}

func newBirth() Birth { return Birth{At: time.Now(), Seed: rand.Int64N(1 << 30)} }

// NewProcessID returns a random id in the form of a UUID.
func NewProcessID() string {
	a, b := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// Seconds is the time of birth in the format of Prometheus' process collectors.
func (b Birth) Seconds() string {
	return strconv.FormatFloat(float64(b.At.UnixMicro())/1e6, 'f', 6, 64)
}
