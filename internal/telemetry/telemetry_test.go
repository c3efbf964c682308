package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTelemetry(t *testing.T, cfg Config) *Telemetry {
	t.Helper()
	tel, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tel.Shutdown(context.Background()) })
	return tel
}

// useAll touches every instrument once.
func useAll(t *testing.T, i *Instruments) {
	t.Helper()
	i.RequestEnded("refused", "no_worker")
	i.AttemptEnded("retried")
	i.WorkerAttempt(7, worker.Decode, "ok")
	i.Decided("prefill", "kv", "lowest_cost", SourceRequestIDs)
	i.ServedAlone("fallback")
	i.ServedElsewhere("other")
	i.SubsetFault("empty")
	i.DecisionTook(80 * time.Microsecond)
	i.FreshPick("prefill_lost")
	i.Failure("no_worker")
	i.Panic("main_leg")
	i.Leg("failed", "status_500")
	i.FirstEvents("token")
	i.PrefillProof("proven")
	i.PairCounted(true)
	i.Seen("decode", "served")
	i.Expected("prefill", 1.05)
	i.Took(&Served{Operation: "chat", Model: "m", Target: time.Second, Late: true, FirstByte: time.Millisecond, FirstToken: time.Second, PerToken: time.Millisecond, Whole: 2 * time.Second, HandOff: "nixl_pull", HandOffAge: time.Second})
	i.Prompt(&PromptTokens{Model: "m", Role: "prefill", Prompt: 10, Available: 8, Predicted: 4})
	i.OverlapLost("m", LossLoad, 64)
	i.Charged(9, "refused")
	i.PrefillWaited(20 * time.Millisecond)
	i.Tokenized(SourceEngineTokenize, "ok", 3*time.Millisecond)
	i.KVEvents(3)
	i.KVRefused("block_size", 3)
	i.KVGap()
	i.Replica("sent")
	i.KVReplay("ok")
	i.KVReset("gap")
	i.KVRestored()
	i.IndexDump("ok")
	i.Aside("aside", "connection_refused")
	i.EngineReport("ok")
	i.HandOffsLost("expired", 1)
	i.FactReading("ok")
	i.ModelFiles("fetched")
	i.Compared("told")
	i.Activation("absent", "decode-waiting", "decode_added")
	i.ClockOff()
	i.LogBroke()
	i.StreamOpened(LegMain)
	i.StreamOpened(LegPrefill)
	i.StreamClosed(LegPrefill)
	_, err := i.Observe(func(o *Observation) {
		o.Ready, o.Revision, o.Age, o.Problems = true, 12, 1500*time.Millisecond, 4
		o.Workers = map[WorkerState]int64{{worker.Prefill, "healthy"}: 2}
		o.Facts, o.Streams, o.Replicas = map[string]int64{"known": 2}, map[string]int64{"lost": 3}, map[string]int64{"sharing": 1}
		o.Ignored = []string{"no-hit-lru-scorer"}
		o.Silent, o.Troubles = 2, map[string]int64{"kv_events_silent": 1, "kind of tomorrow": 3}
		o.Infos = append(o.Infos, WorkerInfo{7, worker.Decode, "10.0.0.7:8000", "10.0.0.7", []string{"m", "a\xffb"}}, WorkerInfo{ID: 8, Role: worker.Prefill, Endpoint: "[::1]:80", Host: "::1"})
		o.Pools = append(o.Pools, PoolLoad{"m", worker.Decode, 2.5, 0.5, 90, 100}, PoolLoad{"m", worker.Prefill, 3, 1, 0, 0})
		o.Keys = map[Standing]int64{{"prefill-ready", true}: 3}
		o.Queues, o.QueueLimit = append(o.Queues, Queue{"m", 4096}), 9000
		o.Ranks = append(o.Ranks, RankLoad{worker.Rank{ID: 1<<64 - 1, DPRank: 3}, worker.Prefill, 4096, 2, 7, 8, 1, 99, 5})
	})
	require.NoError(t, err)
}

func gather(t *testing.T, tel *Telemetry) map[string]*dto.MetricFamily {
	t.Helper()
	mfs, err := tel.registry.Gather()
	require.NoError(t, err)
	m := make(map[string]*dto.MetricFamily)
	for _, mf := range mfs {
		m[mf.GetName()] = mf
	}
	return m
}

