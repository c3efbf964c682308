package extproc

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// aggregated returns workers that serve requests alone.
func aggregated(ws []*worker.Worker) fixed { return fixed(routetest.Aggregated(ws)) }

func enabled(c *Config) { c.Gateway = Gateway{Enabled: true, Endpoints: 1} }

// plainly opens a stream as a Gateway API implementation does: without metadata of Baton's,
// except for pairs.
func (r *replica) plainly(pairs ...string) *proxy {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), pairs...), 10*time.Second)
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	require.NoError(r.t, err)
	return &proxy{r.t, s, cancel}
}

// get sends the headers of a request that has no body and returns how they change.
func (p *proxy) get(md *corev3.Metadata, pairs ...string) *extprocv3.HeaderMutation {
	p.t.Helper()
	p.sendGet(md, pairs...)
	m := p.recv()
	require.NotNil(p.t, m.GetRequestHeaders(), "%v", m)
	return m.GetRequestHeaders().GetResponse().GetHeaderMutation()
}

func (p *proxy) sendGet(md *corev3.Metadata, pairs ...string) {
	const duplex = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	hs := wiretest.HeaderMap(append([]string{":method", "GET", ":path", "/version"}, pairs...)...)
	require.NoError(p.t, p.s.Send(&extprocv3.ProcessingRequest{
		ProtocolConfig:  &extprocv3.ProtocolConfiguration{RequestBodyMode: duplex, ResponseBodyMode: duplex},
		MetadataContext: md,
		Request:         &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: hs, EndOfStream: true}},
	}))
}

// answered sends the headers of an answer. The endpoint by, in Envoy's attribute, has given
// the answer.
func (p *proxy) answered(by string, pairs ...string) {
	p.t.Helper()
	require.NoError(p.t, p.s.Send(&extprocv3.ProcessingRequest{
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {
			Fields: map[string]*structpb.Value{"upstream.address": structpb.NewStringValue(by)},
		}},
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: wiretest.HeaderMap(pairs...), EndOfStream: true}},
	}))
	m := p.recv()
	require.NotNil(p.t, m.GetResponseHeaders(), "%v", m)
}

// allowing returns a data plane's hint that allows the listed endpoints.
func allowing(list string) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{wire.SubsetNamespace: {
		Fields: map[string]*structpb.Value{wire.SubsetKey: structpb.NewStringValue(list)},
	}}}
}

// A worker behind a plain gateway may set the header by which a listener of Baton's marks its
// own answers. The answer still counts as the worker's.
func TestAWorkersWordIsNoLocalReplyBehindAPlainGateway(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(routetest.Workers()), enabled)
	for _, flags := range []string{"UT", "UF", "UC"} {
		p := r.plainly()
		set := setHeaders(p.get(nil))
		p.answered(set[prefill.HeaderDestination], ":status", "200", prefill.HeaderLocalReply, flags)
		p.cancel()
	}
	for id := worker.ID(1); id <= 4; id++ {
		require.False(t, r.srv.cfg.Health.Aside(worker.Rank{ID: id}))
	}
}

// Headers that only routers may set are removed from a request, or replaced by those of the
// plugin.
func TestAPlainGatewaysClientsSayNothingOfRouting(t *testing.T) {
	for _, endpoints := range []int{1, 3} {
		r := newReplicaOf(t, "a", aggregated(routetest.Workers()), func(c *Config) { c.Gateway = Gateway{Enabled: true, Endpoints: endpoints} })
		for _, name := range []string{
			"x-prefiller-host-port", "x-data-parallel-host-port", "x-encoder-hosts-ports", "x-kv-cache-source-host-port",
			"x-data-parallel-rank", "x-dynamo-routing-mode", "x-dynamo-prefill-instance-id", "x-prefill-instance-id", "x-worker-instance-id", "x-dp-rank",
			prefill.HeaderAttempt, prefill.HeaderLeg, prefill.HeaderStart, prefill.HeaderLocalReply, prefill.HeaderDestination,
		} {
			p := r.plainly()
			h := p.get(nil, name, "6.6.6.6:1")
			set, ours := setHeaders(h)[name]
			require.True(t, slices.Contains(h.GetRemoveHeaders(), name) || ours, "%s goes on", name)
			require.NotEqual(t, "6.6.6.6:1", set, name)
			p.cancel()
		}
	}
}

// A filter with two values of x-baton-filter is refused, and does not count as a filter
// without metadata.
func TestAFilterThatSaysTwoThingsOfItselfIsRefused(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(routetest.Workers()), enabled)
	for _, said := range [][]string{{filterMain, filterMain}, {filterMain, filterPrefill}, {"", filterMain}, {"", ""}} {
		p := r.plainly(filterKey, said[0], filterKey, said[1])
		_, err := p.s.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%q", said)
		require.ErrorContains(t, err, filterKey)
		p.cancel()
	}
}

// TestTheLogSaysOnceWhatAGatewaysRetriesDo: where a hand-off goes to decode through a gateway with
// one leg, that gateway's own retries would repeat it.
func TestTheLogSaysOnceWhatAGatewaysRetriesDo(t *testing.T) {
	var log syncbuf.Buffer
	r := newReplicaOf(t, "a", prefillFirst(t, nil), func(c *Config) {
		c.Gateway, c.PrefillListener, c.Logger = Gateway{Enabled: true, Endpoints: 1}, "unix:///nowhere/prefill.sock", slog.New(slog.NewTextHandler(&log, nil))
	})
	p := r.open(filterMain)
	require.NotNil(t, p.ask(eightTokens).GetImmediateResponse())
	p.cancel()
	require.NotContains(t, log.String(), "repeats a used hand-off")
	for range 2 {
		p := r.plainly()
		require.NotNil(t, p.ask(eightTokens).GetOverrideMessageTimeout(), "it waits for prefill")
		require.NotNil(t, p.recv().GetImmediateResponse(), "the listener is not there")
		p.cancel()
	}
	require.Equal(t, 1, strings.Count(log.String(), "repeats a used hand-off"))
}

// TestTheLogSaysOnceThatAHeaderIsNotActedOn: who sends an objective expects priorities.
func TestTheLogSaysOnceThatAHeaderIsNotActedOn(t *testing.T) {
	var log syncbuf.Buffer
	r := newReplica(t, "a", func(c *Config) {
		c.Gateway, c.Logger = Gateway{Enabled: true, Endpoints: 1}, slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 3 {
		for _, name := range wire.Unheeded {
			p := r.plainly()
			removed := p.get(nil, name, "high", "x-llm-d-objective-of-ours", "1").GetRemoveHeaders()
			require.NotContains(t, removed, name, "it goes on as it is")
			p.cancel()
		}
	}
	for _, name := range wire.Unheeded {
		require.Equal(t, 1, strings.Count(log.String(), "header="+name), "%s", log.String())
	}
	require.Equal(t, len(wire.Unheeded), strings.Count(log.String(), "on which nothing here acts"))
}
