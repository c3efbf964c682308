package extproc

import (
	"cmp"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route"
)

// This file finds the row of the failure table for a request that the router has refused.

// failureOf returns the row of the failure table for the refusal, with the refusal's facts.
func (srv *Server) failureOf(r *route.Refusal) *leg.Failure {
	switch r.Reason {
	case route.UnknownModel:
		return srv.unknownModel(r.Model)
	case route.BadBody:
		return leg.BadBody(r.Body)
	case route.BadName:
		return pinned(r.Pin)
	case route.UnknownPath:
		return leg.UnknownPath(r.Path, &engines.Served, true)
	}
	f := *leg.FailureOf(string(r.Reason)) // these reasons are the codes of rows
	switch r.Reason {
	case route.NamedLeft:
		f.Message += ": " + r.Role.String() + " worker " + r.Worker.String() + "."
	case route.NoCommon:
		f.Message = strings.Replace(f.Message, ": run", ": its "+r.Workers+"; run", 1)
	case route.NoTaint:
		f.Taint = r.Taint
		f.Message = "No " + r.Role.String() + " worker that can take the request carries the taint " + r.Taint + "; try again."
	case route.NoHandoff:
		obstructed(&f, r.Obstacle, r.By)
	case route.NeedsAlone:
		if r.Path != "" {
			f.Message += " On " + leg.PathTold(r.Path) + " its engine serves no request with prefill and decode apart; on /v1/chat/completions it does."
		}
	case route.Saturated:
		if q := r.Queue; q != nil {
			f.Queue = &leg.Queue{QueuedISLTokens: q.QueuedISLTokens, MaxQueuedISLTokens: q.MaxQueuedISLTokens}
		}
	}
	if r.Overloaded {
		f.Message = strings.TrimSuffix(f.Message, "; try again.") + ": all of them are overloaded; try again."
	}
	return &f
}

// obstructed completes the row for a request that cannot be split: because of what, and what
// the client can do. by is what names a prefill worker that would not be used, or empty.
func obstructed(f *leg.Failure, why handoff.Obstacle, by string) {
	obstacle := why.Member
	f.Param = cmp.Or(by, obstacle)
	switch obstacle {
	case "":
		f.Message = "The model's requests are never split"
	case handoff.NoPath: // with a prefill worker that the request names
		f.Param = by
		f.Message += ": on this path it takes no hand-off"
	case route.CutToFit:
		f.Message += " because of " + obstacle + ": -1 leaves prefill and decode different parts of a long prompt; give the number of tokens to keep"
	case openai.PromptText.String():
		f.Message += " because of " + obstacle + ": send a request for each prompt"
	case openai.PromptEmbeds.String(), openai.InputEmbeds.String():
		f.Message += " because of " + obstacle + ": send the prompt as text or as token ids"
	default:
		f.Message += " because of " + obstacle + ": leave it out"
		if why.Unknown {
			f.Message += ", or name it in request.handed_over: it is not known what the workers' engine makes of it"
		}
	}
	if by != "" {
		f.Message += "; and " + by + " names a prefill worker"
	}
	f.Message += "."
}

// pinned returns the row of the failure table for a fault in how the request names workers.
func pinned(err *pin.Error) *leg.Failure {
	f := *leg.FailureOf(string(err.Kind)) // the kinds are the codes of rows
	f.Param = err.Param
	f.Message += ": " + err.Param + ": " + err.Subject + "."
	return &f
}
