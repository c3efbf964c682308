package extproc

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

var aPair = []string{"1 prefill 10.0.0.1:80", "2 decode 10.0.0.2:80 alone"}

// sendBody plays one request and returns its stream with the body that came back. It requires
// that each piece has at most the portable size, and that only the last one is an end.
func sendBody(t *testing.T, f *fleet, m mode, words ...string) *frameStream {
	t.Helper()
	s := f.open(m, "")
	ends := 0
	take := func(raws [][]byte) {
		for _, raw := range raws {
			for _, r := range s.send(raw) {
				require.Nil(t, r.GetImmediateResponse(), "%v", r)
				s.print(new(strings.Builder), r)
				if p, ok := r.GetRequestBody().GetResponse().GetBodyMutation().GetMutation().(*extprocv3.BodyMutation_StreamedResponse); ok && p.StreamedResponse.GetEndOfStream() {
					ends++
				}
			}
		}
	}
	take(s.frames("request-headers", "", nil))
	take(s.frames("request-body", strings.Join(words, " "), nil))
	require.Equal(t, "10.0.0.2:80", s.headers[prefill.HeaderDestination])
	if m.duplex {
		require.Equal(t, 1, ends)
	}
	return s
}

// A body of 10^7 bytes, as one message and in pieces as Envoy sends them.
func TestALargeBodyIsSentOnInPortablePieces(t *testing.T) {
	t.Parallel()
	f := newFleet(t, new(datadriven.TestData), aPair)
	for _, m := range []mode{{duplex: true}, {twoLeg: true}, {twoLeg: true, duplex: true}} {
		for _, words := range [][]string{{"size=10000000"}, {"size=10000000", "each=16384"}, {"size=10000000", "each=65537"}} {
			if !m.duplex && len(words) > 1 {
				continue // a buffered body comes whole
			}
			s := sendBody(t, f, m, words...)
			told := s.compared(s.request, s.routed)
			require.Equal(t, m.twoLeg, strings.Contains(told, "bootstrap_room"), told)
			s.end(new(strings.Builder), false)
		}
	}
}

// The body is cut once, at each place: also inside keys, escapes and characters.
func TestABodyIsSentOnWhereverItIsCut(t *testing.T) {
	t.Parallel()
	f := newFleet(t, new(datadriven.TestData), aPair)
	const body = "{ \"mod\\u0065l\" : \"m\" ,\"prompt\":\"h\xc3\xa9\xf0\x9f\x98\x80 \\u00e9\\ud83d\\ude00\\\"\\\\\",\"max_tokens\":1 } "
	for _, m := range []mode{{duplex: true}, {twoLeg: true, duplex: true}} {
		for at := range len(body) + 1 {
			s := sendBody(t, f, m, ":", body[:at]+"|"+body[at:])
			if m.twoLeg {
				require.Contains(t, string(s.routed), body[:len(body)-2]+`,"bootstrap_host":"10.0.0.1"`)
			} else {
				require.Equal(t, body, string(s.routed))
			}
			s.cancel()
			<-s.tap.done
			s.leave()
		}
	}
}
