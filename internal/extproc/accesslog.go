package extproc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// accessLog receives Envoy's gRPC access log of the main leg. The log tells when and how an
// answer ended, also if the plugin had left the answer's stream before.
type accessLog struct{ srv *Server }

// logged returns how the answer of the entry ended, if that answer had begun. An error that
// reached no upstream is Envoy's own.
func logged(e *wire.Entry) blame.Sight {
	switch {
	case e.Stood:
		return leg.SightOfStill(e.Bytes)
	case e.TimedOut:
		return blame.Expired
	case e.BrokeOff:
		return blame.BrokeOff
	case e.ClientLeft:
		return blame.ClientLeft
	case e.Status >= 400 && !e.Reached:
		return blame.NotSent
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
	case <-a.srv.door.drained:
		return nil // gRPC then ends the read
	}
}

func (a *accessLog) read(logs *wire.Logs) error {
	host := peerHost(logs.Context())
	for {
		entries, err := logs.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			a.broke(host)
			return err
		}
		if slices.ContainsFunc(entries, func(e wire.Entry) bool { return e.Runs }) {
			a.srv.tellers.add(host)
		}
		others := make(map[string][]peerEntry)
		for i := range entries {
			e := &entries[i]
			if s := a.find(e); s != nil {
				s.post(entryEvent(e))
			} else if e.Runs {
				continue // replicas of this process leave no stream whose answer runs
			} else if owner, entry := a.anothers(e); owner != "" {
				others[owner] = append(others[owner], entry)
			}
		}
		for owner, entries := range others {
			a.srv.peers.logged(owner, entries)
		}
	}
}

// broke tells the attempts of the proxies at host that a stream of the access log has
// broken off: the ends that were on their way are lost. An attempt that has left its stream
// then waits for an entry that says that its answer runs (docs/behaviour.md#lost-ends).
// Several proxies may have one host. The answers of those whose log is whole run on, so the
// next entries say so. Where no proxy at host tells which answers run, none is told: it
// could not be known whether an answer is over.
func (a *accessLog) broke(host string) {
	srv := a.srv
	if srv.door.reached(stageEnding) {
		return
	}
	srv.cfg.Telemetry.LogBroke()
	srv.log.Info("a stream of a proxy's access log broke off", slog.String(logkey.Address, cmp.Or(host, "local")))
	if !srv.tellers.broke(host, time.Now()) {
		return
	}
	for _, s := range srv.attempts.all() {
		if peerHost(s.grpc.Context()) == host {
			s.post(just(leg.Event{Kind: leg.EventLogBroken}))
		}
	}
}

// tellers are the hosts of proxies whose access log tells which answers run, as peerHost
// names them, with when it last broke off. The zero value is ready. Safe for concurrent use.
type tellers struct {
	broken atomic.Bool // a log has broken off: before that no attempt need ask for its host
	mu     sync.Mutex
	hosts  map[string]time.Time // guarded by mu
}

// tellersMost bounds the hosts that are kept.
const tellersMost = 1024

func (t *tellers) add(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hosts == nil {
		t.hosts = make(map[string]time.Time)
	}
	if _, ok := t.hosts[host]; !ok && len(t.hosts) < tellersMost {
		t.hosts[host] = time.Time{}
	}
}

// broke notes that a host's log has broken off, and reports whether the host is known.
func (t *tellers) broke(host string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.hosts[host]
	if ok {
		t.hosts[host] = now
		t.broken.Store(true)
	}
	return ok
}

// brokeSince reports whether the log of the proxy that has opened the stream has broken off after that time.
func (t *tellers) brokeSince(stream context.Context, since time.Time) bool {
	if !t.broken.Load() {
		return false
	}
	host := peerHost(stream)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hosts[host].After(since)
}

func entryEvent(e *wire.Entry) *notice {
	if e.Runs {
		return just(leg.Event{Kind: leg.EventRuns, Bytes: e.Bytes})
	}
	return &notice{
		Event: leg.Event{Kind: leg.EventLogged, Seen: logged(e), Status: e.Status, Reached: e.Reached, Details: e.Details},
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
		Token: e.Token, Seen: logged(e), Status: e.Status, Reached: e.Reached, Details: e.Details,
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
