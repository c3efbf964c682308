package wire

import (
	"context"
	"strings"
	"time"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Logs is one stream of Envoy's gRPC access log. One goroutine may receive.
type Logs struct {
	grpc    accesslogv3.AccessLogService_StreamAccessLogsServer
	entries []Entry
}

// Context is the stream's context.
func (l *Logs) Context() context.Context { return l.grpc.Context() }

// Recv returns the next entries of HTTP requests. The next call overwrites them. The
// error is io.EOF if Envoy ends the stream in order.
func (l *Logs) Recv() ([]Entry, error) {
	msg, err := l.grpc.Recv()
	if err != nil {
		return nil, err
	}
	l.entries = l.entries[:0]
	for _, e := range msg.GetHttpLogs().GetLogEntry() {
		l.entries = append(l.entries, EntryOf(e))
	}
	return l.entries, nil
}

// Entry is what Envoy has logged about one attempt of a request.
type Entry struct {
	// Which request and attempt it is about.
	RequestID, AttemptCount string
	Attempt                 string // the request's prefill.HeaderAttempt; empty: Envoy did not route the attempt
	Token                   string // Route.Token; empty: none

	// Runs says that the answer still runs: the entry is one of those that Envoy sends from
	// time to time (access_log_flush_interval), and says nothing of an end.
	Runs bool

	// How the answer ended, by Envoy's response flags and details. The details name every
	// way in which an upstream can break off. Some of these have no flag of their own but
	// "protocol error": a chunked body that ends early, for example (measured on 1.40).
	// Stood: its bytes have stood still for longer than the plugin has said.
	TimedOut, BrokeOff, ClientLeft, Stood bool
	Details                               string // what Envoy says of such an end, with the transport's failure; else empty
	Bytes                                 uint64 // of the answer's body, as sent to the client
	Status                                int    // as sent to the client
	Reached                               bool   // some bytes of the request were sent to an upstream

	// When the answer was sent on, since Start; 0: never, or not known.
	Start       time.Time // of the attempt
	First, Last time.Duration

	Said Said
}

// Said is what the filter baton.usage has found in an answer that is a stream of events.
type Said struct {
	Errored                bool // one of the events is an error
	ErrorCode              int  // of that error; 0: it has none
	Prompt, Output, Cached int64
	HasCached              bool
}

// EntryOf reads an entry.
func EntryOf(e *datav3.HTTPAccessLogEntry) Entry {
	p, req, resp := e.GetCommonProperties(), e.GetRequest(), e.GetResponse()
	f, h, m := p.GetResponseFlags(), req.GetRequestHeaders(), p.GetMetadata().GetFilterMetadata()
	out := Entry{
		RequestID: req.GetRequestId(), AttemptCount: h[HeaderAttemptCount], Attempt: h[prefill.HeaderAttempt],
		Token: m[metadataSpace].GetFields()[metadataLeg].GetStringValue(),
		Runs:  p.GetAccessLogType() == datav3.AccessLogType_DownstreamPeriodic,

		TimedOut: f.GetUpstreamRequestTimeout() || f.GetUpstreamMaxStreamDurationReached() || f.GetStreamIdleTimeout() || f.GetDurationTimeout(),
		BrokeOff: f.GetUpstreamConnectionTermination() || f.GetUpstreamRemoteReset() || f.GetUpstreamProtocolError() ||
			strings.HasPrefix(resp.GetResponseCodeDetails(), "upstream_reset"),
		ClientLeft: f.GetDownstreamConnectionTermination(),
		Stood:      f.GetStreamIdleTimeout() && strings.HasPrefix(p.GetRouteName(), gapRoutes),
		Bytes:      resp.GetResponseBodyBytes(),
		Status:     int(resp.GetResponseCode().GetValue()),
		Reached:    req.GetUpstreamHeaderBytesSent() > 0,

		Start: p.GetStartTime().AsTime(),
		First: p.GetTimeToFirstDownstreamTxByte().AsDuration(),
		Last:  p.GetTimeToLastDownstreamTxByte().AsDuration(),

		Said: saidIn(m[usageSpace].GetFields()),
	}
	if out.TimedOut || out.BrokeOff {
		out.Details = "Envoy: " + resp.GetResponseCodeDetails()
		if why := p.GetUpstreamTransportFailureReason(); why != "" {
			out.Details += ", " + why
		}
	}
	return out
}

// gapRoutes is how the names of the routes begin that end answers which stand still.
const gapRoutes = "gap_"

// usageSpace is the namespace in which the filter baton.usage writes what it has found.
const usageSpace = "baton.usage"

func saidIn(fields map[string]*structpb.Value) Said {
	count := func(key string) int64 { return int64(fields[key].GetNumberValue()) }
	return Said{
		Errored: fields["error"] != nil, ErrorCode: int(fields["error_code"].GetNumberValue()),
		Prompt: count("prompt_tokens"), Output: count("completion_tokens"), Cached: count("cached_tokens"),
		HasCached: fields["cached_tokens"] != nil,
	}
}

// HeaderAttemptCount is the header in which Envoy counts a request's attempts.
const HeaderAttemptCount = "x-envoy-attempt-count"
