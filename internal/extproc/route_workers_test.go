package extproc

import (
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func setOf(list string) *subset.Set { return subset.Parse(structpb.NewStringValue(list)) }

// engineOf makes workers of one engine; those of a hand-off through prefill's answer
// have no bootstrap.
func engineOf(ws []*worker.Worker, e worker.Engine) fixed {
	for _, w := range ws {
		if w.Engine = e; handoff.KindOf(e).PrefillFirst() {
			w.Bootstrap = worker.Bootstrap{}
		}
	}
	return fixed(ws)
}
