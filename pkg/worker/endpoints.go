package worker

import (
	"fmt"
	"iter"
	"net/netip"
	"reflect"
)

// maxPort is the highest port number.
const maxPort = 65535

// EndpointOf returns the endpoint of the rank: the worker's own endpoint, or with
// PortPerRank the endpoint whose port is higher by dp. A rank that the worker does not
// have, or whose port would exceed 65535, has the zero Endpoint. For a worker of a
// Snapshot EndpointOf does not allocate.
func (w *Worker) EndpointOf(dp DPRank) Endpoint {
	switch {
	case !w.PortPerRank || dp == 0:
		return w.Endpoint
	case uint32(dp) >= w.DPSize:
		return Endpoint{}
	case w.tabled():
		return w.ranks[dp]
	}
	at, ok := w.addressOf(uint32(dp))
	if !ok {
		return Endpoint{}
	}
	return Endpoint{addr: at, text: at.String()}
}

// addressOf is EndpointOf without the text. False means that the port would exceed
// maxPort.
func (w *Worker) addressOf(dp uint32) (netip.AddrPort, bool) {
	port := uint64(w.Endpoint.addr.Port()) + uint64(dp)
	if port > maxPort {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(w.Endpoint.addr.Addr(), uint16(port)), true
}

// Addresses lists the addresses where the worker listens, Endpoint's first: one
// address, or with PortPerRank one for each rank.
func (w *Worker) Addresses() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for dp := range uint32(w.Ports()) { //nolint:gosec // DPSize is bounded
			at, ok := w.addressOf(dp)
			if !ok || !yield(at) {
				return
			}
		}
	}
}

// RanksPerPort returns how many ranks share one endpoint. If several do, a request has
// to say which of them it is for.
func (w *Worker) RanksPerPort() uint32 {
	if w.PortPerRank {
		return 1
	}
	return max(w.DPSize, 1)
}

// Ports returns how many addresses the worker has: one for all ranks, or with
// PortPerRank one for each. Callers need to know, since a rank with a port of its own
// may be dead while the other ranks serve.
func (w *Worker) Ports() int {
	return int(max(w.DPSize/w.RanksPerPort(), 1))
}

// Equal reports whether w and o are equal, apart from the endpoints that NewSnapshot
// fills in.
func (w *Worker) Equal(o *Worker) bool {
	if w.ranks == nil && o.ranks == nil {
		return reflect.DeepEqual(w, o)
	}
	a, b := *w, *o
	a.ranks, b.ranks = nil, nil
	return reflect.DeepEqual(&a, &b)
}

// tabled reports whether w.ranks has the endpoints of w's present fields. It has others
// if w is a copy of a Snapshot's worker and the copy was changed.
func (w *Worker) tabled() bool {
	return uint64(len(w.ranks)) == uint64(w.DPSize) && w.DPSize > 0 && w.ranks[0] == w.Endpoint
}

// withRanks returns w, or if w has several ports a copy of w with the ranks' endpoints
// filled in. It copies because other goroutines may read w already.
func (w *Worker) withRanks() *Worker {
	if !w.PortPerRank || w.DPSize < 2 || w.tabled() {
		return w
	}
	c := *w
	c.ranks = make([]Endpoint, w.DPSize)
	for dp := range c.ranks {
		c.ranks[dp] = w.EndpointOf(DPRank(dp)) //nolint:gosec // DPSize is bounded
	}
	return &c
}

// portFault says why the ranks cannot have the ports that PortPerRank gives them, or
// returns "".
func (w *Worker) portFault() string {
	if !w.PortPerRank || w.Endpoint.IsZero() || w.DPSize == 0 {
		return ""
	}
	if w.Fronted {
		return "port_per_rank: a fronted worker shares its endpoint with others"
	}
	if last := uint64(w.Endpoint.addr.Port()) + uint64(w.DPSize) - 1; last > maxPort {
		return fmt.Sprintf("port_per_rank: rank %d would be at port %d; expected at most %d", w.DPSize-1, last, maxPort)
	}
	return ""
}
