package extproc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// print prints one message in full, but of bodies only the size, and whether they are as they
// should be.
func (s *frameStream) print(out *strings.Builder, m *extprocv3.ProcessingResponse) {
	if m == nil {
		return
	}
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		out.WriteString("  request headers\n")
		s.common(out, r.RequestHeaders.GetResponse(), false)
	case *extprocv3.ProcessingResponse_RequestBody:
		out.WriteString("  request body\n")
		s.common(out, r.RequestBody.GetResponse(), false)
	case *extprocv3.ProcessingResponse_RequestTrailers:
		fmt.Fprintf(out, "  request trailers, before them %s\n", s.compared(s.request, s.routed))
		s.mutation(out, r.RequestTrailers.GetHeaderMutation())
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		out.WriteString("  response headers\n")
		s.common(out, r.ResponseHeaders.GetResponse(), true)
	case *extprocv3.ProcessingResponse_ResponseBody:
		out.WriteString("  response body\n")
		s.common(out, r.ResponseBody.GetResponse(), true)
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		fmt.Fprintf(out, "  response trailers, before them %s\n", s.compared(s.answer, s.echoed))
		s.mutation(out, r.ResponseTrailers.GetHeaderMutation())
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		im := r.ImmediateResponse
		fmt.Fprintf(out, "  immediate %d %s\n", im.GetStatus().GetCode(), im.GetDetails())
		s.mutation(out, im.GetHeaders())
		if !s.brief { // its code is in the details
			fmt.Fprintf(out, "    %s\n", im.GetBody())
		}
	case nil:
		fmt.Fprintf(out, "  no response, time-out extended: %t\n", m.GetOverrideMessageTimeout() != nil)
	}
	if m.GetDynamicMetadata() != nil {
		b, err := json.Marshal(m.GetDynamicMetadata().AsMap())
		require.NoError(s.t, err)
		fmt.Fprintf(out, "    metadata %s\n", b)
		at := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[prefill.HeaderDestination].GetStringValue()
		require.Equal(s.t, s.headers[prefill.HeaderDestination], at, "the metadata are the header")
	}
}

func (s *frameStream) common(out *strings.Builder, c *extprocv3.CommonResponse, ofAnswer bool) {
	require.Equal(s.t, extprocv3.CommonResponse_CONTINUE, c.GetStatus())
	s.mutation(out, c.GetHeaderMutation())
	if mutated := mutatedHeaders(c.GetHeaderMutation()); !ofAnswer && mutated[prefill.HeaderDestination] != "" {
		require.Nil(s.t, s.headers, "routed once")
		s.headers = mutated
	}
	into, all := &s.routed, s.request
	if ofAnswer {
		into, all = &s.echoed, s.answer
	}
	switch b := c.GetBodyMutation().GetMutation().(type) {
	case *extprocv3.BodyMutation_Body:
		*into = append(*into, b.Body...)
		fmt.Fprintf(out, "    replaced: %s\n", s.compared(all, *into))
	case *extprocv3.BodyMutation_StreamedResponse:
		p := b.StreamedResponse
		require.LessOrEqual(s.t, len(p.GetBody()), wire.ChunkBytes)
		*into = append(*into, p.GetBody()...)
		size := strconv.Itoa(len(p.GetBody()))
		if !ofAnswer && len(p.GetBody()) < wire.ChunkBytes && s.headers["x-bootstrap-room"] != "" {
			size = "the rest" // the number of a room has no fixed length
		}
		fmt.Fprintf(out, "    chunk of %s, eos=%t\n", size, p.GetEndOfStream())
		if p.GetEndOfStream() {
			fmt.Fprintf(out, "    in all: %s\n", s.compared(all, *into))
		}
	case *extprocv3.BodyMutation_ClearBody:
		fmt.Fprintf(out, "    cleared: %t\n", b.ClearBody)
	}
}

var room = regexp.MustCompile(`"bootstrap_room":\d+`)

// compared says whether and how a body was changed.
func (s *frameStream) compared(was, is []byte) string {
	n, last := len(was), bytes.LastIndexByte(was, '}')
	switch {
	case bytes.Equal(was, is):
		return fmt.Sprintf("%d bytes as sent", n)
	case last >= 0 && len(is) > n && bytes.HasPrefix(is, was[:last]) && bytes.HasSuffix(is, was[last:]):
		require.True(s.t, json.Valid(is))
		return fmt.Sprintf("%d bytes as sent, and in it %s", n, room.ReplaceAllString(string(is[last:len(is)-n+last]), `"bootstrap_room":ROOM`))
	default:
		require.Fail(s.t, "a body was changed", "%.200q\n%.200q", was, is)
		return ""
	}
}

// changing are headers whose values differ between runs.
var changing = map[string]string{
	prefill.HeaderAttempt: "NONCE", prefill.HeaderLeg: "SEALED", "x-bootstrap-room": "ROOM", "x-request-id": "UUID",
	"x-envoy-upstream-rq-timeout-ms": "LEFT", "content-length": "LENGTH",
}

// telling are the headers that scenarios with the word brief show.
var telling = []string{
	prefill.HeaderDestination, "x-prefill-instance-id", "x-prefill-dp-rank", "x-worker-instance-id", "x-dp-rank", "x-data-parallel-rank",
	"x-dropped", "content-length", prefill.HeaderRetry, "x-conformance-test-served-endpoint",
}

func (s *frameStream) mutation(out *strings.Builder, h *extprocv3.HeaderMutation) {
	for _, o := range h.GetSetHeaders() {
		name, value := o.GetHeader().GetKey(), string(o.GetHeader().GetRawValue())
		require.Empty(s.t, o.GetHeader().GetValue())
		if s.brief && !slices.Contains(telling, name) {
			continue
		}
		if word := changing[name]; word != "" {
			require.NotEmpty(s.t, value)
			value = word
		}
		how := "set"
		if a := o.GetAppendAction(); a != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			how = a.String()
		}
		fmt.Fprintf(out, "    %s %s: %s\n", how, name, value)
	}
	gone := slices.Clone(h.GetRemoveHeaders())
	for i, name := range gone {
		if q := strconv.Quote(name); q != `"`+name+`"` {
			gone[i] = q
		}
	}
	if len(gone) > 40 {
		fmt.Fprintf(out, "    remove %s … %d in all\n", gone[0], len(gone))
	} else if len(gone) > 0 {
		fmt.Fprintf(out, "    remove %s\n", strings.Join(gone, " "))
	}
}

func mutatedHeaders(h *extprocv3.HeaderMutation) map[string]string {
	out := setHeaders(h)
	if len(out) == 0 {
		return nil
	}
	return out
}

// check compares the bodies that were sent back with those that were sent.
func (s *frameStream) check(out *strings.Builder) {
	if len(s.echoed) > 0 {
		require.True(s.t, bytes.HasPrefix(s.answer, s.echoed), "the answer is what was sent")
	}
	if n := len(s.answer) - len(s.echoed); n > 0 && s.mode.duplex {
		fmt.Fprintf(out, "%d bytes of the answer not sent back\n", n)
	}
	if want := s.headers["content-length"]; want != "" {
		require.Equal(s.t, want, fmt.Sprint(len(s.routed)))
	}
	s.request, s.answer = nil, nil
}

func (s *frameStream) printCounters(out *strings.Builder) {
	now := s.counters()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if d := now[name] - s.counted[name]; d != 0 {
			fmt.Fprintf(out, "%s +%d\n", name, d)
		}
	}
}
