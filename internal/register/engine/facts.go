package engine

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Kind says which engine to expect: [Auto], or the name of one.
type Kind = worker.Engine

// Auto tries the engines that their pages tell apart.
const Auto Kind = "auto"

// ParseKind reads a kind; "" is Auto.
func ParseKind(s string) (Kind, error) {
	if s == "" || s == string(Auto) {
		return Auto, nil
	}
	if k, err := worker.ParseEngine(s); err == nil {
		return k, nil
	}
	return "", fmt.Errorf("engine %q: expected auto, %s", s, worker.EngineNames())
}

type (
	// Facts are what an engine says of itself.
	Facts = ask.Facts
	// Unread names the pages that could not be read.
	Unread = ask.Unread
	// KVEvents is where an engine publishes its KV events.
	KVEvents = ask.KVEvents
	// Mark tells one life of an engine's process from the next.
	Mark = ask.Mark
	// Running says what one rank of an engine runs.
	Running = ask.Running
)

// The errors of what an engine does not say.
var (
	ErrNotCounted = ask.ErrNotCounted
	ErrNotTold    = ask.ErrNotTold
)

// Health is the result of one question about health.
type Health uint8

// The results, from good to worst. Silent means that no answer has come in time, or one that says
// no more: the engine may be busy. Refused means that nothing listens: the process is gone.
const (
	Healthy Health = iota + 1
	Silent
	Unhealthy
	Refused
)

var healthNames = [...]string{Healthy: "ok", Silent: "silent", Unhealthy: "failed", Refused: "refused"}

// String returns "ok", "silent", "failed" or "refused"; "unknown" for the zero value.
func (h Health) String() string {
	if h < Healthy || h > Refused {
		return "unknown"
	}
	return healthNames[h]
}