// TestLatenciesAreNativeAndHaveBuckets: a scrape gets the form that it can read.
func TestLatenciesAreNativeAndHaveBuckets(t *testing.T) {
	tel := newTelemetry(t, Config{})
	useAll(t, tel.Instruments)
	got := gather(t, tel)
	for _, name := range []string{MetricRequestSeconds, MetricFirstByteSeconds, MetricFirstTokenSeconds, MetricPerTokenSeconds} {
		h := got[name].GetMetric()[0].GetHistogram()
		require.EqualValues(t, 1, h.GetSampleCount(), name)
		require.NotEmpty(t, h.GetPositiveSpan(), name)
		require.NotEmpty(t, h.GetBucket(), name)
	}
}

// TestModelsBeyondTheLimitAreMeasuredAsOne.
func TestModelsBeyondTheLimitAreMeasuredAsOne(t *testing.T) {
	tel := newTelemetry(t, Config{})
	for i := range maxSets + 10 {
		tel.Instruments.Took(&Served{Model: strconv.Itoa(i), FirstByte: time.Second})
	}
	lines := gather(t, tel)[MetricFirstByteSeconds].GetMetric()
	require.Len(t, lines, maxSets+1)
	sum := uint64(0)
	for _, l := range lines {
		sum += l.GetHistogram().GetSampleCount()
	}
	require.EqualValues(t, maxSets+10, sum)
}

func TestTheRegistryShowsWhatTheListSaysAndNothingElse(t *testing.T) {
	tel := newTelemetry(t, Config{Version: "v1", Revision: "abc"})
	useAll(t, tel.Instruments)
	got := gather(t, tel)
	known := map[string]bool{}
	for _, l := range labelDefs() {
		require.False(t, known[l.Name], "label %s is listed twice", l.Name)
		known[l.Name] = true
	}
	listed := map[string]bool{}
	for _, m := range Metrics() {
		require.False(t, listed[m.Name], "%s is listed twice", m.Name)
		listed[m.Name] = true
		mf := got[m.Name]
		require.NotNil(t, mf, "%s is listed and not shown", m.Name)
		require.Equal(t, string(m.Kind), strings.ToLower(mf.GetType().String()), m.Name)
		require.Equal(t, m.Help, mf.GetHelp(), m.Name)
		require.Equal(t, m.Kind == Counter, strings.HasSuffix(m.Name, "_total"), m.Name)
		var names []string
		for _, l := range mf.GetMetric()[0].GetLabel() {
			names = append(names, l.GetName())
			require.True(t, known[l.GetName()], "label %s of %s is not listed", l.GetName(), m.Name)
		}
		require.ElementsMatch(t, m.Labels, names, m.Name)
	}
	for name := range got {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			require.True(t, listed[name], "%s is shown and not listed", name)
		}
	}
	require.Contains(t, got, "go_goroutines")
	require.Contains(t, got, "process_start_time_seconds")
}

func TestCountersWithoutLabelsAreZeroFromTheStart(t *testing.T) {
	got := gather(t, newTelemetry(t, Config{}))
	var names []string
	for _, m := range Metrics() {
		if m.Kind != Counter || len(m.Labels) > 0 {
			continue
		}
		names = append(names, m.Name)
		require.Contains(t, got, m.Name)
		require.Zero(t, got[m.Name].GetMetric()[0].GetCounter().GetValue(), m.Name)
	}
	require.Contains(t, names, MetricKVEvents)
}

func TestValuesReachThePage(t *testing.T) {
	tel := newTelemetry(t, Config{Version: "v1", Revision: "abc"})
	useAll(t, tel.Instruments)
	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`baton_requests_total{code="no_worker",outcome="refused"} 1`,
		`baton_decisions_total{mode="kv",reason="lowest_cost",role="prefill",token_source="request_ids"} 1`,
		`baton_decision_seconds_bucket{le="5e-05"} 0`,
		`baton_decision_seconds_bucket{le="0.0001"} 1`,
		`baton_kv_events_total 3`,
		`baton_streams_in_flight{leg="main"} 1`,
		`baton_streams_in_flight{leg="prefill"} 0`,
		`baton_worker_prefill_tokens{dp_rank="3",role="prefill",worker_id="18446744073709551615"} 4096`,
		`baton_worker_index_blocks{dp_rank="3",role="prefill",worker_id="18446744073709551615"} 99`,
		`baton_prefill_queued_tokens{model="m"} 4096`, `baton_prefill_queue_limit_tokens 9000`,
		`baton_worker_index_shed_blocks_total{dp_rank="3",role="prefill",worker_id="18446744073709551615"} 5`,
		`baton_workers{role="prefill",state="healthy"} 2`,
		`baton_view_age_seconds 1.5`,
		`baton_overlap_lost_tokens_total{cause="load",model="m"} 64`,
		`baton_kv_events_silent_workers 2`,
		`baton_trouble{kind="kv_events_silent"} 1`, `baton_trouble{kind="not_ready"} 0`, `baton_trouble{kind="kind of tomorrow"} 3`,
		`baton_worker_info{endpoint="10.0.0.7:8000",host="10.0.0.7",model="m",role="decode",worker_id="7"} 1`,
		`baton_worker_info{endpoint="10.0.0.7:8000",host="10.0.0.7",model="a?b",role="decode",worker_id="7"} 1`,
		`baton_worker_info{endpoint="[::1]:80",host="::1",model="none",role="prefill",worker_id="8"} 1`, `baton_worker_info_left_out 0`,
		`baton_backlog_seconds{model="m",role="decode"} 2.5`, `baton_least_backlog_seconds{model="m",role="decode"} 0.5`,
		`baton_decode_free_blocks{model="m",role="decode"} 90`, `baton_decode_capacity_blocks{model="m",role="decode"} 100`,
		`baton_view_revision 12`,
		`baton_ready 1`,
	} {
		require.Contains(t, w.Body.String(), line+"\n")
	}
	require.Contains(t, w.Body.String(), `baton_build_info{go_version="go`)
	require.NotContains(t, w.Body.String(), `baton_decode_capacity_blocks{model="m",role="prefill"}`, "what is not known is not 0")
}

