package enginesim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// sglangJob is a planned request.
type sglangJob struct {
	e           *sglang
	c           *call
	prefillRank int            // that decode expects, or -1: the room determines it
	halves      []*prefillHalf // of the items that are in their rooms, by their index
}

func (j *sglangJob) prepare(ctx context.Context, it *item) error {
	switch j.c.leg {
	case legPrefill:
		return j.runPrefill(ctx, it)
	case legDecode:
		return j.runDecode(ctx, it)
	default:
		return j.c.prepareWhole(ctx, it)
	}
}

// output is one token at a prefill worker, whatever the request asks for.
func (j *sglangJob) output() (int, string) {
	if j.c.leg == legPrefill {
		return 1, "length"
	}
	return j.c.limit()
}

func (j *sglangJob) handOver(string) {}

func (j *sglangJob) abandon() {}

// release leaves the rooms.
func (j *sglangJob) release() {
	for i, half := range j.halves {
		if half != nil {
			j.e.rooms.leave(half)
			j.halves[i] = nil
		}
	}
}

// runPrefill enters the room, computes the prompt and returns when the KV has been taken.
func (j *sglangJob) runPrefill(ctx context.Context, it *item) error {
	c, rooms := j.c, j.e.rooms
	half := &prefillHalf{
		room: it.meet.room, seq: c.seq, digest: it.digest, rank: it.rank.id, aborted: c.aborted(),
		arrived: make(chan struct{}, 1), done: make(chan error, 1),
	}
	if err := rooms.enter(half); err != nil {
		return err
	}
	j.halves[it.index] = half
	timeout := time.NewTimer(j.e.cfg.BootstrapTimeout)
	defer timeout.Stop()
	if j.e.cfg.HandshakeFirst {
		met := func() bool { return rooms.decodeHere(half) }
		if over, err := j.awaitDecode(ctx, half, timeout.C, met); over || err != nil {
			return err
		}
	}
	if err := c.admit(ctx, it, 0); err != nil {
		return err
	}
	if err := c.computeNow(ctx, it, true); err != nil {
		return err
	}
	it.hold.leaveSlot()
	rooms.setReady(half, it.cached)
	_, err := j.awaitDecode(ctx, half, timeout.C, func() bool { return false })
	return err
}

// awaitDecode waits until the function enough returns true, or the half is over. In the
// second case over is true, and the error says how it ended. A half that has no decode at
// the timeout fails.
func (j *sglangJob) awaitDecode(
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
			return true, &apiError{status: http.StatusInternalServerError, reason: "bootstrap_timeout", msg: fmt.Sprintf(
				"Prefill bootstrap failed: no decode came to bootstrap room %d within %s", p.room, j.e.cfg.BootstrapTimeout)}
		}
	}
}

// runDecode allocates blocks and waits for the KV; the first token then exists.
func (j *sglangJob) runDecode(ctx context.Context, it *item) error {
	if err := j.c.admit(ctx, it, j.c.output()); err != nil {
		return err
	}
	cached, err := j.e.links.await(ctx, it, j.prefillRank)
	var no *refused
	if errors.As(err, &no) {
		return j.e.mispaired("refused_by_prefill", j.c.seq, it.meet.room, no.msg)
	}
	if err != nil {
		return err
	}
	it.cached = cached
	it.hold.store(it.sums, it.prompt)
	return nil
}
