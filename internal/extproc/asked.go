package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

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
	if t.Error != "" || s.asked.Parallel != 1 || s.m.Request().Passes() {
		return
	}
	s.srv.lately.Heard(s.asked.Key, outlen.Answer{
		MaxTokens: s.asked.MaxTokens, Tokens: s.counts.usage.Output, First: max(0, min(t.FirstToken, t.Whole)), Whole: max(t.Whole, time.Nanosecond),
	})
}