func TestAGaugeOfAGoneWorkerIsNotShown(t *testing.T) {
	tel := newTelemetry(t, Config{})
	ranks := []RankLoad{{Rank: worker.Rank{ID: 1}, Role: worker.Decode}, {Rank: worker.Rank{ID: 2}, Role: worker.Decode}}
	stop, err := tel.Instruments.Observe(func(o *Observation) { o.Ranks = append(o.Ranks, ranks...) })
	require.NoError(t, err)
	require.Len(t, gather(t, tel)[MetricIndexBlocks].GetMetric(), 2)
	require.Len(t, gather(t, tel)[MetricIndexShed].GetMetric(), 2)
	ranks = ranks[:1]
	require.Len(t, gather(t, tel)[MetricIndexBlocks].GetMetric(), 1)
	require.Len(t, gather(t, tel)[MetricIndexShed].GetMetric(), 1)
	require.NoError(t, stop())
	require.NotContains(t, gather(t, tel), MetricIndexBlocks)
}

func TestManyWorkersAreAllShown(t *testing.T) {
	tel := newTelemetry(t, Config{})
	_, err := tel.Instruments.Observe(func(o *Observation) {
		for i := range 3000 {
			o.Ranks = append(o.Ranks, RankLoad{Rank: worker.Rank{ID: worker.ID(i + 1)}})
		}
	})
	require.NoError(t, err)
	require.Len(t, gather(t, tel)[MetricIndexBlocks].GetMetric(), 3000)
}

func TestOfAnotherPickersSchedulerSoManyPartsAreShown(t *testing.T) {
	tel := newTelemetry(t, Config{})
	_, err := tel.Instruments.Observe(func(o *Observation) {
		for i := range 300 {
			o.Ignored = append(o.Ignored, fmt.Sprint(i, "-scorer"))
		}
	})
	require.NoError(t, err)
	require.Len(t, gather(t, tel)[MetricIgnored].GetMetric(), trouble.MostOfKind)
}

func TestALabelThatRunsAwayIsCountedUnderOther(t *testing.T) {
	tel := newTelemetry(t, Config{})
	for n := range maxSets + 50 {
		tel.Instruments.FreshPick(fmt.Sprint("reason ", n))
	}
	mf := gather(t, tel)[MetricFreshPicks]
	require.Len(t, mf.GetMetric(), maxSets+1)
	for _, m := range mf.GetMetric() {
		if m.GetLabel()[0].GetValue() == Other {
			require.InDelta(t, 50, m.GetCounter().GetValue(), 0)
			return
		}
	}
	t.Fatal("nothing was counted under other")
}

// TestTheFirstWorkersAreCountedByName: 256 of them, whatever their outcomes, and the rest
// as one, with its outcomes.
func TestTheFirstWorkersAreCountedByName(t *testing.T) {
	tel := newTelemetry(t, Config{})
	outcomes := []string{"ok", "rejected", "failed", "cut", "client_left", "unfinished", "retried"}
	const rest = 10
	for id := range workersByName + rest {
		for _, o := range outcomes {
			tel.Instruments.WorkerAttempt(worker.ID(id+1), worker.Decode, o)
			tel.Instruments.Charged(worker.ID(id+1), o)
		}
	}
	for _, name := range []string{MetricWorkerAttempts, MetricWorkerCharges} {
		lines := gather(t, tel)[name].GetMetric()
		require.Len(t, lines, (workersByName+1)*len(outcomes), name)
		others := 0
		for _, m := range lines {
			of := map[string]string{}
			for _, l := range m.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			if of[LabelWorker] != Other {
				require.InDelta(t, 1, m.GetCounter().GetValue(), 0)
				continue
			}
			others++
			require.InDelta(t, rest, m.GetCounter().GetValue(), 0, "%v", of)
		}
		require.Equal(t, len(outcomes), others, name)
	}
}

