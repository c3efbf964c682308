package register

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// lookTime bounds the look at the other workers.
const lookTime = 5 * time.Second

// lookForPartner warns if the worker is a pair with none of those that the registry holds.
func (r *Runner) lookForPartner(ctx context.Context, rec *worker.Worker) {
	if r.cfg.Others == nil || rec.Role == worker.Aggregated || rec.Draining {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	others, err := r.cfg.Others(ctx)
	if err != nil {
		return // the plugins' pages say the same
	}
	if why := partnerless(rec, others); why != "" {
		r.log.LogAttrs(ctx, slog.LevelWarn, "the worker has no partner yet", slog.String(logkey.Why, why))
	}
}

// partnerless says why the worker is a pair with none of the others of its model. It
// returns "" if it is, or if none of them has the other role.
func partnerless(rec *worker.Worker, others []*worker.Worker) string {
	other := worker.Decode
	if rec.Role == worker.Decode {
		other = worker.Prefill
	}
	var differ []string
	for _, o := range others {
		if o.Role != other || o.Draining || o.Namespace != rec.Namespace || !slices.ContainsFunc(o.Models, rec.Answers) {
			continue
		}
		d := rec.Fit().Difference(o.Fit())
		if d == "" {
			return ""
		}
		if !slices.Contains(differ, d) {
			differ = append(differ, d)
		}
	}
	if len(differ) == 0 {
		return ""
	}
	if more := len(differ) - mostDifferences; more > 0 {
		differ = append(differ[:mostDifferences], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("it and the %s workers of its model are of different %s: no two of them are a pair; start them alike",
		other, strings.Join(differ, "; "))
}

// mostDifferences is how many differences are told.
const mostDifferences = 8
