package extproc

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

type chanCounter struct{ n atomic.Int64 }

func (c *chanCounter) add() { c.n.Add(1) }

// frameStream is one stream of a scenario, as the data plane has it.
type frameStream struct {
	*fleet
	mode   mode
	s      grpc.ClientStream
	cancel context.CancelFunc
	tap    *tap
	brief  bool

	begun   bool // the first message was sent, which says how bodies are sent
	got     int64
	over    error             // how the stream ended, nil: not yet
	headers map[string]string // set on the request
	request []byte            // the body as it was sent
	whole   bool              // its end was sent
	routed  []byte            // and as it came back
	answer  []byte            // the answer's body as it was sent
	echoed  []byte            // and as it came back
	counted map[string]int
}

// frames makes the messages of a line.
func (s *frameStream) frames(verb, rest string, lines []string) [][]byte {
	t := s.t
	req, hs := new(extprocv3.ProcessingRequest), new(corev3.HeaderMap)
	head, text, hasText := strings.Cut(rest, ": ")
	words := strings.Fields(head)
	eos := len(words) > 0 && words[len(words)-1] == "eos"
	switch verb {
	case "raw":
		b, err := hex.DecodeString(strings.ReplaceAll(rest, " ", ""))
		require.NoError(t, err)
		return [][]byte{b}
	case "request-headers":
		method, path := "POST", "/v1/completions"
		if len(words) > 1 {
			method, path = words[0], words[1]
		}
		hs = wiretest.HeaderMap(":method", method, ":path", path)
		req.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: hs, EndOfStream: eos}}
	case "response-headers":
		hs = wiretest.HeaderMap(":status", words[0])
		req.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: hs, EndOfStream: eos}}
	case "request-body", "response-body":
		return s.bodies(verb == "request-body", words, text, hasText, lines)
	case "request-trailers":
		req.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: hs}}
	case "response-trailers":
		req.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{Trailers: hs}}
	case "empty":
	case "unknown":
		return [][]byte{{0x9a, 0x06, 0x01, 'x'}} // a field that is not known, 99
	default:
		require.Fail(t, "unknown verb", verb)
	}
	for _, line := range lines {
		beside(t, line, req, hs)
	}
	return [][]byte{s.wire(req)}
}

func (s *frameStream) bodies(ofRequest bool, words []string, text string, hasText bool, lines []string) (out [][]byte) {
	body, cut, more := []byte(unquoted(text)), 0, false
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "size":
			body = bodyOf(n)
		case "each":
			cut = n
		case "more":
			more = true
		}
	}
	pieces := [][]byte{body}
	switch {
	case hasText:
		pieces = nil
		for p := range strings.SplitSeq(string(body), "|") {
			pieces = append(pieces, []byte(p))
		}
	case cut > 0:
		pieces = nil
		for len(body) > cut {
			pieces, body = append(pieces, body[:cut]), body[cut:]
		}
		pieces = append(pieces, body)
	}
	for i, p := range pieces {
		b := &extprocv3.HttpBody{Body: p, EndOfStream: i == len(pieces)-1 && !more}
		req := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: b}}
		if ofRequest {
			req.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: b}
			if !s.whole { // Envoy repeats an end, not the bytes
				s.request = append(s.request, p...)
			}
			s.whole = s.whole || b.EndOfStream
		} else {
			s.answer = append(s.answer, p...)
		}
		for _, line := range lines {
			beside(s.t, line, req, new(corev3.HeaderMap))
		}
		out = append(out, s.wire(req))
	}
	return out
}

// wire writes a message; the first of a stream says how bodies are sent.
func (s *frameStream) wire(req *extprocv3.ProcessingRequest) []byte {
	if !s.begun && req.Request != nil {
		s.begun = true
		req.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED}
		if s.mode.duplex {
			req.ProtocolConfig.RequestBodyMode = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
			if !s.mode.deaf {
				req.ProtocolConfig.ResponseBodyMode = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
			}
		}
	}
	b, err := proto.Marshal(req)
	if err != nil { // a header name that is no UTF-8, which other data planes may send
		b = unchecked(req)
	}
	return bytes.ReplaceAll(b, []byte(noUTF8), bytes.Repeat([]byte{0xff}, len(noUTF8)))
}