func TestAnEmptyOrBrokenLabelValueIsMadeReadable(t *testing.T) {
	tel := newTelemetry(t, Config{})
	tel.Instruments.Failure("")
	tel.Instruments.FreshPick("a\xffb")
	require.Equal(t, None, gather(t, tel)[MetricFailures].GetMetric()[0].GetLabel()[0].GetValue())
	require.Equal(t, "a?b", gather(t, tel)[MetricFreshPicks].GetMetric()[0].GetLabel()[0].GetValue())
}

func TestZeroInstrumentsCountNothing(t *testing.T) {
	useAll(t, new(Instruments))
}

func TestCountingDoesNotAllocate(t *testing.T) {
	tel := newTelemetry(t, Config{})
	i := tel.Instruments
	for name, f := range map[string]func(){
		"decided":   func() { i.Decided("prefill", "kv", "lowest_cost", SourceRequestIDs) },
		"took":      func() { i.DecisionTook(time.Millisecond) },
		"request":   func() { i.RequestEnded("ok", "") },
		"stream":    func() { i.StreamOpened(LegMain); i.StreamClosed(LegMain) },
		"kv events": func() { i.KVEvents(5) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, f), name)
	}
}

func TestCountersMayBeUsedTogether(t *testing.T) {
	tel := newTelemetry(t, Config{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range 200 {
				tel.Instruments.FreshPick(fmt.Sprint(n % 20))
			}
		})
	}
	wg.Wait()
	var sum float64
	for _, m := range gather(t, tel)[MetricFreshPicks].GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	require.InDelta(t, 800, sum, 0)
}

func TestNewLoggerKnowsItsLevelsAndFormats(t *testing.T) {
	var b bytes.Buffer
	l, err := NewLogger(&b, "warn", "json")
	require.NoError(t, err)
	l.Info("hidden")
	l.Warn("shown", slog.Any("err", os.ErrNotExist), slog.String("request_id", "r1"))
	require.Contains(t, b.String(), `"msg":"shown","err":"file does not exist","request_id":"r1"}`)
	require.NotContains(t, b.String(), "hidden")
	_, err = NewLogger(&b, "loud", "")
	require.ErrorContains(t, err, `log level "loud": expected debug, info, warn or error`)
	_, err = NewLogger(&b, "", "xml")
	require.ErrorContains(t, err, `log format "xml": expected text or json`)
}

func TestTraceConfigNamesItsFaults(t *testing.T) {
	require.NoError(t, TraceConfig{}.Validate())
	require.NoError(t, TraceConfig{Endpoint: "[::1]:4317", SampleRatio: 1}.Validate())
	err := TraceConfig{Endpoint: "http://x", SampleRatio: 2}.Validate()
	require.ErrorContains(t, err, `trace endpoint "http://x": expected host:port`)
	require.ErrorContains(t, err, "trace sample ratio 2: expected a number up to 1")
	_, err = New(Config{Trace: TraceConfig{Endpoint: "x"}})
	require.ErrorContains(t, err, "telemetry: trace endpoint")
}

func TestPlainTextGoesToLoopbackOnly(t *testing.T) {
	for endpoint, want := range map[string]string{
		"127.0.0.1:4317": "insecure", "[::1]:4317": "insecure", "localhost:4317": "insecure",
		"10.0.0.1:4317": "tls", "collector:4317": "tls",
	} {
		require.Equal(t, want, TraceConfig{Endpoint: endpoint}.credentials().Info().SecurityProtocol, endpoint)
	}
	require.Equal(t, "insecure", TraceConfig{Endpoint: "collector:1", Insecure: true}.credentials().Info().SecurityProtocol)
}

func TestWithoutAnEndpointTracingCostsNothing(t *testing.T) {
	tel := newTelemetry(t, Config{})
	tr := tel.Tracer
	require.False(t, tr.Enabled())
	require.Zero(t, testing.AllocsPerRun(100, func() {
		End(tr.Start(trace.SpanContext{}, SpanRequest, time.Time{}), time.Time{}, "")
	}))
	var none *Tracer
	require.False(t, none.Start(trace.SpanContext{}, SpanRequest, time.Time{}).IsRecording())
}

