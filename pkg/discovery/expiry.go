package discovery

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Expiry passes the events of another source on. A worker whose record expires, so that
// nobody has said that it leaves, is asked before it is dropped: see the package comment.
// It implements [Source]. Run must not be called again before it has returned.
type Expiry struct {
	// Set before Run, read-only.

	Inner Source
	// Ask asks a worker. It returns soon after its context has ended, and may be called
	// several times at once.
	Ask func(ctx context.Context, w *worker.Worker) Answer
	// Told is called, one call at a time, when workers have expired, become stale, are
	// registered again or have left. It must be quick, and call no method. Nil: nothing
	// is called.
	Told func([]Expired)
	// Before returns the entries that were known before the start, and whether they are
	// served already. It is called once, when Inner sends its first listing, and must be
	// quick. Nil: none were known.
	Before func() (known []Entry, served bool)

	// mu guards the fields below, and is held while an event is sent.
	mu   sync.Mutex
	set  Reducer // the inner source's; kept between Runs, as is held
	held expiries
	sink Sink
	wake chan struct{} // has room for one: there may be somebody to ask
	// begun is that the first listing has come.
	begun bool
}

var _ Source = (*Expiry)(nil)

// Expired returns the workers whose records have expired, in no order.
func (x *Expiry) Expired() []Expired {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]Expired, 0, len(x.held.held))
	for _, h := range x.held.held {
		out = append(out, h.Expired)
	}
	return out
}

// Run implements [Source].
func (x *Expiry) Run(ctx context.Context, sink Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x.mu.Lock()
	_ = x.set.Apply(Begin{}) // never refused
	x.sink, x.wake = sink, make(chan struct{}, 1)
	for _, h := range x.held.held {
		h.asking = false // the question has ended with the Run before
	}
	x.mu.Unlock()
	var asking sync.WaitGroup
	var failed error
	asking.Go(func() {
		failed = x.askAll(ctx)
		cancel()
	})
	err := x.Inner.Run(ctx, expiring{x})
	cancel()
	asking.Wait()
	return cmp.Or(failed, err)
}

// expiring is the sink that the inner source gets.
type expiring struct{ *Expiry }

func (x expiring) Send(ev Event) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	plain := len(x.held.held) == 0 // the sink has what the inner source has
	expired, err := x.set.fold(ev)
	now := time.Now()
	if _, lists := ev.(List); lists && err == nil && !x.begun {
		x.begun = true
		if x.Before != nil {
			known, served := x.Before()
			x.held.recall(known, served, x.set.entries, now)
		}
	}
	x.held.follow(expired, x.set.entries, now)
	switch {
	case err != nil: // for a reason for which the sink would have refused the event
		return errors.Join(err, x.sink.Send(Broken{Reason: x.set.Cause()}))
	case plain && len(x.held.held)+len(expired) == 0 || !ChangesSet(ev):
		return x.sink.Send(ev)
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
	return x.listLocked()
}

// listLocked sends the set with the workers that are held, and tells what has changed.
func (x *Expiry) listLocked() error {
	l := List{Epoch: x.set.epoch, Revision: x.set.revision, Entries: x.held.with(&x.set)}
	if x.set.state != Watching {
		l.Stale = cmp.Or(x.set.cause, "the source lists again")
	}
	if err := x.sink.Send(l); err != nil {
		return err
	}
	if news := x.held.news(); len(news) > 0 && x.Told != nil {
		x.Told(news)
	}
	return nil
}

// reply is the answer to one question.
type reply struct {
	of *expiry
	Answer
}

// askAll asks the workers that are held until ctx ends. It returns an error if the sink
// refuses what follows from an answer.
func (x *Expiry) askAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	replies := make(chan reply)
	var got *reply
	for {
		due, again, err := x.step(got)
		if err != nil {
			return err
		}
		for _, h := range due {
			asked.Go(func() {
				select {
				case replies <- reply{h, x.Ask(ctx, h.Worker)}:
				case <-ctx.Done():
				}
			})
		}
		timer.Stop()
		if !again.IsZero() {
			timer.Reset(max(0, time.Until(again)))
		}
		got = nil
		select {
		case <-ctx.Done():
			return nil
		case r := <-replies:
			got = &r
		case <-x.wake:
		case <-timer.C:
		}
	}
}

// step takes a reply, if there is one, and returns who is to be asked now, and when the next
// step is due.
func (x *Expiry) step(got *reply) (due []*expiry, again time.Time, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if got != nil {
		x.held.answered(got.of, got.Answer, x.set.entries, now)
	}
	x.held.tick(now)
	if len(x.held.changes) > 0 {
		if err := x.listLocked(); err != nil {
			return nil, time.Time{}, err
		}
	}
	due, again = x.held.ask(now)
	return due, again, nil
}
