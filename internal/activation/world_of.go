package activation

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// WorldOf returns the world in which exactly these workers are known.
func WorldOf(ws []*worker.Worker) (*World, error) {
	snap, err := worker.NewSnapshot(1, ws)
	if err != nil {
		return nil, err
	}
	board := New()
	board.Follow(snap, discovery.Change{}, time.Now())
	return board.Load(), nil
}

// Line says whether and how a model can be served, and why not.
func (o Outlook) Line(k worker.Key, p *worker.Pool) string {
	name := fmt.Sprintf("model %q", k.Model)
	if k.Namespace != "" {
		name += fmt.Sprintf(" of namespace %q", k.Namespace)
	}
	if why := o.Why(p); why != "" {
		return name + " cannot be served: " + why
	}
	return name + " is served by " + o.How(p)
}
