package leg

import (
	"strings"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// fault is what the response flags of Envoy say of a worker, in an answer that Envoy
// itself made.
type fault uint8

const (
	// faultNone: the flags say nothing of a worker, and no worker has seen the request.
	// There is no route, cluster or host (NR, NC, UH, DF, NFCF), a filter has answered
	// (FI, RL, UAEX, RLSE, IH, LH, RFCF), or the client is the cause (DC, DR, DPE). DI
	// and URX come together with other flags.
	faultNone     fault = iota
	faultConnect        // the connection was not made
	faultOverflow       // Envoy has no room: its circuit breaker, load shedding or overload manager
	faultLost           // the connection broke off, or carried something that is not HTTP
	faultTimeout        // one of Envoy's timers went off
)

// faultOf reads flags in the form of %RESPONSE_FLAGS%, separated by commas, as the details
// behind them are (%RESPONSE_CODE_DETAILS%). It compares whole flags, since the name of one
// may be part of another's. If the flags have several faults, the one that is declared last
// counts.
// https://www.envoyproxy.io/docs/envoy/latest/configuration/advanced/substitution_formatter
func faultOf(flags string) fault {
	out := faultNone
	for f := range strings.SplitSeq(flags, ",") {
		out = max(out, faults[f])
	}
	return out
}

var faults = map[string]fault{
	"UT": faultTimeout, "UMSDR": faultTimeout, "DT": faultTimeout, "SI": faultTimeout,
	"UC": faultLost, "UR": faultLost, "LR": faultLost, "UPE": faultLost,
	"UO": faultOverflow, "DO": faultOverflow, "UDO": faultOverflow, "OM": faultOverflow,
	"UF": faultConnect,
}

// reached reports whether a worker may have seen a request that Envoy itself answered.
// False means that the request went over no connection.
func reached(flags string) bool { return faultOf(flags) >= faultLost }

// usedBefore ends the value if the connection was older than the request: behind flags and
// details it has the time from the request to the connection's begin, and Envoy writes
// nothing for one that it does not know.
const usedBefore = ","

// connectTimedOut is how the details name a connection that was neither made nor refused
// within connect_timeout.
const connectTimedOut = "{connection_timeout"

// localSight returns the sight of a leg that Envoy itself answered.
func localSight(flags string) blame.Sight {
	switch faultOf(flags) {
	case faultTimeout:
		return blame.TimedOut
	case faultLost:
		if strings.HasSuffix(flags, usedBefore) {
			return blame.Raced
		}
		return blame.Lost
	case faultOverflow:
		return blame.Overflow
	case faultConnect:
		if strings.Contains(flags, connectTimedOut) {
			return blame.Unmade
		}
		return blame.Unconnected
	default:
		return blame.NotSent // a filter refused the leg, or Envoy could not ask the plugin
	}
}
