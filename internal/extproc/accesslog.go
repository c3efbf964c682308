package extproc

import (
	"errors"
	"io"
	"strconv"
	"strings"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// accessLog receives Envoy's gRPC access log of the main leg. It is how we
// learn how an answer ended, and that one has ended whose stream we had left.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	srv *Server
}

// logged says how an answer ended that had begun: by Envoy's response flags and details,
// and by what the engine has said in events. The details name every way in which an
// upstream can break off, those whose flag says no more than "protocol error" included
// (a chunked body that ends early, measured on 1.40).
func logged(e *datav3.HTTPAccessLogEntry) blame.Sight {
	f, r, said := e.GetCommonProperties().GetResponseFlags(), e.GetResponse(), saidIn(e)
	switch {
	case f.GetUpstreamRequestTimeout(), f.GetUpstreamMaxStreamDurationReached(), f.GetStreamIdleTimeout(), f.GetDurationTimeout():
		return blame.Expired
	case f.GetUpstreamConnectionTermination(), f.GetUpstreamRemoteReset(), f.GetUpstreamProtocolError(), strings.HasPrefix(r.GetResponseCodeDetails(), "upstream_reset"):
		return blame.BrokeOff
	case f.GetDownstreamConnectionTermination():
		return blame.ClientLeft
	case r.GetResponseBodyBytes() == 0:
		return blame.Empty
	case said["error"] != nil:
		return sightOfError(int(said["error_code"].GetNumberValue()))
	default:
		return blame.Served
	}
}

// StreamAccessLogs takes entries until Envoy ends the stream, or a drain has ended:
// a gRPC server that waits for its streams would wait for ever.
func (a *accessLog) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	read := make(chan error, 1)
	go func() { read <- a.read(stream) }()
	select {
	case err := <-read:
		return err
	case <-a.srv.drained:
		return nil // gRPC ends what reads
	}
}

func (a *accessLog) read(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		others := make(map[string][]peerEntry)
		for _, e := range msg.GetHttpLogs().GetLogEntry() {
			if s := a.find(e.GetRequest()); s != nil {
				s.post(entryEvent(e))
			} else if owner, entry := a.anothers(e); owner != "" {
				others[owner] = append(others[owner], entry)
			}
		}
		for owner, entries := range others {
			a.srv.peers.logged(owner, entries)
		}
	}
}

func entryEvent(e *datav3.HTTPAccessLogEntry) *event {
	return &event{
		kind: evLogged, seen: logged(e), sent: sentOf(e), usage: usageOf(e),
		status:  int(e.GetResponse().GetResponseCode().GetValue()),
		reached: e.GetRequest().GetUpstreamHeaderBytesSent() > 0,
	}
}

// anothers returns what another replica is to hear of an entry, and which one; empty:
// none. Envoy sends its log over one stream, to one of them.
func (a *accessLog) anothers(e *datav3.HTTPAccessLogEntry) (owner string, entry peerEntry) {
	token := e.GetCommonProperties().GetMetadata().GetFilterMetadata()[metadataSpace].GetFields()[metadataLeg].GetStringValue()
	if token == "" {
		return "", entry
	}
	leg, err := a.srv.sealer.Open(token)
	if err != nil || leg.Owner == a.srv.owner || !a.srv.peers.reachable(leg.Owner) {
		return "", entry
	}
	ev := entryEvent(e)
	return leg.Owner, peerEntry{
		Token: token, Seen: ev.seen, Status: ev.status, Reached: ev.reached,
		Start: ev.sent.start, First: ev.sent.first, Last: ev.sent.last, Usage: ev.usage,
	}
}

// find returns the attempt that an entry is of, or nil. An attempt that Envoy did
// not route has no number in it: its client left before our word came.
func (a *accessLog) find(r *datav3.HTTPRequestProperties) *mainStream {
	h := r.GetRequestHeaders()
	if nonce, err := strconv.ParseUint(h[prefill.HeaderAttempt], 10, 64); err == nil {
		return a.srv.attempts.find(nonce)
	}
	return a.srv.unrouted.find(r.GetRequestId(), h[headerAttemptCount])
}

const headerAttemptCount = "x-envoy-attempt-count"
