package kvevents

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// Bounds of what publishers that dial may take before it is known whose they are.
const (
	// leastNewcomers is how many may wait, however few workers are known.
	leastNewcomers = 256
	// firstPayloads is how many may send the payload of their first message at
	// the same time: each may be as large as Config.MaxMessageBytes.
	firstPayloads = 8
	// crowdedEvery is how often the log says that there are too many.
	crowdedEvery = time.Minute
)

var (
	errCrowded = errors.New("kvevents: too many peers have dialed and said nothing: the one that waited longest was let go")
	errSlow    = errors.New("kvevents: the first message did not come in time")
)

// newcomers are the connections of peers that have dialed and not said yet whose
// they are, the one that has waited longest first. Where there is no room, that
// one goes: a publisher dials again, and nobody holds a place for ever.
type newcomers struct {
	payloads chan struct{} // a place for each that may send a payload

	// mu guards what follows. A leaf.
	mu     sync.Mutex
	conns  []net.Conn
	logged time.Time // when it was said last that there are too many
}

func newNewcomers() *newcomers { return &newcomers{payloads: make(chan struct{}, firstPayloads)} }

// enter takes a connection in. The one that has to go for it, if any, is the
// caller's to close, and the log is due to say so.
func (n *newcomers) enter(nc net.Conn, most int, now time.Time) (out net.Conn, log bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.conns) >= most {
		out = n.conns[0]
		n.conns = slices.Delete(n.conns, 0, 1)
		if log = now.Sub(n.logged) >= crowdedEvery; log {
			n.logged = now
		}
	}
	n.conns = append(n.conns, nc)
	return out, log
}

// leave is false of one that had to go.
func (n *newcomers) leave(nc net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.Index(n.conns, nc)
	if i < 0 {
		return false
	}
	n.conns = slices.Delete(n.conns, i, i+1)
	return true
}

func (n *newcomers) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}
