package hitloss

import (
	"fmt"
	"strings"
)

// Cause is why a token was computed although a rank was believed to hold it.
type Cause uint8

// The causes.
const (
	Load         Cause = iota // the rank that held most could be picked, and another was cheaper
	Constraint                // a constraint of the request or of the pool left that rank out, or kept its cache from use
	Aside                     // that rank was set aside, had failed the request, or was leaving
	StaleIndex                // the rank's events told that it held the tokens, took nothing back, and it did not deliver
	Evicted                   // the rank's events took the tokens back between the pick and the prompt's computation
	Estimate                  // no event had told of the tokens: the prediction was a guess
	OtherReplica              // the guess came from another replica
	EngineSilent              // events of the rank were missing at the pick
	Causes                    // how many there are
)

var causeNames = [Causes]string{"load", "constraint", "aside", "stale_index", "evicted", "estimate", "other_replica", "engine_silent"}

// String returns the cause as metrics have it.
func (c Cause) String() string {
	if c >= Causes {
		return "invalid"
	}
	return causeNames[c]
}

// Lost is how many tokens of a prompt were lost, by cause.
type Lost [Causes]int64

// Sum returns all tokens that were lost.
func (l *Lost) Sum() (n int64) {
	for _, x := range l {
		n += x
	}
	return n
}

// Text says in one line what was lost of a prompt with so many tokens; "" if nothing was.
func (l *Lost) Text(prompt int64) string {
	sum := l.Sum()
	if sum == 0 {
		return ""
	}
	var parts []string
	for c, n := range l {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", Cause(c), n)) //nolint:gosec // there are a few causes
		}
	}
	return fmt.Sprintf("lost %d of %d tokens: %s", sum, prompt, strings.Join(parts, ", "))
}

// Prompt is what was known of a prompt, in tokens.
type Prompt struct {
	Tokens, BlockSize int64

	// At the pick.
	Best      int64 // that the rank holds which holds most, whether or not it could be picked
	Out       Cause // why it could not be picked, if Best is more than Available: Constraint or Aside
	Available int64 // that the rank holds which holds most of those that could be picked
	Missing   bool  // events of that rank were missing
	Predicted int64 // that the picked rank holds
	Told      int64 // of Predicted, from the first token on: its events told of it
	Silent    bool  // events of the picked rank were missing
	Barred    bool  // the request may keep its engine from using what is cached

	// At the end.
	Kept      int64 // of Told, from the first token on: no event has taken it back
	Heard     int64 // of what is beyond Told: only another replica told of it
	Delivered int64 // that was not computed, by the engine's usage
	Counted   bool  // the usage told Delivered
}

// Deliverable returns how many tokens of the prompt a cache can deliver: the prompt's last
// token is always computed, and so is its block.
func Deliverable(p *Prompt) int64 {
	size := max(p.BlockSize, 1)
	return max(p.Tokens-1, 0) / size * size
}

// Split gives each lost token its cause. What cannot be delivered is no loss. Neither is a
// block less than was predicted, since engines round.
func Split(p *Prompt) (l Lost) {
	size := max(p.BlockSize, 1)
	most := Deliverable(p)
	at := func(n int64) int64 { return min(max(n, 0), most) }
	best, available, predicted, told := at(p.Best), at(p.Available), at(p.Predicted), at(min(p.Told, p.Predicted))
	got := at(p.Delivered)
	if !p.Counted || got < predicted && predicted-got <= size {
		got = predicted
	}
	between := func(from, to int64) int64 { return max(to-max(from, got), 0) }

	kept := min(max(p.Kept, 0), told)
	switch {
	case p.Barred:
		l[Constraint] = between(0, predicted)
		told = predicted
	case p.Silent:
		l[EngineSilent] = between(0, told)
	default:
		l[StaleIndex], l[Evicted] = between(0, kept), between(kept, told)
	}
	guessed := between(told, predicted)
	l[OtherReplica] = min(max(p.Heard, 0), guessed)
	l[Estimate] = guessed - l[OtherReplica]

	passed := Load
	if p.Missing {
		passed = EngineSilent
	}
	l[passed] += between(predicted, available)
	l[p.Out] += between(max(available, predicted), best)
	return l
}
