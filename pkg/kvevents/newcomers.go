package kvevents

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/recent"
)

// Bounds for peers that have dialed, until it is known which worker each belongs to.
const (
	// leastNewcomers is how many may wait even if few workers are known.
	leastNewcomers = 256
	// firstPayloads is how many may send the payload of their first message at the same
	// time. Each payload may be as large as Config.MaxMessageBytes.
	firstPayloads = 8
	// crowdedEvery is the least time between two log lines that say that there are too
	// many.
	crowdedEvery = time.Minute
)

var (
	errCrowded = errors.New("kvevents: too many peers have dialed and said nothing: the one that waited longest was let go")
	errSlow    = errors.New("kvevents: the first message did not come in time")
)

// newcomers are the connections of peers that have dialed and have not yet shown which
// worker they belong to, in the order in which they came. When there are too many, the
// first is closed: a publisher dials again, and no peer keeps a place for ever.
type newcomers struct {
	payloads chan struct{} // has an element for each peer that may send a payload now

	// mu guards the fields below. No other lock is taken under it.
	mu     sync.Mutex
	conns  recent.Map[net.Conn, struct{}]
	logged time.Time // when the log last said that there are too many
}

func newNewcomers() *newcomers { return &newcomers{payloads: make(chan struct{}, firstPayloads)} }

// enter adds a connection. If out is not nil, the caller must close it to make room. log
// says that the caller must also log this.
func (n *newcomers) enter(nc net.Conn, most int, now time.Time) (out net.Conn, log bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns.Len() >= most {
		out, _, _ = n.conns.DropOldest()
		log = now.Sub(n.logged) >= crowdedEvery
		if log {
			n.logged = now
		}
	}
	n.conns.Put(nc, struct{}{}, now)
	return out, log
}

// leave removes a connection. False means that enter has removed it before.
func (n *newcomers) leave(nc net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns.Delete(nc)
}

func (n *newcomers) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns.Len()
}
