package wire

import (
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

// Recv returns the next entries of HTTP requests, which the call after it overwrites. The
// error is io.EOF where Envoy ends the stream in order.
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

// Entry is what Envoy has logged of one attempt of a request.
type Entry struct {
	// Whose it is.
	RequestID, AttemptCount string
	Attempt                 string // the request's prefill.HeaderAttempt; empty where Envoy did not route it
	Token                   string // Route.Token; empty: none

	// How its answer ended: by Envoy's response flags and details. The details name every
	// way in which an upstream can break off, those whose flag says no more than "protocol
	// error" included (a chunked body that ends early, measured on 1.40).
	TimedOut, BrokeOff, ClientLeft bool
	Bytes                          uint64 // of the answer's body, as sent on
	Status                         int    // as sent on
	Reached                        bool   // something of the request was sent to an upstream

	// When it was sent on, from the start of the attempt; 0 is never, or not known.
	Start       time.Time // of the attempt
	First, Last time.Duration

	Said Said
}

// Said is what the filter baton.usage has found in an answer of events.
type Said struct {
	Errored                bool // there is an error among them
	ErrorCode              int  // 0: it has none
	Prompt, Output, Cached int64
	HasCached              bool
}

// EntryOf reads an entry.
func EntryOf(e *datav3.HTTPAccessLogEntry) Entry {
	p, req, resp := e.GetCommonProperties(), e.GetRequest(), e.GetResponse()
	f, h, m := p.GetResponseFlags(), req.GetRequestHeaders(), p.GetMetadata().GetFilterMetadata()
	return Entry{
		RequestID: req.GetRequestId(), AttemptCount: h[HeaderAttemptCount], Attempt: h[prefill.HeaderAttempt],
		Token: m[metadataSpace].GetFields()[metadataLeg].GetStringValue(),

		TimedOut: f.GetUpstreamRequestTimeout() || f.GetUpstreamMaxStreamDurationReached() || f.GetStreamIdleTimeout() || f.GetDurationTimeout(),
		BrokeOff: f.GetUpstreamConnectionTermination() || f.GetUpstreamRemoteReset() || f.GetUpstreamProtocolError() ||
			strings.HasPrefix(resp.GetResponseCodeDetails(), "upstream_reset"),
		ClientLeft: f.GetDownstreamConnectionTermination(),
		Bytes:      resp.GetResponseBodyBytes(),
		Status:     int(resp.GetResponseCode().GetValue()),
		Reached:    req.GetUpstreamHeaderBytesSent() > 0,

		Start: p.GetStartTime().AsTime(),
		First: p.GetTimeToFirstDownstreamTxByte().AsDuration(),
		Last:  p.GetTimeToLastDownstreamTxByte().AsDuration(),

		Said: saidIn(m[usageSpace].GetFields()),
	}
}

// usageSpace is the namespace of what the filter baton.usage has found.
const usageSpace = "baton.usage"

func saidIn(fields map[string]*structpb.Value) Said {
	count := func(key string) int64 { return int64(fields[key].GetNumberValue()) }
	return Said{
		Errored: fields["error"] != nil, ErrorCode: int(fields["error_code"].GetNumberValue()),
		Prompt: count("prompt_tokens"), Output: count("completion_tokens"), Cached: count("cached_tokens"),
		HasCached: fields["cached_tokens"] != nil,
	}
}

// HeaderAttemptCount is where Envoy counts a request's attempts.
const HeaderAttemptCount = "x-envoy-attempt-count"