// unchecked writes request headers whose names protobuf's own writer refuses.
func unchecked(req *extprocv3.ProcessingRequest) []byte {
	hs := req.GetRequestHeaders().GetHeaders()
	names := make(map[string]string)
	for i, h := range hs.GetHeaders() {
		if h.Key == "" {
			continue
		}
		stand := fmt.Sprintf("%0*d", len(h.Key), i) // a stand-in of the same length
		names[stand], h.Key = h.Key, stand
	}
	b, err := proto.Marshal(req)
	if err != nil {
		panic(err)
	}
	out := string(b)
	for stand, name := range names {
		out = strings.Replace(out, stand, name, 1)
	}
	return []byte(out)
}

// send sends one message and returns all that came back for it.
func (s *frameStream) send(raw []byte) (out []*extprocv3.ProcessingResponse) {
	if err := s.s.SendMsg(&raw); err != nil {
		require.ErrorIs(s.t, err, io.EOF) // the stream is over; end prints how
		return nil
	}
	select {
	case <-s.tap.reads:
	case <-s.tap.done:
	}
	return s.due()
}

// due receives what the server has sent so far.
func (s *frameStream) due() (out []*extprocv3.ProcessingResponse) {
	for s.over == nil && s.got < s.tap.sent.n.Load() {
		if m := s.recv(); m != nil {
			out = append(out, m)
		}
	}
	return out
}

func (s *frameStream) recv() *extprocv3.ProcessingResponse {
	var b []byte
	if err := s.s.RecvMsg(&b); err != nil {
		s.over = err
		return nil
	}
	s.got++
	m := new(extprocv3.ProcessingResponse)
	require.NoError(s.t, proto.Unmarshal(b, m))
	return m
}

// end ends the stream as Envoy does, and prints what is left.
func (s *frameStream) end(out *strings.Builder, cancel bool) {
	fmt.Fprintf(out, "booked: %s\n", s.booked())
	s.check(out)
	if cancel {
		s.cancel()
	} else {
		require.NoError(s.t, s.s.CloseSend())
	}
	for s.over == nil {
		if m := s.recv(); m != nil {
			fmt.Fprintf(out, "at the end: %v\n", m)
		}
	}
	<-s.tap.done
	how := "in order"
	if !errors.Is(s.over, io.EOF) {
		how = status.Code(s.over).String()
	}
	s.leave()
	s.logged()
	require.Eventually(s.t, func() bool { return s.booked() == "nothing" }, 20*time.Second, time.Millisecond, "all is given back")
	fmt.Fprintf(out, "end: %s, booked: nothing\n", how)
	s.printCounters(out)
}

// logged sends the entry of Envoy's access log, which ends an attempt whose stream was left.
func (s *frameStream) logged() {
	nonce, _ := strconv.ParseUint(s.headers[prefill.HeaderAttempt], 10, 64)
	if a := s.srv.attempts.find(nonce); a != nil {
		a.post(just(leg.Event{Kind: leg.EventLogged, Seen: blame.Served, Reached: true}))
	}
}

// otherLeg plays the prefill leg of the request, if there is one.
func (s *frameStream) otherLeg(out *strings.Builder, failed bool) {
	token := s.headers[prefill.HeaderLeg]
	if token == "" {
		out.WriteString("  no prefill leg\n")
		return
	}
	leg := s.stream(mode{duplex: s.mode.duplex}, filterKey, filterPrefill)
	say := func(verb, rest string, lines ...string) {
		for _, raw := range leg.frames(verb, rest, lines) {
			for _, m := range leg.send(raw) {
				if at, ok := setHeaders(mutations(m))[prefill.HeaderPrefillEndpoint]; ok {
					fmt.Fprintf(out, "  leg to %s\n", at)
				}
			}
		}
	}
	say("request-headers", "", prefill.HeaderLeg+": "+token)
	say("request-body", ": "+string(s.request))
	if !failed {
		say("response-headers", "200")
		say("response-body", `: {"choices":[{"finish_reason":"length"}]}`)
	}
	leg.cancel()
	<-leg.tap.done
	for _, m := range s.due() {
		s.print(out, m)
	}
}

func mutations(m *extprocv3.ProcessingResponse) *extprocv3.HeaderMutation {
	if h := m.GetRequestHeaders().GetResponse().GetHeaderMutation(); h != nil {
		return h
	}
	return m.GetRequestBody().GetResponse().GetHeaderMutation()
}
