package route

import (
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	someBody      = `{"model":"m","prompt":"hello there, how are you","max_tokens":4}`
	eightTokens   = `{"model":"m","prompt":[1,2,3,4,5,6,7,8]}`
	sixteenTokens = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`
	extTokens     = `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"nvext":{%}}`
)

func withExt(ext string) string { return strings.Replace(extTokens, "%", ext, 1) }

func setOf(list string) *subset.Set { return subset.Parse(structpb.NewStringValue(list)) }

// engineOf makes workers of one engine; those of a hand-off through prefill's answer
// have no bootstrap.
func engineOf(ws []*worker.Worker, e worker.Engine) []*worker.Worker {
	for _, w := range ws {
		w.Engine = e
		if engines.HandOff(e).PrefillFirst() {
			w.Bootstrap = worker.Bootstrap{}
		}
	}
	return ws
}
