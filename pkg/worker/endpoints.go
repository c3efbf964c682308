package worker

import (
	"fmt"
	"iter"
	"net/netip"
	"reflect"
)

// maxPort is the highest port there is.
const maxPort = 65535

// EndpointOf returns where the rank is reached: the worker's own endpoint, or
// with PortPerRank the port that is that many higher. A rank that the worker
// does not have, or that would be beyond the last port, has no endpoint. Of a
// worker of a Snapshot it does not allocate.
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

// addressOf is EndpointOf without the text; false beyond the last port.
func (w *Worker) addressOf(dp uint32) (netip.AddrPort, bool) {
	port := uint64(w.Endpoint.addr.Port()) + uint64(dp)
	if port > maxPort {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(w.Endpoint.addr.Addr(), uint16(port)), true
}

// Addresses lists where the worker listens, the endpoint first: once, or with
// PortPerRank once for each rank.
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

// RanksPerPort returns how many ranks share an endpoint. Where there are
// several, a request has to say which of them it is for.
func (w *Worker) RanksPerPort() uint32 {
	if w.PortPerRank {
		return 1
	}
	return max(w.DPSize, 1)
}

// Ports returns how many addresses the ranks have: one each, or one for all. A rank with a
// port of its own may be dead while the others serve.
func (w *Worker) Ports() int {
	return int(max(w.DPSize/w.RanksPerPort(), 1))
}

// Equal reports whether both say the same of a worker.
func (w *Worker) Equal(o *Worker) bool {
	if w.ranks == nil && o.ranks == nil {
		return reflect.DeepEqual(w, o)
	}
	a, b := *w, *o
	a.ranks, b.ranks = nil, nil
	return reflect.DeepEqual(&a, &b)
}

// tabled reports whether ranks are those of w as it is: it may be a copy of a
// worker of a snapshot that was changed since.
func (w *Worker) tabled() bool {
	return uint64(len(w.ranks)) == uint64(w.DPSize) && w.DPSize > 0 && w.ranks[0] == w.Endpoint
}

// withRanks returns w, or a copy of it that has its ranks' endpoints at hand.
// w itself may be read by others already.
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

// portFault says why the ranks cannot have the ports that they would need, or
// "".
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
