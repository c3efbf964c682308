package discovery

import (
	"cmp"
	"context"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Guard passes the events of another source on. A worker at an address that no worker of
// that source may have becomes a fault of its entry: it is told, and nobody connects to it.
// It implements [Source].
type Guard struct {
	Inner     Source
	Addresses *Addresses
	// Operator says that who configured the plugin has written the workers.
	Operator bool
	// Unvouched says that the source cannot know who has written a worker; each then has
	// [worker.Worker.Unvouched].
	Unvouched bool
}

var _ Source = (*Guard)(nil)

// Run implements [Source].
func (g *Guard) Run(ctx context.Context, sink Sink) error { return g.Inner.Run(ctx, guarded{g, sink}) }

// guarded is the sink that the inner source gets.
type guarded struct {
	*Guard
	sink Sink
}

func (g guarded) Send(ev Event) error {
	switch ev := ev.(type) {
	case List:
		for i := range ev.Entries {
			g.judge(&ev.Entries[i])
		}
	case Batch:
		g.judgeAll(ev)
	case Batches:
		for _, b := range ev {
			g.judgeAll(b)
		}
	}
	return g.sink.Send(ev)
}

func (g guarded) judgeAll(b Batch) {
	for i := range b.Ops {
		g.judge(&b.Ops[i].Entry)
	}
}

// judge changes an entry, which belongs to the sink.
func (g guarded) judge(e *Entry) {
	if e.Worker == nil {
		return
	}
	if why := g.Addresses.Refuse(e.Worker, g.Operator); why != "" {
		e.Worker, e.Fault = nil, cmp.Or(e.Fault, why)
		return
	}
	if g.Unvouched && !e.Worker.Unvouched {
		w := new(worker.Worker)
		*w = *e.Worker
		w.Unvouched = true
		e.Worker = w
	}
}
