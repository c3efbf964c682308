package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// answerAsked is what a request says of the answer that it wants. The zero value is one
// of which nothing is known.
type answerAsked struct {
	key       worker.Key
	maxTokens int64
	parallel  int // generations
}

// mostParallel is how many generations of one request are booked; engines refuse more,
// or run them one after the other.
const mostParallel = 64

func (q *question) asked() answerAsked {
	a := answerAsked{key: q.pool.Key, maxTokens: outlen.NotSaid, parallel: 1}
	if r := q.query.Request; r != nil && q.passing == "" {
		a.maxTokens, a.parallel = r.MaxTokens, max(r.Parallel(), 1)
	}
	return a
}

// growth is how many KV blocks the answer is expected to take: by what answers of the
// model have lately been, and by what the request allows if that is less.
func (srv *Server) growth(a *answerAsked, blockSize int) load.Growth {
	e, size := srv.lately.Expect(a.key, a.maxTokens), float64(max(blockSize, 1))
	return load.Growth{After: e.First, PerSecond: e.PerSecond / size, Most: float64(e.Tokens) / size, Choices: min(a.parallel, mostParallel)}
}

// Wrote notes what answers on a rank of the worker were seen to write.
func (srv *Server) Wrote(w *worker.Worker, told load.Written) {
	if srv.cfg.Advertise != "" {
		return // the blocks are of every replica's answers, the seconds of ours alone
	}
	for _, model := range w.Models {
		srv.lately.Wrote(worker.Key{Model: model, Namespace: w.Namespace}, told.Blocks*float64(w.BlockSize), told.Seconds)
	}
}

// learn notes what came of an answer that was served. Of several generations only the
// sum of their tokens is told, and of what is passed on nothing.
func (s *mainStream) learn(t *telemetry.Served) {
	if t.Error != "" || s.asked.parallel != 1 || s.m.passing.on {
		return
	}
	s.srv.lately.Heard(s.asked.key, outlen.Answer{
		MaxTokens: s.asked.maxTokens, Tokens: s.counts.usage.Output, First: max(0, min(t.FirstToken, t.Whole)), Whole: max(t.Whole, time.Nanosecond),
	})
}
