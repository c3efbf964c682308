package admintest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// FleetState is a fleet of n workers in pairs of pools, in which some are in trouble.
func FleetState(now time.Time, n int, models ...string) admin.State {
	s := NightState(now)
	s.Now, s.Transitions = now, nil
	s.Lately = []admin.Lately{{At: admin.At(now.Add(-18 * time.Second)), Text: "1 of 2 prefill workers left"}}
	s.BodyBytes, s.BodiesTight, s.View.Stale, s.Keys, s.Workers, s.Channels, s.Replicas, s.OwnSum = 3<<20, false, false, nil, nil, nil, nil, ""
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		w := admin.WorkerRow{
			ID: worker.ID(r.Uint64()), Role: worker.Prefill + worker.Role(i%2), Endpoint: fmt.Sprintf("10.%d.%d.%d:8000", 8+i/65536, i/256%256, i%256),
			Models: []string{models[i/2%len(models)]}, Health: admin.Healthy, Pair: worker.PairFacts{worker.EngineVersion: "0.5.23"},
			Ranks: []admin.RankRow{{Requests: r.IntN(30), IndexBlocks: r.Int64N(90000), CapacityBlocks: 120000, Events: admin.EventStream{State: admin.Connected, LastSequence: new(r.Uint64N(1e6)), AsOf: admin.At(s.Now)}}},
		}
		if w.Role == worker.Prefill {
			w.Ranks[0].PrefillTokens = r.Int64N(64000)
		} else {
			w.Ranks[0].DecodeBlocks = r.Int64N(9000)
		}
		switch {
		case i%400 == 7:
			w.Health, w.Reason, w.Since = admin.Aside, "connection refused", admin.At(s.Now.Add(-time.Minute))
		case i%300 == 11:
			w.Health, w.Reason, w.Since = admin.Recovering, "a probe succeeded", admin.At(s.Now.Add(-6*time.Second))
		case i%250 == 13:
			w.Ranks[0].Events = admin.EventStream{State: admin.Lost, Since: admin.At(s.Now.Add(-time.Minute)), Reason: "EOF"}
		}
		s.Workers = append(s.Workers, w)
	}
	for _, m := range models {
		s.Keys = append(s.Keys, admin.KeyRow{Model: m, Activation: "prefill-ready", CanServe: true, How: "prefill and decode apart (sglang)", Prefill: n / 2, Decode: n / 2})
	}
	return s
}

// BusyHour is an hour with requests, in which prefill fails for a while.
func BusyHour(end time.Time) *hour.Hour {
	start := end.Add(-58 * time.Minute)
	h := hour.New(start)
	r := rand.New(rand.NewPCG(3, 4))
	for i := 0; ; i++ {
		at := start.Add(time.Duration(i) * hour.Step)
		if !at.Before(end) {
			return h
		}
		wave := 1 + float64((i*7)%60)/60
		for range int(30 * wave) {
			outcome := "ok"
			switch x := r.Float64(); {
			case i > 200 && i < 230 && x < 0.4:
				outcome = "failed"
			case x < 0.03:
				outcome = "client_left"
			case x < 0.04:
				outcome = "refused"
			}
			h.Ended(at, outcome)
			h.Took(at, time.Duration((80+60*wave+200*r.ExpFloat64())*float64(time.Millisecond)), time.Duration((18+4*r.ExpFloat64())*float64(time.Millisecond)))
			n := r.Int64N(6000) + 100
			h.Prompt(at, hour.Prompt{Asked: n, Available: n * 7 / 10, Predicted: n * 6 / 10, Told: n, Delivered: n * (50 + r.Int64N(10)) / 100})
		}
		h.Sample(at, hour.Sample{Role: worker.Prefill, QueueSeconds: wave * r.Float64()}, hour.Sample{Role: worker.Decode, QueueSeconds: 0.1, DecodeBlocks: int64(8000 * wave)})
	}
}

// FullJournal holds as many decisions as the page shows, each with tables of all rows.
func FullJournal(now time.Time) (*journal.Journal, error) {
	j, err := journal.New(256)
	if err != nil {
		return nil, err
	}
	for i := range 60 {
		h := j.Add(func(r *decision.Record) {
			r.Time, r.RequestID, r.Attempt, r.Model, r.Path = now.Add(-time.Duration(60-i)*time.Second), fmt.Sprintf("5f0c-%d", i), 1, "llama-3.1-70b", "/v1/chat/completions"
			r.BodyBytes, r.TokenSource, r.ISLTokens, r.PromptBlocks, r.BlockSize, r.DecisionIn, r.Outcome = 2231, decision.EngineTokenize, 2561, 40, 64, 84*time.Microsecond, decision.Routed
			for k, c := range []*decision.Choice{&r.Prefill, &r.Decode} {
				c.Rank, c.Mode, c.Reason, c.Endpoint, c.Cost = worker.Rank{ID: worker.ID(1 + k)}, "kv", "lowest-cost", "10.8.0.1:8000", 12
				for m := range 16 {
					c.Offer(&decision.Row{Rank: worker.Rank{ID: worker.ID(m + 1)}, Endpoint: "10.8.0.1:8000", OverlapBlocks: int64(m), Cost: float64(12 + m)})
				}
			}
		})
		at := now.Add(-time.Duration(60-i) * time.Second)
		j.Mark(h, decision.PrefillStarted, at.Add(2*time.Millisecond))
		j.Mark(h, decision.PrefillWell, at.Add(180*time.Millisecond))
		j.Mark(h, decision.PrefillEnded, at.Add(182*time.Millisecond))
		j.Mark(h, decision.ResponseHeaders, at.Add(190*time.Millisecond))
		j.Mark(h, decision.FirstToken, at.Add(210*time.Millisecond))
		j.End(h, decision.OK, "", 200, at.Add(900*time.Millisecond))
	}
	return j, nil
}
