package plugin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// answerWithin is how long a worker whose record has expired may take to answer. Its models cost
// no engine anything to tell; a busy event loop may still be late.
const answerWithin = 5 * time.Second

// expired follows the workers whose records have expired, asks them and tells of them.
type expired struct {
	plugin  *plugin
	sources []*discovery.Expiry
	client  *http.Client
}

// source wraps a source whose records have leases.
func (x *expired) source(inner discovery.Source, before func() ([]discovery.Entry, bool)) discovery.Source {
	s := &discovery.Expiry{Inner: inner, Before: before, Ask: x.ask, Told: x.told}
	x.sources = append(x.sources, s)
	return s
}

// ask asks a worker which models it serves, at each of its ports until one answers.
// If none does, health looks into it, too: silent there is silent to two witnesses.
func (x *expired) ask(ctx context.Context, w *worker.Worker) discovery.Answer {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	refused, silent := true, true
	var last error
	for dp := range worker.DPRank(w.Ports()) { //nolint:gosec // bounded
		models, err := x.modelsAt(ctx, w.EndpointOf(dp))
		if err == nil {
			return discovery.Answer{Kind: discovery.Heard, Models: models}
		}
		last = err
		refused = refused && errors.Is(err, syscall.ECONNREFUSED)
		r, now := worker.Rank{ID: w.ID, DPRank: dp}, time.Now()
		x.plugin.health.Suspect(r, now)
		h, known := x.plugin.health.Lookup(r)
		silent = silent && known && h.Silent()
	}
	switch {
	case refused:
		return discovery.Answer{Kind: discovery.Refused, Why: "it refuses connections"}
	case silent:
		return discovery.Answer{Kind: discovery.Silent, Why: "it does not answer (" + cut(last.Error()) + "), and its health shows the same"}
	}
	return discovery.Answer{Kind: discovery.Doubtful, Why: last.Error()}
}

// modelsAt asks an engine for its models. Any answer shows that it is there.
func (x *expired) modelsAt(ctx context.Context, at worker.Endpoint) (models []string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/v1/models", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := x.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20)) // a part of a page names no model
		models = health.ModelsIn(body)
	}
	return models, nil
}

// told tells what has become of records that have expired, of like ones together.
func (x *expired) told(news []discovery.Expired) {
	type change struct{ from, to, why string }
	groups := map[change][]discovery.Expired{}
	for _, n := range news {
		c := change{"registered", "expired", "nobody has withdrawn them: they get no new requests, and leave a lease later"}
		if n.Stale {
			c.to, c.why = "stale", "half or more of a role have expired together: they are served while they answer"
		}
		if n.Recalled {
			c.from = "known before the start"
			c.why = "nobody of their role is registered: they are asked, and get requests once they answer"
			if n.Stale {
				c.why = "nobody of their role is registered: they are served while they answer"
			}
		}
		if n.Over != "" {
			c = change{c.to, "left", n.Over}
		}
		if n.Back {
			c.to = "registered"
		}
		groups[c] = append(groups[c], n)
	}
	for c, g := range groups {
		level := slog.LevelWarn
		if c.to == "registered" {
			level = slog.LevelInfo
		}
		names := firstOf(len(g), func(i int) string { return named(g[i].Worker) })
		x.plugin.log.Log(context.Background(), level, "records of workers: "+c.to, logkey.Workers, len(g), logkey.Expired, names, logkey.From, c.from, logkey.Since, g[0].Since, logkey.Why, c.why)
		x.plugin.history.add(admin.Transition{At: admin.At(time.Now()), What: "record of worker " + names, From: c.from, To: c.to, Why: c.why})
	}
}

// stale says since when the records of workers that go on without have expired.
func (x *expired) stale() map[worker.ID]time.Time {
	out := map[worker.ID]time.Time{}
	for _, s := range x.sources {
		for _, e := range s.Expired() {
			if e.Stale {
				out[e.Worker.ID] = e.Since
			}
		}
	}
	return out
}
