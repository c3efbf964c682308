package sglang

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// job is a planned request.
type job struct {
	e           *engine
	c           *core.Call
	prefillRank int            // that decode expects, or -1: the room determines it
	halves      []*prefillHalf // of the items that are in their rooms, by their index
}

func (j *job) Prepare(ctx context.Context, it *core.Item) error {
	switch j.c.Leg {
	case core.LegPrefill:
		return j.runPrefill(ctx, it)
	case core.LegDecode:
		return j.runDecode(ctx, it)
	default:
		return j.c.PrepareWhole(ctx, it)
	}
}

// Output is one token at a prefill worker, whatever the request asks for.
func (j *job) Output() (int, string) {
	if j.c.Leg == core.LegPrefill {
		return 1, "length"
	}
	return j.c.Limit()
}

func (j *job) HandOver(string) {}

func (j *job) Abandon() {}

// Release leaves the rooms.
func (j *job) Release() {
	for i, half := range j.halves {
		if half != nil {
			j.e.rooms.leave(half)
			j.halves[i] = nil
		}
	}
}

// runPrefill enters the room, computes the prompt and returns when the KV has been taken.
func (j *job) runPrefill(ctx context.Context, it *core.Item) error {
	c, rooms := j.c, j.e.rooms
	half := &prefillHalf{
		room: it.Meet.Room, seq: c.Seq, digest: it.Digest, rank: it.Rank.ID, aborted: c.Aborted(),
		arrived: make(chan struct{}, 1), done: make(chan error, 1),
	}
	if err := rooms.enter(half); err != nil {
		return err
	}
	j.halves[it.Index] = half
	timeout := time.NewTimer(j.e.cfg.BootstrapTimeout)
	defer timeout.Stop()
	if j.e.cfg.HandshakeFirst {
		met := func() bool { return rooms.decodeHere(half) }
		if over, err := j.awaitDecode(ctx, half, timeout.C, met); over || err != nil {
			return err
		}
	}
	if err := c.Admit(ctx, it, 0); err != nil {
		return err
	}
	if err := c.ComputeNow(ctx, it, true); err != nil {
		return err
	}
	it.Hold.LeaveSlot()
	rooms.setReady(half, it.Cached)
	_, err := j.awaitDecode(ctx, half, timeout.C, func() bool { return false })
	return err
}

// awaitDecode waits until the function enough returns true, or the half is over. In the
// second case over is true, and the error says how it ended. A half that has no decode at
// the timeout fails.
func (j *job) awaitDecode(
	ctx context.Context, p *prefillHalf, timeout <-chan time.Time, enough func() bool,
) (over bool, err error) {
	for expired := false; ; {
		if enough() {
			return false, nil
		}
		select {
		case err := <-p.done:
			return true, err
		case <-ctx.Done():
			return true, ctx.Err()
		case <-timeout:
			expired = true
		case <-p.arrived:
		}
		if expired && j.e.rooms.leaveAlone(p) {
			return true, &core.APIError{Status: http.StatusInternalServerError, Reason: "bootstrap_timeout", Msg: fmt.Sprintf(
				"Prefill bootstrap failed: no decode came to bootstrap room %d within %s", p.room, j.e.cfg.BootstrapTimeout)}
		}
	}
}

// runDecode allocates blocks and waits for the KV; the first token then exists.
func (j *job) runDecode(ctx context.Context, it *core.Item) error {
	if err := j.c.Admit(ctx, it, j.c.Output()); err != nil {
		return err
	}
	cached, err := j.e.links.await(ctx, it, j.prefillRank)
	var no *refused
	if errors.As(err, &no) {
		return j.e.mispaired("refused_by_prefill", j.c.Seq, it.Meet.Room, no.msg)
	}
	if err != nil {
		return err
	}
	it.Cached = cached
	it.Hold.Store(it.Sums, it.Prompt)
	return nil
}
