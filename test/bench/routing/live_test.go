package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fast is a scale at which tests take no time.
var fast = scale{Speedup: 1000, Page: 16}

// promptOf returns the tokens that an engine makes of a request's body.
func promptOf(t *testing.T, body []byte) []uint32 {
	t.Helper()
	var q struct {
		Model  string `json:"model"`
		Prompt string `json:"prompt"`
	}
	require.NoError(t, json.Unmarshal(body, &q))
	require.Equal(t, modelName, q.Model)
	return enginesim.Tokenize(q.Prompt)
}

func TestPromptsShareTheTokensOfTheBlocksThatTheTraceShares(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 1600, "hash_ids": [1, 2, 3, 40]}
{"timestamp": 0, "input_length": 1599, "hash_ids": [1, 2, 5, 40]}
{"timestamp": 0, "input_length": 20, "hash_ids": [9]}
{"timestamp": 0, "input_length": 1600, "hash_ids": [1, 2, 3, 41]}`)
	var got [4][]uint32
	for i := range trace {
		got[i] = promptOf(t, fast.body(&trace[i]))
		require.Len(t, got[i], fast.words(&trace[i]))
	}
	require.Len(t, got[0], 3*16+2, "64 of 512 tokens are 2 of 16")
	require.Equal(t, got[0][:32], got[1][:32])
	require.NotEqual(t, got[0][32], got[1][32], "blocks differ from their first token on")
	require.Equal(t, got[0][48], got[1][48], "what is left is the same in both")
	require.Len(t, got[1], 3*16+1)
	require.Equal(t, got[0][:48], got[3][:48])
	require.NotEqual(t, got[0][48], got[3][48], "what is left is the trace's too")
	require.Len(t, got[2], 1, "no prompt is empty")

	shrunk := fast.shrink(trace)
	require.Equal(t, 1600, shrunk[0].Tokens)
	require.Equal(t, 3*512+32, shrunk[1].Tokens)
	require.Equal(t, 32, shrunk[2].Tokens)
	require.Equal(t, 1599, trace[1].Tokens, "the trace is left as it is")
}

func TestBlocksHaveWordsOfTheirOwn(t *testing.T) {
	seen := map[uint32]bool{}
	for h := range uint64(500) {
		p := read(t, `{"timestamp": 0, "input_length": 512, "hash_ids": [`+number(float64(h))+`]}`)[0]
		tokens := promptOf(t, fast.body(&p))
		require.Len(t, tokens, 16)
		require.False(t, seen[tokens[0]], h)
		seen[tokens[0]] = true
	}
}

func TestRequestsOfOneTimestampAreSpreadUntilTheNext(t *testing.T) {
	var trace []replay.Request
	for _, at := range []time.Duration{0, 0, 0, 3000, 5000, 5000} {
		trace = append(trace, replay.Request{At: at})
	}
	replay.Spread(trace)
	var got []time.Duration
	for _, p := range trace {
		got = append(got, p.At)
	}
	require.Equal(t, []time.Duration{0, 1000, 2000, 3000, 5000, 6000}, got)
}

// engine runs a worker in this process until the test ends.
func engine(t *testing.T, cfg enginesim.Config) (*enginesim.Sim, *enginesim.Client) {
	t.Helper()
	cfg.Role, cfg.PageSize, cfg.KVEventsPort, cfg.ReplayPort = worker.Aggregated, fast.Page, enginesim.Off, enginesim.Off
	cfg.PrefillPerToken, cfg.MaxRunning = enginesim.None, 1
	s, err := enginesim.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	c := newClient(s.URL() + fast.path())
	t.Cleanup(func() {
		c.close()
		cancel()
		require.NoError(t, <-ended)
	})
	return s, &enginesim.Client{BaseURL: s.URL(), HTTP: c.http}
}

func TestTheHitRateIsWhatTheWorkersCounted(t *testing.T) {
	// Time and room enough that a request which comes late changes no other's hits.
	slow, room := scale{Speedup: 10, Page: fast.Page}, 64
	trace := slow.shrink(read(t, tiny))
	s, c := engine(t, enginesim.Config{CapacityBlocks: room})
	p, err := play(t.Context(), s.URL(), []*enginesim.Client{c}, trace, slow)
	require.NoError(t, err)
	require.Empty(t, p.faults)
	require.Zero(t, p.failed())

	prompt, cached := 0, 0
	kept := s.Requests(warmUps)
	require.Len(t, kept, len(trace))
	for _, r := range kept {
		prompt, cached = prompt+r.PromptTokens, cached+r.CachedTokens
	}
	f := p.figures(slow)
	require.InDelta(t, float64(cached)/float64(prompt), f.Hit, 1e-12)
	require.InDelta(t, 6.0*512/(2*1024+3*1536), f.Hit, 1e-12, "two blocks each of the last three requests")
	require.InDelta(t, 1, f.Busiest, 0)
	require.InDelta(t, f.Hit, sample(t, trace, oneBlockASecond(1, room), "kv", 1).Figures.Hit, 1e-12, "as simulated")
	require.Positive(t, f.First.P50)
	require.LessOrEqual(t, f.First.P50, f.First.P99)
	require.Positive(t, p.idle)
	require.GreaterOrEqual(t, p.took, trace[4].At/10, "no request is sent before its time")
}

func TestShotsAreTheTracesRequestsSoManyTimesSooner(t *testing.T) {
	trace := read(t, tiny)
	shots := fast.shots(trace)
	require.Len(t, shots, 5)
	require.Equal(t, 11*time.Millisecond, shots[4].at)
	require.Equal(t, fast.body(&trace[2]), shots[2].body)
}

func TestFiguresAreInTheTracesTimeAndByWhatWasComputed(t *testing.T) {
	p := played{
		heard:  []heard{{err: io.EOF}, {ttft: time.Millisecond}, {ttft: 3 * time.Millisecond}, {err: io.EOF}},
		engine: []tokenCount{{prompt: 10, cached: 5}, {prompt: 10}},
	}
	f := p.figures(fast)
	require.Equal(t, 2*time.Second, f.First.Mean)
	require.Equal(t, time.Second, f.First.P50)
	require.InDelta(t, 0.25, f.Hit, 1e-12)
	require.InDelta(t, 10/7.5, f.Busiest, 1e-12)
}

func TestWorkersAreReadWhenTheyHaveNothingLeftToDo(t *testing.T) {
	s, c := engine(t, enginesim.Config{CapacityBlocks: 8, PrefillBase: 300 * time.Millisecond})
	l := newClient(s.URL() + fast.path())
	t.Cleanup(l.close)
	sent := make(chan heard)
	p := read(t, tiny)[0]
	go func() { sent <- l.send(t.Context(), fast.body(&p), time.Now()) }()
	require.NoError(t, stack.Await(t.Context(), "the request to run", func() bool { return s.State(false).Running == 1 }))
	got, err := idle(t.Context(), []*enginesim.Client{c})
	require.NoError(t, err)
	require.Equal(t, []int{0, 1}, []int{got.running, got.ok})
	require.NoError(t, (<-sent).err)
}

func TestFailedRequestsAreCountedAndHaveNoTime(t *testing.T) {
	s, c := engine(t, enginesim.Config{CapacityBlocks: 8})
	p := &played{}
	l := newClient(s.URL() + fast.path())
	t.Cleanup(l.close)
	before, err := idle(t.Context(), []*enginesim.Client{c})
	require.NoError(t, err)
	require.NoError(t, s.SetFault(enginesim.Fault{Mode: enginesim.FaultError, When: enginesim.Before, Status: 503, Count: 1}))
	trace := read(t, tiny)
	var shots []shot
	for i := range trace {
		shots = append(shots, shot{at: time.Duration(i), body: fast.body(&trace[i])})
	}
	p.heard = l.drive(t.Context(), shots)
	after, err := idle(t.Context(), []*enginesim.Client{c})
	require.NoError(t, err)
	p.compare(before, after)
	require.Equal(t, 1, p.failed())
	require.Len(t, p.faults, 3)
	require.Contains(t, p.faults[0], "1 of 5 requests failed, the first with: status 503")
	require.Contains(t, p.faults[1], "answered 4 legs: expected one for each of 5")
	require.Contains(t, p.faults[2], "1 legs failed")
	for _, h := range p.heard {
		require.Equal(t, h.err == nil, h.ttft > 0)
	}
	require.Zero(t, (&played{heard: []heard{{err: io.EOF}}}).figures(fast))
}

func TestACountThatIsNotTheAnswersOrABrokenRuleIsAFault(t *testing.T) {
	p := &played{heard: []heard{{prompt: 10, cached: 4}}}
	p.compare(census{tokens: []tokenCount{{5, 5}}, ok: 1, breaches: 1}, census{tokens: []tokenCount{{15, 8}}, ok: 2, breaches: 3})
	require.Equal(t, []string{
		"the prefill workers saw their rules broken 2 times",
		"answers told of 4 cached of 10 prompt tokens: expected the workers' own count, 3 of 10",
	}, p.faults)
	require.Equal(t, []tokenCount{{10, 3}}, p.engine)
}

func TestAnAnswerCountsOnlyWhenItIsWhole(t *testing.T) {
	usage := `data: {"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n\n"
	done := "data: [DONE]\n\n"
	for name, c := range map[string]struct{ text, want string }{
		"whole":             {"data: {\"choices\":[]}\n\n" + usage + done, ""},
		"empty":             {"", "broke off"},
		"without its end":   {usage, "broke off"},
		"without its usage": {"data: {\"usage\":null}\n\n" + done, "broke off"},
		"with an error":     {"data: {\"error\":{\"message\":\"x\"}}\n\n" + usage + done, `{"message":"x"}`},
		"not JSON":          {"data: {\n\n" + usage + done, "unexpected end"},
	} {
		var h heard
		err := h.read(strings.NewReader(c.text), time.Now())
		if c.want == "" {
			require.NoError(t, err, name)
			require.Equal(t, []int{7, 3}, []int{h.prompt, h.cached})
			require.Positive(t, h.ttft)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestADriveThatIsInterruptedSaysSoOfEachRequestLeft(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	c := newClient("http://127.0.0.1:1" + fast.path())
	t.Cleanup(c.close)
	for _, h := range c.drive(ctx, []shot{{at: time.Hour}, {at: 2 * time.Hour}}) {
		require.ErrorContains(t, h.err, "stopped")
	}
}

func TestThePluginsDecisionsAreJudged(t *testing.T) {
	var list []decision.Record
	require.NoError(t, json.Unmarshal([]byte(`[
		{"attempt":1,"token_source":"engine tokenize","isl_tokens":100,"block_size":16,"prefill":{"worker_id":"1","overlap_blocks":2}},
		{"attempt":2,"token_source":"byte estimate","isl_tokens":60,"block_size":16,"prefill":{"worker_id":"1","overlap_blocks":3}},
		{"attempt":1,"token_source":"engine tokenize","isl_tokens":10,"block_size":16}]`), &list))
	require.Equal(t, "engine tokenize", string(decision.EngineTokenize))
	var r liveRun
	r.judge(list, &liveMode{tokens: "auto"}, false)
	require.InDelta(t, 0.5, r.Believed, 1e-12)
	require.Equal(t, 1, r.estimated)
	require.Equal(t, []string{"1 attempts were fresh: expected none", "1 attempts were served by other roles than they should"}, r.faults)
	r = liveRun{}
	r.judge(list, &liveMode{tokens: "estimate"}, false)
	require.Zero(t, r.estimated)
}

func TestTheNewestDecisionsAreThoseOfAllReplicas(t *testing.T) {
	at := func(seconds ...int64) (list []decision.Record) {
		for _, s := range seconds {
			list = append(list, decision.Record{Time: time.Unix(s, 0), ISLTokens: s})
		}
		return list
	}
	all, parts := newest([][]decision.Record{at(9, 6, 1), at(8, 7, 2)}, 4)
	require.Equal(t, at(9, 8, 7, 6), all)
	require.Equal(t, []int{2, 2}, parts)
	all, parts = newest([][]decision.Record{at(3), nil}, 4)
	require.Equal(t, at(3), all)
	require.Equal(t, []int{1, 0}, parts)
}

func TestEnvoyAsksTheReplicasForRequestsInTurnWhateverElseItAsks(t *testing.T) {
	config, err := envoyConfig(t.Context(), "", t.TempDir(), []int{9001, 9002})
	require.NoError(t, err)
	type address struct {
		Socket struct {
			Port int `json:"port_value"`
		} `json:"socket_address"`
	}
	type endpoint struct{ Endpoint struct{ Address address } }
	var got struct {
		Resources struct {
			Clusters []struct {
				Name string
				Load struct {
					Endpoints []struct {
						LB []endpoint `json:"lb_endpoints"`
					}
				} `json:"load_assignment"`
			}
		} `json:"static_resources"`
	}
	require.NoError(t, json.Unmarshal(config, &got))
	for i, name := range []string{"extproc", "extproc_requests"} {
		c := got.Resources.Clusters[i]
		require.Equal(t, name, c.Name)
		var ports []int
		for _, e := range c.Load.Endpoints[0].LB {
			ports = append(ports, e.Endpoint.Address.Socket.Port)
		}
		require.Equal(t, []int{9001, 9002}, ports)
	}
	require.Equal(t, 2, strings.Count(string(config), `"cluster_name": "extproc_requests"`), "the cluster's own and the filter's that picks")
}

func TestEachLiveModeIsComparedWithASimulatedOne(t *testing.T) {
	for _, m := range liveModes(false, true) {
		like, err := chosen(m.like, 8000)
		require.NoError(t, err)
		if m.rival != nil {
			require.NotEmpty(t, m.rival.engine)
			continue
		}
		require.Contains(t, m.prefill, "mode: "+like[0].plugin.Prefill.Mode.String())
		require.Equal(t, like[0].plugin.Estimated, strings.HasPrefix(m.prefill, "mode: kv") && (!m.events || m.source() == ""), m.name)
	}
}

func TestAWorkersSpeedFollowsFromTheScale(t *testing.T) {
	o, err := parse([]string{"-speedup", "10", "-page", "16", "-estimate-ttl", "2m", "-capacity", "7,8"}, io.Discard)
	require.NoError(t, err)
	l := &o.played
	require.InDelta(t, 2500, l.tokensPerSecond(), 1e-9)
	m := liveModes(false, true)
	args := strings.Join(l.prefillArgs(&m[0], 3), " ")
	for _, want := range []string{"--id 3", "--prefill-us-per-token 400", "--prefill-base-us 2000", "--capacity-blocks 7", "--page-size 16", "--max-running 1"} {
		require.Contains(t, args+" ", want+" ")
	}
	require.NotContains(t, args, "kv-events-port")
	require.Contains(t, strings.Join(l.prefillArgs(&m[3], 3), " "), "--kv-events-port -1")
	require.Contains(t, l.pluginConfig(&m[0]), "routed_ttl: 12s\n")
	require.Contains(t, l.pluginConfig(&m[0]), "predicted_ttl: 1s\n")
}

func TestLiveFleetsByName(t *testing.T) {
	o, err := parse([]string{"-live-fleet", "whole+two-slow", "-live-modes", "kv,vllm-kv-aware"}, io.Discard)
	require.NoError(t, err)
	l := &o.played
	require.Zero(t, l.decodes())
	for id, want := range map[int]string{1: "--prefill-us-per-token 800", 2: "--prefill-base-us 4000", 3: "--prefill-us-per-token 400"} {
		args := strings.Join(l.prefillArgs(&l.modes[1], id), " ")
		require.Contains(t, args+" ", want+" ")
		require.Contains(t, args, "--role aggregated")
		require.Contains(t, args, "--engine vllm")
	}
	f := l.simulated()
	require.Equal(t, replay.Whole, f.Ranks[0].Role)
	require.Len(t, f.Ranks[1].Speeds, 1)
	require.Empty(t, f.Ranks[2].Speeds)
	_, err = parse([]string{"-live-fleet", "halves"}, io.Discard)
	require.ErrorContains(t, err, "halves")
	_, err = parse([]string{"-live-modes", "vllm-kv-aware"}, io.Discard)
	require.ErrorContains(t, err, "live mode", "they are for whole requests")
}

func TestAQuickRunIsShortButForWhatWasSet(t *testing.T) {
	o, err := parse([]string{"-quick"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{60, 60, 1, 1, 1, 2}, []int{o.requests, o.played.requests, o.repeats, len(o.capacities), len(o.rates), len(o.played.modes)})
	require.InDelta(t, 20, o.played.scale.Speedup, 0)
	o, err = parse([]string{"-quick", "-live-requests", "5", "-requests", "7", "-repeats", "2", "-speedup", "3", "-live-modes", "random"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{7, 5, 2}, []int{o.requests, o.played.requests, o.repeats})
	require.InDelta(t, 3, o.played.scale.Speedup, 0)
	require.Equal(t, "random", o.played.modes[0].name)
}

func TestWithoutEnvoyTheCommandSaysWhatToDo(t *testing.T) {
	t.Setenv("ENVOY", "/nonexistent/envoy")
	_, err := build(t.TempDir())
	require.ErrorContains(t, err, "/nonexistent/envoy")
	require.ErrorContains(t, err, "-live=false")
}

// beside returns a comparison of three modes whose figures are easy to follow.
func beside() *comparison {
	f := func(hit float64, s float64) replay.Figures {
		d := time.Duration(s * float64(time.Second))
		return replay.Figures{Hit: hit, First: replay.Times{Mean: d, P50: d, P90: 2 * d, P99: 3 * d}, Busiest: 1}
	}
	live := func(name string, fs replay.Figures) liveRow {
		return liveRow{row: row{Mode: name, Figures: fs}, Like: name, Idle: 6, Late: 1, CPU: 0.25}
	}
	c := &comparison{
		options: liveOptions{fleet: fleet{Ranks: 8, Capacity: 1000, Speed: 8000, Overhead: 20 * time.Millisecond}, scale: scale{Speedup: 10, Page: 16}, decode: 2, modes: liveModes(false, true)[:1]},
		Trace:   "x.jsonl", Requests: 1500, Bound: 0.4, Demand: 0.65, Span: 51 * time.Second, All: 12031,
		Live:  []liveRow{live("kv", f(0.30, 1.1)), live("least-loaded", f(0.10, 1.4)), live("random", f(0.12, 3))},
		Slice: map[string]row{"kv": {Figures: f(0.335, 1), LowHit: 0.3, HighHit: 0.34}, "least-loaded": {Figures: f(0.11, 1.3)}, "random": {Figures: f(0.10, 2.8)}},
		Whole: map[string]row{"kv": {Figures: f(0.28, 1.05)}},
	}
	c.Live[0].Exact, c.Live[2].CPU = 0.98, math.NaN()
	return c
}

func TestTheComparisonSaysHowFarLiveAndSimulatedAgree(t *testing.T) {
	c := beside()
	text := c.markdown()
	for _, want := range []string{
		"| kv | live | 30.0 % | – | 98.0 % | 1.10 s | 1.10 s | 2.20 s | 3.30 s | 1.00 | 0 |",
		"|  | simulated, same slice | 33.5 % (30.0–34.0) |", "|  | simulated, all 12031 | 28.0 % |",
		"1500 requests, time ÷ 10, prompts ÷ 32: 8 prefill and 2 decode workers, 1000 blocks a cache",
		"a worker prefills 2500 tokens/s and takes 2ms a prompt",
		"at most 3.5 points apart (kv); 1 of 3 live ones lie within the range that 20 seeds have. The live TTFT p50 less the simulated one is 0.10 s to 0.20 s; the path alone stands for up to 0.04 s.",
		"Pairs of modes in the same order: 2 of 3 by hit rate, 3 of 3 by p50, 3 of 3 by p90.",
		"| kv | 6.0 ms | 1.0 ms | 25 % |", "| random | 6.0 ms | 1.0 ms | – |",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 1, strings.Count(text, "all 12031 |"))
	require.NotContains(t, text, "WARNING")
	require.NoError(t, c.lost())
	plotted := plotLive(c)
	require.Contains(t, plotted, "1500 requests, time ÷ 10")
	require.Equal(t, 7*4, strings.Count(plotted, "fill-opacity"))
	for d := xml.NewDecoder(strings.NewReader(plotted)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
}

func TestModesThatTieLiveStandInNoOrder(t *testing.T) {
	c := beside()
	c.Live[0].First.P50, c.Slice["random"] = c.Live[1].First.P50, c.Slice["least-loaded"]
	same, pairs := c.ordered(func(r *row) float64 { return r.First.P50.Seconds() })
	require.Equal(t, []int{1, 2}, []int{same, pairs}, "kv ties with least-loaded; the simulation has no order of that and random")
}

func TestLatenessEstimatesAndFaultsAreWarnings(t *testing.T) {
	c := beside()
	c.Live[0].Late = 10 // p50 that passed: 110 ms
	require.Empty(t, c.warnings())
	c.Live[0].Late, c.Live[0].Estimated, c.Live[1].Faults = 12, 3, []string{"2 of 9 requests failed"}
	text := c.markdown()
	require.Contains(t, text, "WARNING: kv: requests were sent 12.0 ms late (p99), more than a tenth of the TTFT p50 that passed, 110.0 ms")
	require.Contains(t, text, "WARNING: kv: 3 picks were by the byte estimate")
	require.Contains(t, text, "WARNING: least-loaded: 2 of 9 requests failed")
	require.EqualError(t, c.lost(), "live, mode least-loaded: 2 of 9 requests failed")
}

func TestLiveRepeatsAreSummedUpAsMediansWithTheWorstOfWhatShouldNotBe(t *testing.T) {
	m := liveModes(false, false)[0]
	got := summariseLive(&m, []liveRun{
		{Figures: replay.Figures{Hit: 0.3, First: replay.Times{P95: 3}}, idle: 5, late: 9, cpu: 0.2, errors: 1, faults: []string{"a"}},
		{Figures: replay.Figures{Hit: 0.1, First: replay.Times{P95: 1}}, idle: 7, late: 2, cpu: 0.4, estimated: 2},
		{Figures: replay.Figures{Hit: 0.2, First: replay.Times{P95: 2}}, idle: 6, late: 3, cpu: 0.3, errors: 1, faults: []string{"b"}},
	})
	require.Equal(t, liveRow{
		row: row{Mode: "kv", Figures: replay.Figures{Hit: 0.2, First: replay.Times{P95: 2}}, LowHit: 0.1, HighHit: 0.3, LowP95: 1, HighP95: 3}, Like: "kv",
		Idle: 6, Late: 9, CPU: 0.3, Estimated: 2, Errors: 2, Faults: []string{"a", "b"},
	}, got)
}

// TestPromptsOfATokenizersWordsAreChats of as many words, which begin alike where the trace
// says so.
func TestPromptsOfATokenizersWordsAreChats(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 1600, "hash_ids": [1, 2, 3, 40]}
{"timestamp": 0, "input_length": 1599, "hash_ids": [1, 2, 5, 40]}`)
	sc := fast
	for a := range 2000 {
		sc.Words = append(sc.Words, fmt.Sprintf(" w%d", a))
	}
	require.Equal(t, "/v1/chat/completions", sc.path())
	var texts [2][]string
	for i := range trace {
		var q struct {
			Messages []struct{ Role, Content string }
		}
		require.NoError(t, json.Unmarshal(sc.body(&trace[i]), &q))
		require.Len(t, q.Messages, 1)
		texts[i] = strings.Fields(q.Messages[0].Content)
		require.Len(t, texts[i], sc.words(&trace[i]))
	}
	require.Equal(t, texts[0][:32], texts[1][:32])
	require.NotEqual(t, texts[0][32:48], texts[1][32:48])
	require.Len(t, sc.warmUps(), warmUps)
}
