package admintest

import (
	"math"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// NightState is a bad night: a worker aside, a stale view, a degraded stream,
// and a model whose name is an attack.
func NightState(now time.Time) admin.State {
	ago := func(d time.Duration) admin.Time { return admin.At(now.Add(-d)) }
	return admin.State{
		Version: "v0.1.0", StartedAt: ago(26*time.Hour + 3*time.Minute).Time, Now: now, Ready: true,
		BodyBytes: 101 << 20, BodyLimit: 128 << 20, BodiesTight: true,
		Troubles: []trouble.Trouble{
			{Kind: trouble.ModelUnserved, Subject: "qwen3-8b", Since: ago(95 * time.Second).Time, What: `Model <script>alert("m")</script> cannot be served: all its decode workers (2) are set aside: connect-failed`},
			{Kind: trouble.QueueFull, What: "The prefill workers of model llama-3.1-70b have 12480 prompt tokens queued, the limit is 12000"},
			{Kind: trouble.ViewStale, Since: ago(190 * time.Second).Time, What: "The view of the workers, revision 418, is no longer confirmed (the file cannot be read)"},
			{Kind: trouble.KVEventsLost, Count: 3, What: "KV events of 3 of 6 workers are degraded: 10.0.1.3:8000 (<b>x</b>)", Do: "See <b>it</b>"},
		},
		View: admin.View{Revision: 418, Source: "file /etc/baton/workers.yaml", Age: 190 * time.Second, Stale: true, StaleReason: "the file cannot be read"},
		Keys: []admin.KeyRow{
			{Model: "llama-3.1-70b", Activation: "prefill-ready", CanServe: true, How: "prefill and decode apart (sglang)", Prefill: 1, Decode: 2, QueuedTokens: 12480, MaxQueuedTokens: 12000},
			{Model: `<script>alert("m")</script>`, Namespace: "lab", Activation: "decode-waiting", Reason: "no prefill worker"},
			{Model: "qwen3-8b", Activation: "prefill-ready", Reason: "all its decode workers (2) are set aside: connect-failed", Since: ago(95 * time.Second), Prefill: 1, Decode: 2},
		},
		Workers: nightWorkers(ago),
		Channels: []admin.ChannelRow{
			{Name: "tcp://10.0.0.1:20080", Up: true, Since: ago(time.Hour), Messages: 90211},
			{Name: "nats://10.0.0.2:4222 <all>", Since: ago(time.Minute), Messages: 3, Refused: map[string]uint64{"unknown_worker": 4}, Reason: "connection refused"},
			{Name: "bind 0.0.0.0:5557", Up: true, Since: ago(time.Hour), Messages: 12, Refused: map[string]uint64{"too_many_peers": 3}, Waiting: 256, MaxWaiting: 256},
		},
		Lately: []admin.Lately{{At: ago(18 * time.Second), Text: "1 of 2 prefill workers left"}, {At: ago(40 * time.Minute), Text: "2 of 6 decode workers joined"}},
		OwnSum: "00000000000000a1",
		Replicas: []admin.ReplicaRow{
			{Address: "10.0.0.2:9002", Name: "b@10.0.0.2:9002", State: "sharing", Since: ago(time.Hour), Heard: ago(400 * time.Millisecond), Late: 0.0013, Told: true, Legs: 12, PrefillTokens: 18000, DecodeBlocks: 900, Sum: "00000000000000b2"},
			{Address: "10.0.0.3:9002", Name: "c@10.0.0.3:9002", State: "silent", Since: ago(9 * time.Second), Heard: ago(11 * time.Second), Error: "<no answer>", Legs: 2, Sum: "00000000000000c3", DiffersSince: ago(30 * time.Second)},
			{Address: "10.0.0.4:9002", State: "not shared", Since: ago(time.Minute), Error: "it is of a version before 0.2", Sum: "0000000000000000"},
		},
		Shadow: &admin.Shadow{
			At: new(ago(40 * time.Second).Time), Requests: 2048, Minutes: 6,
			Rows:  []admin.ShadowRow{{Name: "measured", Hit: 0.412, P50: 0.31, P99: 2.2}, {Name: "policy in force, simulated", Hit: 0.415, P50: 0.305, P99: 2.1}, {Name: "shadow policy, simulated", Hit: 0.52, P50: 0.25, P99: 1.4}},
			Error: &admin.ShadowRow{Hit: 0.003, P50: -0.016, P99: -0.045},
		},
		Transitions: []admin.Transition{{At: ago(4*time.Minute + 11*time.Second), What: "worker 8", From: "healthy", To: "aside", Why: "connection refused"}},
		Config:      "admin:\n  address: 127.0.0.1:9902 # <loopback>\n",
	}
}

func nightWorkers(ago func(time.Duration) admin.Time) []admin.WorkerRow {
	return []admin.WorkerRow{
		{
			ID: 7, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: "10.0.0.7:8000", Models: []string{"llama-3.1-70b"}, Health: admin.Healthy,
			Facts: admin.FactsRow{State: "known", Since: ago(time.Hour), URL: "http://10.0.0.7:8000", As: "auto", Version: "0.5.23", ReadAt: ago(20 * time.Second)},
			Pair:  worker.PairFacts{worker.EngineVersion: "0.5.23", worker.Weights: "/models/<llama>", worker.KVDType: "auto"},
			Ranks: []admin.RankRow{{Requests: 3, PrefillTokens: 12480, IndexBlocks: 90211, CapacityBlocks: 120000, Events: admin.EventStream{State: admin.Connected, LastSequence: new(uint64(88123)), LastAt: ago(time.Minute), AsOf: ago(time.Second)}}},
		},
		{
			ID: 8, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: "10.0.0.8:8000", Models: []string{"llama-3.1-70b"},
			Health: admin.Aside, Reason: "connection refused", Since: ago(4*time.Minute + 11*time.Second),
			Ranks: []admin.RankRow{{Events: admin.EventStream{State: admin.Lost, LastSequence: new(uint64(4410)), Reason: "connection refused"}}},
		},
		{
			ID: 1<<64 - 1, Role: worker.Decode, Engine: worker.SGLang, Endpoint: "10.0.1.3:8000", Models: []string{"llama-3.1-70b", "<b>x</b>"}, Namespace: "lab", Health: admin.Healthy,
			Ranks: []admin.RankRow{
				{DPRank: 0, Requests: 21, DecodeBlocks: 4312, IndexBlocks: 50000, ShedBlocks: 1234, Events: admin.EventStream{State: admin.Connected, LastSequence: new(uint64(12)), AsOf: ago(11 * time.Minute)}},
				{DPRank: 1, Requests: 18, DecodeBlocks: 3999, IndexBlocks: 48211, Events: admin.EventStream{State: admin.Connected, LastSequence: new(uint64(9)), Degraded: true, Reason: "gap 4..6, no replay", Via: "tcp://10.0.0.1:20080", Refused: map[string]uint64{"unknown_parent": 12, "partial_block": 300}}},
			},
		},
		{ID: 31, Role: worker.Decode, Engine: worker.SGLang, Endpoint: "10.0.1.4:8000", Models: []string{"llama-3.1-70b"}, Health: admin.Recovering, Reason: "a probe succeeded", Since: ago(6 * time.Second), StaleSince: ago(42 * time.Second), Ranks: []admin.RankRow{{Requests: 1, DecodeBlocks: 12}}},
		{
			ID: 33, Role: worker.Aggregated, Endpoint: "10.0.1.6:8000", Health: admin.Healthy, Ranks: []admin.RankRow{{}},
			Facts: admin.FactsRow{State: "unknown", Since: ago(40 * time.Second), URL: "http://10.0.1.6:8000", As: "auto", Failures: 5, Error: "/server_info: <connection refused>"},
		},
		{ID: 32, Role: worker.Decode, Engine: worker.SGLang, Endpoint: "10.0.1.5:8000", Models: []string{"llama-3.1-70b"}, Health: admin.Draining, Ranks: []admin.RankRow{{Requests: 2, DecodeBlocks: 200}}},
	}
}

// NightJournal holds one decision of each kind.
func NightJournal(now time.Time) (*journal.Journal, error) {
	j, err := journal.New(8)
	if err != nil {
		return nil, err
	}
	n := night{now}
	n.lostAndTriedAgain(j)
	h := j.Add(func(r *decision.Record) {
		n.base(r, `<img src=x onerror=alert(1)>`, 2*time.Minute)
		r.Model, r.TokenSource, r.ISLTokens, r.PromptBlocks = `<script>alert("m")</script>`, "", 0, 0
	})
	j.End(h, decision.Refused, "no_worker", 503, n.ago(2*time.Minute-300*time.Microsecond))
	h = j.Add(func(r *decision.Record) {
		n.base(r, "77aa-full", 90*time.Second)
		r.Prefill.Mode, r.Prefill.Refused = "kv", "its workers have 12480 prompt tokens queued, the limit is 12000"
	})
	j.End(h, decision.Refused, "prefill_saturated", 429, n.ago(90*time.Second-200*time.Microsecond))
	j.Add(func(r *decision.Record) {
		n.base(r, "c1d2-estimate", time.Second)
		r.TokenSource, r.TokenReason = decision.ByteEstimate, "tokenize timed out"
		prefill(r, p7(), "10.0.0.7:8000", 12)
		r.Prefill.Rows()[0].Estimated = true
		decode(r)
	})
	return j, nil
}

// night is the time at which the decisions are looked at.
type night struct{ now time.Time }

func (n night) ago(d time.Duration) time.Time { return n.now.Add(-d) }

// lostAndTriedAgain is a request whose first prefill is lost.
func (n night) lostAndTriedAgain(j *journal.Journal) {
	h := j.Add(func(r *decision.Record) {
		n.base(r, "5f0c-lost", 5*time.Minute)
		prefill(r, p8(), "10.0.0.8:8000", 41)
		r.Prefill.OverlapBlocks = 0
		decode(r)
	})
	j.Mark(h, decision.PrefillStarted, n.ago(5*time.Minute-time.Millisecond))
	j.LegEnd(h, decision.LegFailed, "connection lost", n.ago(5*time.Minute-130*time.Millisecond))
	j.Update(h, func(r *decision.Record) {
		r.Meet("503 at /v1/chat/completions: Envoy: UC,upstream_reset_before_response_started{connection_termination}", "503 at /v1/chat/completions: <b>gone</b>")
	})
	j.End(h, decision.Retried, "prefill connection lost", 0, n.ago(5*time.Minute-131*time.Millisecond))
	h = j.Add(func(r *decision.Record) {
		n.base(r, "5f0c-lost", 5*time.Minute-132*time.Millisecond)
		r.Attempt = 2
		prefill(r, p7(), "10.0.0.7:8000", 12)
		decode(r)
	})
	start := n.ago(5*time.Minute - 132*time.Millisecond)
	j.Mark(h, decision.PrefillStarted, start.Add(1200*time.Microsecond))
	j.Mark(h, decision.PrefillWell, start.Add(180*time.Millisecond))
	j.Mark(h, decision.ResponseHeaders, start.Add(181*time.Millisecond))
	j.Mark(h, decision.PrefillEnded, start.Add(190*time.Millisecond))
	j.End(h, decision.OK, "", 200, start.Add(4200*time.Millisecond))
}

func (n night) base(r *decision.Record, id string, before time.Duration) {
	r.Time, r.RequestID, r.Attempt, r.Model, r.Path = n.ago(before), id, 1, "llama-3.1-70b", "/v1/chat/completions"
	r.BodyBytes, r.TokenSource, r.ISLTokens, r.PromptBlocks, r.BlockSize = 2231, decision.EngineTokenize, 2561, 40, 64
	r.DecisionIn, r.Outcome = 84*time.Microsecond, decision.Routed
}

func p7() worker.Rank { return worker.Rank{ID: 7} }
func p8() worker.Rank { return worker.Rank{ID: 8} }

// prefill picks one of two, of which 8 costs 15.2.
func prefill(r *decision.Record, to worker.Rank, endpoint string, cost7 float64) {
	const cost8 = 15.2
	r.Prefill.Rank, r.Prefill.Mode, r.Prefill.Reason, r.Prefill.Endpoint = to, "kv", "lowest-cost", endpoint
	r.Prefill.OverlapBlocks, r.Prefill.Cost = 12, min(cost7, cost8)
	r.Prefill.Offer(&decision.Row{Rank: p8(), UncachedTokens: 2561, ActivePrefillTokens: 640, ActiveRequests: 1, PrefillCost: cost8, Cost: cost8})
	r.Prefill.Offer(&decision.Row{Rank: p7(), OverlapBlocks: 12, PredictedBlocks: 5, HostBlocks: 3, DiskBlocks: 8, CachedTokens: 768, UncachedTokens: 1793, CreditBlocks: 12, ActivePrefillTokens: 12480, ActiveRequests: 3, PrefillCost: cost7, Cost: cost7})
}

func decode(r *decision.Record) {
	big := worker.Rank{ID: 1<<64 - 1, DPRank: 1}
	r.Decode.Rank, r.Decode.Mode, r.Decode.Reason, r.Decode.Endpoint, r.Decode.Cost = big, "kv", "lowest-cost", "10.0.1.3:8000", 4039
	r.Decode.Offer(&decision.Row{Rank: worker.Rank{ID: 31}, ActiveDecodeBlocks: 12, Cost: math.Inf(1), Out: true, Note: "recovering"})
	r.Decode.Offer(&decision.Row{Rank: big, ActiveDecodeBlocks: 3999, ActiveRequests: 18, DecodeCost: 4039, Cost: 4039})
	r.Decode.Offer(&decision.Row{Rank: worker.Rank{ID: big.ID}, ActiveDecodeBlocks: 4312, ActiveRequests: 21, DecodeCost: 4352, Cost: 4352})
}
