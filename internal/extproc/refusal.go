package extproc

import (
	"strings"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route"
)

// This file finds the row of the failure table for a decision that refuses.

// failureOf returns the row of a refusal, with its facts.
func (srv *Server) failureOf(r *route.Refusal) *failure {
	switch r.Reason {
	case route.UnknownModel:
		return srv.unknownModel(r.Model)
	case route.BadBody:
		return badBody(r.Body)
	case route.BadName:
		return pinned(r.Pin)
	}
	f := *failureRow(string(r.Reason)) // a reason that has a row of its own is its code
	switch r.Reason {
	case route.NamedLeft:
		f.message += ": " + r.Role.String() + " worker " + r.Worker.String() + "."
	case route.NoTaint:
		f.taint = r.Taint
		f.message = "No " + r.Role.String() + " worker that can take the request carries the taint " + r.Taint + "; try again."
	case route.NoHandoff:
		f.message += ": " + r.Obstacle
		if r.Obstacle == "" {
			f.message = "The model's requests are never split"
		}
		f.param = r.By
		if r.By != "" {
			f.message += "; and " + r.By + " names a prefill worker"
		}
		f.message += "."
	case route.Saturated:
		if q := r.Queue; q != nil {
			f.queue = &queue{q.QueuedISLTokens, q.MaxQueuedISLTokens}
		}
	}
	if r.Overloaded {
		f.message = strings.TrimSuffix(f.message, "; try again.") + ": all of them are overloaded; try again."
	}
	return &f
}

// pinned returns the row of a fault in what the request names.
func pinned(err *pin.Error) *failure {
	var f failure
	switch err.Kind {
	case pin.Conflict:
		f = failPinConflict
	case pin.NotNamed:
		f = failPinMissing
	case pin.Unknown:
		f = failPinUnknown
	case pin.Gone:
		f = failPinGone
	case pin.WrongModel:
		f = failPinModel
	case pin.WrongRole:
		f = failPinRole
	case pin.Draining:
		f = failPinDraining
	case pin.NotUsable:
		f = failPinUnusable
	case pin.NeedsOther:
		f = failPinNeeds
	case pin.RankTooHigh:
		f = failPinRank
	case pin.Unfit:
		f = failPinUnfit
	default:
		f = failPinMalformed
	}
	f.param = err.Param
	f.message += ": " + err.Param + ": " + err.Subject + "."
	return &f
}