const parentHeader = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceContextSurvivesTheRoundTrip(t *testing.T) {
	sc := Extract(parentHeader, "vendor=1")
	require.True(t, sc.IsValid())
	require.True(t, sc.IsSampled())
	require.True(t, sc.IsRemote())
	require.Equal(t, "vendor=1", sc.TraceState().String())
	require.Equal(t, parentHeader, Traceparent(sc))
	require.Empty(t, Traceparent(trace.SpanContext{}))
	for _, bad := range []string{"", "x", "00-0-0-01", strings.Replace(parentHeader, "0af7", "zzzz", 1)} {
		require.False(t, Extract(bad, "").IsValid(), bad)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(parentHeader, "a=b")
	f.Add("00-00000000000000000000000000000000-0000000000000000-00", ",,,=")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "")
	f.Fuzz(func(t *testing.T, parent, state string) {
		sc := Extract(parent, state)
		if !sc.IsValid() {
			return
		}
		again := Extract(Traceparent(sc), sc.TraceState().String())
		if again.TraceID() != sc.TraceID() || again.SpanID() != sc.SpanID() {
			t.Fatalf("%q became %v", parent, again)
		}
	})
}

func TestSamplingFollowsTheParentThenTheRatio(t *testing.T) {
	mem := tracetest.NewInMemoryExporter()
	tr := newSpanTracer(Config{Trace: TraceConfig{SampleRatio: -1}}, mem)
	defer func() { require.NoError(t, tr.shutdown(context.Background())) }()
	require.False(t, tr.Start(trace.SpanContext{}, SpanRequest, time.Time{}).IsRecording())
	require.False(t, tr.Start(Extract(parentHeader[:53]+"00", ""), SpanRequest, time.Time{}).IsRecording())
	began := time.Unix(1000, 0)
	span := tr.Start(Extract(parentHeader, ""), SpanRequest, began, attribute.String(AttrModel, "m"))
	require.True(t, span.IsRecording())
	End(span, began.Add(time.Second), "prefill connection lost")
	require.NoError(t, tr.provider.ForceFlush(context.Background()))
	got := mem.GetSpans()
	require.Len(t, got, 1)
	require.Equal(t, "b7ad6b7169203331", got[0].Parent.SpanID().String())
	require.Equal(t, time.Second, got[0].EndTime.Sub(got[0].StartTime))
	require.Equal(t, "prefill connection lost", got[0].Status.Description)
}

// sink is an OTLP collector.
type sink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracev1.Span
}

func (s *sink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			s.spans = append(s.spans, ss.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSpansReachACollector(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, s := grpc.NewServer(), &sink{}
	collector.RegisterTraceServiceServer(srv, s)
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()

	tel, err := New(Config{Version: "v1", Trace: TraceConfig{Endpoint: lis.Addr().String()}})
	require.NoError(t, err)
	req := tel.Tracer.Start(Extract(parentHeader, ""), SpanRequest, time.Time{})
	leg := tel.Tracer.Start(req.SpanContext(), SpanPrefillLeg, time.Time{})
	End(leg, time.Time{}, "")
	End(req, time.Time{}, "")
	require.NoError(t, tel.Shutdown(context.Background()))
	require.Len(t, s.spans, 2)
	require.Equal(t, SpanPrefillLeg, s.spans[0].GetName())
	require.Equal(t, s.spans[1].GetSpanId(), s.spans[0].GetParentSpanId())
	require.Equal(t, s.spans[1].GetTraceId(), s.spans[0].GetTraceId())
}

type brokenExporter struct{ sdktrace.SpanExporter }

func (brokenExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return os.ErrDeadlineExceeded
}

func TestSpansThatCannotBeSentAreCountedAndLoggedOnce(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, "", "")
	require.NoError(t, err)
	tel := newTelemetry(t, Config{})
	e := &exporter{SpanExporter: brokenExporter{}, ins: tel.Instruments, logger: log}
	require.NoError(t, e.ExportSpans(context.Background(), make([]sdktrace.ReadOnlySpan, 3)))
	require.NoError(t, e.ExportSpans(context.Background(), make([]sdktrace.ReadOnlySpan, 2)))
	require.InDelta(t, 5, gather(t, tel)[MetricTraceFailures].GetMetric()[0].GetCounter().GetValue(), 0)
	require.Equal(t, 1, strings.Count(b.String(), "spans could not be sent"))
}
