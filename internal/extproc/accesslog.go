package extproc

import (
	"errors"
	"io"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// accessLog receives Envoy's gRPC access log of the main leg. The log tells when and how an
// answer ended, also if the plugin had left the answer's stream before.
type accessLog struct{ srv *Server }

// logged returns how the answer of the entry ended, if that answer had begun.
func logged(e *wire.Entry) blame.Sight {
	switch {
	case e.TimedOut:
		return blame.Expired
	case e.BrokeOff:
		return blame.BrokeOff
	case e.ClientLeft:
		return blame.ClientLeft
	case e.Bytes == 0:
		return blame.Empty
	case e.Said.Errored:
		return leg.SightOfError(e.Said.ErrorCode)
	default:
		return blame.Served
	}
}

// serve takes entries until Envoy ends the stream or a drain has ended. Envoy keeps the
// stream of a log open, so without the drain a graceful stop of the gRPC server would not
// return.
func (a *accessLog) serve(logs *wire.Logs) error {
	read := make(chan error, 1)
	go func() { read <- a.read(logs) }()
	select {
	case err := <-read:
		return err
	case <-a.srv.drained:
		return nil // gRPC then ends the read
	}
}

func (a *accessLog) read(logs *wire.Logs) error {
	for {
		entries, err := logs.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		others := make(map[string][]peerEntry)
		for i := range entries {
			e := &entries[i]
			if s := a.find(e); s != nil {
				s.post(entryEvent(e))
			} else if owner, entry := a.anothers(e); owner != "" {
				others[owner] = append(others[owner], entry)
			}
		}
		for owner, entries := range others {
			a.srv.peers.logged(owner, entries)
		}
	}
}

func entryEvent(e *wire.Entry) *notice {
	return &notice{
		Event: leg.Event{Kind: leg.EventLogged, Seen: logged(e), Status: e.Status, Reached: e.Reached},
		sent:  sent{e.Start, e.First, e.Last}, usage: usageOf(e),
	}
}

// usageOf returns the usage that Envoy's filter baton.usage has found in a streamed answer.
func usageOf(e *wire.Entry) openai.Usage {
	u := openai.Usage{Prompt: e.Said.Prompt, Output: e.Said.Output, Cached: e.Said.Cached}
	u.HasCached = e.Said.HasCached
	return u
}

// anothers returns the owner of the entry's attempt, if that is another replica, and what
// to send to that owner. Otherwise owner is empty. Envoy sends all of its log to one
// replica.
func (a *accessLog) anothers(e *wire.Entry) (owner string, entry peerEntry) {
	if e.Token == "" {
		return "", entry
	}
	leg, err := a.srv.sealer.Open(e.Token)
	if err != nil || leg.Owner == a.srv.owner || !a.srv.peers.reachable(leg.Owner) {
		return "", entry
	}
	return leg.Owner, peerEntry{
		Token: e.Token, Seen: logged(e), Status: e.Status, Reached: e.Reached,
		Start: e.Start, First: e.First, Last: e.Last, Usage: usageOf(e),
	}
}

// find returns the attempt that the entry is about, or nil. If the client left before the
// plugin had answered Envoy, the attempt was not routed, and the entry has no number of an
// attempt: then the attempt is found by its name (unrouted).
func (a *accessLog) find(e *wire.Entry) *mainStream {
	if nonce, err := strconv.ParseUint(e.Attempt, 10, 64); err == nil {
		return a.srv.attempts.find(nonce)
	}
	return a.srv.unrouted.find(e.RequestID, e.AttemptCount)
}
