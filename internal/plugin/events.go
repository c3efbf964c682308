package plugin

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// newEvents makes the subscriber to the workers' KV events.
func (p *plugin) newEvents() error {
	c := p.cfg.Events
	conf, err := c.Addresses(&kvevents.Config{Index: p.index, Logger: p.log, Hooks: p.eventHooks()})
	if err != nil {
		return err
	}
	if n := c.Dynamo.NATS; n.URL != "" {
		channel, err := nats.New(n.Channel())
		if err != nil {
			return fmt.Errorf("events.dynamo.%w", err)
		}
		conf.Channels = append(conf.Channels, channel)
	}
	p.events, err = kvevents.NewSubscriber(*conf)
	return err
}

func (p *plugin) eventHooks() kvevents.Hooks {
	t := func() *telemetry.Instruments { return p.tele.Instruments }
	return kvevents.Hooks{
		Applied: func(_ worker.Rank, events, _ int) { t().KVEvents(events) },
		Wrote:   p.onWritten,
		Refused: func(_ worker.Rank, why kvevents.Reason, n uint64) { t().KVRefused(why.String(), n) },
		Gap:     func(worker.Rank) { t().KVGap() },
		State: func(r worker.Rank, s kvevents.State) {
			p.book.SetDegraded(r, doubtful(s))
			p.server.Heard()
		},
		Replayed: func(_ worker.Rank, ok bool) {
			outcome := "ok"
			if !ok {
				outcome = "failed"
			}
			t().KVReplay(outcome)
		},
		Restored: func(worker.Rank, int) { t().KVRestored() },
		Reset: func(r worker.Rank, why kvevents.Cause) {
			t().KVReset(why.String())
			p.askAgain(r.ID)
			p.log.Warn("a rank's blocks were dropped from the index", logkey.Rank, r.String(), logkey.Reason, why.String())
		},
	}
}

// onWritten tells the book how many blocks running answers have filled, by the KV events
// of a rank. It tells the server how fast the rank writes. Only some engines report each
// block when it is full.
func (p *plugin) onWritten(r worker.Rank, blocks int, live bool) {
	w := p.view.Load().Worker(r.ID)
	if w == nil || !engines.Of(w.Engine).TellsAsItWrites || w.Role == worker.Prefill {
		return
	}
	if told, compared := p.book.Wrote(r, blocks, live, time.Now()); compared {
		p.server.Wrote(w, told)
	}
}

// eventStream is what the page and a gauge show of a rank's events. A stream is degraded
// there whenever it is for a pick.
func eventStream(r *kvevents.RankStatus) admin.EventStream {
	e := admin.EventStream{
		AsOf: admin.At(r.AsOf), Via: r.Via, Refused: r.Refused.Map(), Since: admin.At(r.Since), Degraded: doubtful(r.State),
	}
	if r.Seen {
		e.LastSequence, e.LastAt = new(r.LastSeq), admin.At(r.LastAt)
	}
	switch r.State {
	case kvevents.StateNone:
		if r.Kept == 0 {
			return admin.EventStream{}
		}
		e.State = admin.Connecting
	case kvevents.StateConnecting:
		e.State, e.Reason = admin.Connecting, eventError(r)
		if r.Messages > 0 {
			e.State = admin.Lost
		}
	case kvevents.StateReplaying:
		e.State, e.Reason = admin.Replaying, "it catches up"
	case kvevents.StateDegraded:
		e.State, e.Reason = admin.Connected, "some events were lost"
	default:
		e.State = admin.Connected
	}
	if r.Kept > 0 {
		e.Degraded, e.Reason = true, fmt.Sprintf("%d blocks from before the restart are not used until the events confirm them", r.Kept)
	}
	// Recent refusals come before the reasons above, since they say what is wrong.
	if why, n := r.Missing.Worst(); n > 0 && e.State == admin.Connected {
		e.Degraded, e.Reason = true, "events refused: "+why.String()+remedy(why, &r.Told)
	}
	if r.Told.Unusable && e.Reason == "" {
		e.Degraded, e.Reason = true, "all events about stored blocks were refused, the latest as "+r.Told.Why.String()+": what the rank holds is guessed"
	}
	if r.LeftOut > 0 && e.Reason == "" {
		e.Reason = fmt.Sprintf("%d of its blocks are left out: they depend on what cannot be read, such as a picture, or share a hash with one of another adapter or salt", r.LeftOut)
	}
	return e
}

// remedy says what an operator may change about refused events; "": nothing.
func remedy(why kvevents.Reason, told *kvevents.Told) string {
	switch why {
	case kvevents.BlockSizeMismatch:
		return fmt.Sprintf(": they have %d tokens in a block, and its record says otherwise: give %d as --block-size of extproc register, "+
			"block_size in a workers file or the annotation baton.dev/block-size; with vLLM's --decode-context-parallel-size or SGLang's --dcp-size "+
			"it is the engine's size times theirs", told.BlockSize, told.BlockSize)
	case kvevents.EagleMismatch:
		return ": expected --eagle of extproc register, or eagle in a workers file, as the engine speculates"
	case kvevents.ForeignRank:
		return fmt.Sprintf(": they are of the engine's rank %d, which is another one: expected --kv-events-port of extproc register, "+
			"or kv_events.port in a workers file, as the port of the worker's first rank, and engine_rank as that rank", told.Rank)
	}
	return ""
}

func (p *plugin) channelRows() []admin.ChannelRow {
	var rows []admin.ChannelRow
	for _, c := range p.events.Channels() {
		rows = append(rows, admin.ChannelRow{
			Name: c.Name, Up: c.Up, Since: admin.At(c.Since), Messages: c.Messages, Refused: c.Refused.Map(), Reason: c.LastError,
			Waiting: c.Waiting, MaxWaiting: c.MaxWaiting,
		})
	}
	return rows
}

// doubtful reports whether what is known of a rank's cache may be wrong: the connection
// is lost, events are being replayed, or some are lost.
func doubtful(s kvevents.State) bool {
	return s == kvevents.StateConnecting || s == kvevents.StateReplaying || s == kvevents.StateDegraded
}
