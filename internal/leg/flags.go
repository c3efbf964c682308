package leg

import (
	"strings"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// fault is what Envoy's response flags say of an upstream, in an answer that
// Envoy made itself. All legs read them here.
type fault uint8

const (
	// faultNone says nothing of a worker, and none has seen the request: there is
	// no route, cluster or host for it (NR, NC, UH, DF, NFCF), a filter answered
	// (FI, RL, UAEX, RLSE, IH, LH, RFCF), or it is about the client (DC, DR, DPE).
	// DI and URX come beside others.
	faultNone     fault = iota
	faultConnect        // the connection did not come about
	faultOverflow       // Envoy has no room: its circuit breaker, load shedding or overload manager
	faultLost           // the connection broke off, or what came is no HTTP
	faultTimeout        // one of Envoy's timers
)

var faultNames = [...]string{"none", "connect", "overflow", "lost", "timeout"}

func (f fault) String() string { return faultNames[f] }

// faultOf reads the flags as %RESPONSE_FLAGS% has them, separated by commas; one
// may be a part of another's name. Of several the last of faults counts.
// https://www.envoyproxy.io/docs/envoy/latest/configuration/advanced/substitution_formatter
func faultOf(flags string) fault {
	out := faultNone
	for f := range strings.SplitSeq(flags, ",") {
		is := faultNone
		switch f {
		case "UT", "UMSDR", "DT", "SI":
			is = faultTimeout
		case "UC", "UR", "LR", "UPE":
			is = faultLost
		case "UO", "DO", "UDO", "OM":
			is = faultOverflow
		case "UF":
			is = faultConnect
		}
		out = max(out, is)
	}
	return out
}

// reached reports whether a worker may have seen a request that Envoy answered
// itself: not where no connection came about, or none was to be had.
func reached(flags string) bool { return faultOf(flags) >= faultLost }

// localSight is what was seen of a leg that Envoy answered itself.
func localSight(flags string) blame.Sight {
	switch faultOf(flags) {
	case faultTimeout:
		return blame.TimedOut
	case faultLost:
		return blame.Lost
	case faultOverflow:
		return blame.Overflow
	case faultConnect:
		return blame.Unconnected
	default:
		return blame.NotSent // refused, or Envoy could not ask us
	}
}
