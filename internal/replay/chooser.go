package replay

import (
	"errors"
	"time"
)

// Choice is the ranks of one request.
type Choice struct {
	Rank     int // of prefill, or of the whole request
	Decode   int // in fleets with decode ranks
	Believed int // leading blocks of the prompt that the pick counted on as cached at Rank
}

// Moment is a moment of a leg.
type Moment uint8

// The moments of a leg. One of prefill has no first token of its own.
const (
	Began      Moment = iota // the rank began to compute the prompt, or decode had its KV and room for it
	FirstToken               // of the answer
	Ended
)

// Leg is what a router can know of one moment of a leg.
type Leg struct {
	Request int
	Rank    int
	Role    Role
	Moment  Moment
	At      time.Duration // when it happened, by the rank's own clock
	Cached  int           // prompt tokens that the rank had cached
}

// Events are the KV events of one rank at one moment. Stored blocks follow each other.
type Events struct {
	Rank    int
	Parent  Block // of the first stored block; 0: it begins prompts
	Stored  []Block
	Removed []Block
}

// Report is what an engine says of one of its ranks.
type Report struct {
	Rank    int
	Running int // answers
	Blocks  int // that they hold
	Waiting int // legs that have not begun, and prompts that are being computed
}

// ErrRefused is a Chooser's refusal of one request.
var ErrRefused = errors.New("refused")

// Chooser chooses the ranks of requests. All methods are called one at a time, in order of now,
// which is the router's time. Slices that it gets must not be changed.
type Chooser interface {
	// Choose returns the ranks for the request with the number. With ErrRefused the request is not served,
	// and the run goes on.
	Choose(now time.Duration, number int, r *Request) (Choice, error)
	// Leg, Events and Report tell what the router hears. An error ends the run.
	Leg(now time.Duration, l Leg) error
	Events(now time.Duration, e Events) error
	Report(now time.Duration, r Report) error
}
