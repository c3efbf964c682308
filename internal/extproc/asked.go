package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Wrote notes how much the answers on a rank of the worker have written, and in how long: so
// fast are later answers expected to be.
func (srv *Server) Wrote(w *worker.Worker, told load.Written) {
	if srv.cfg.Advertise != "" && !srv.cfg.Shares {
		return // the blocks count every replica's answers, the seconds only this one's
	}
	for _, model := range w.Models {
		srv.lately.Wrote(worker.Key{Model: model, Namespace: w.Namespace}, told.Blocks*float64(w.BlockSize), told.Seconds)
	}
}

// learn notes the length and the times of an answer that was served. It skips a request for
// several generations, since an engine tells only the sum of their tokens, and a request
// that is passed on unread, since nothing is known of its tokens.
func learn(s *mainStream, t *telemetry.Served) {
	if t.Error != "" || s.decided.answer.Parallel != 1 || s.m.Request().Passes() {
		return
	}
	s.srv.lately.Heard(s.decided.answer.Key, outlen.Answer{
		MaxTokens: s.decided.answer.MaxTokens, Tokens: s.answered.counts.usage.Output, First: max(0, min(t.FirstToken, t.Whole)), Whole: max(t.Whole, time.Nanosecond),
	})
}
