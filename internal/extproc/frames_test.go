package extproc

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/wire"
)

// The files of testdata/frames say what comes back for what a data plane sends. A whole
// Server runs behind real gRPC, on connections within the process and in a synthetic time, so
// that waiting for a deadline takes no time. One directive starts one replica, and plays one
// stream or several, one after the other. It is played in four modes: by a filter without
// metadata of Baton's (plain) and by one with two legs that speaks the endpoint picker
// protocol (two-leg), each with buffered bodies and in full duplex with the bodies of answers.
// Modes with the same outcome are printed together.
//
//	workers        one a line, for the scenarios that follow:
//	               ID ROLE ADDRESS [ranks=N] [own-ports] [alone] [load=N] [model=M,…] [untold]
//	               untold: its engine has told no facts. load makes a worker dearer than those with less. Roles: prefill, decode, aggregated
//	scenario [only=(plain,two-leg,buffered,full-duplex)] [routing=prerouted|direct] [endpoints=N]
//	               [selection] [pass-unknown] [sidecar] [max-body=N] [queue=N] [no-answers] [brief]
//	               no-answers: also in full duplex the filter sends no bodies of answers
//	               brief: of the headers that are set, print only the destination, the
//	               ranks and the prefill worker; of refusals leave out the body
//
// Lines of a scenario. Each is one message, except the last three kinds. Indented lines
// belong to the line above:
//
//	request-headers [METHOD PATH] [eos]   also response-headers STATUS [eos]
//	    NAME: VALUE                       either may be quoted; VALUE @N is N times v
//	    repeat N NAME: VALUE              N headers; %d in NAME is their number
//	    subset JSON | metadata JSON | attributes JSON | observe
//	    raw-metadata NAMESPACE KEY | raw-attributes KEY    with a text that is no UTF-8
//	request-body [more] [size=N] [each=N] [: TEXT]   also response-body. TEXT may be quoted;
//	                                      with | it is sent in as many pieces. size makes
//	                                      one of N bytes, each cuts it. more: no end yet
//	                                      Of answers only in full duplex
//	request-trailers, response-trailers, empty, unknown, raw HEX
//	prefill [failed]                      the other leg comes, and is well, or breaks off
//	wait                                  for one more message: of a timer
//	end [cancel]                          of the stream; what follows is on a new one
//
// The output has under each message what came back for it. At the end it says how the stream
// ended, what was booked before that and after it, and which counters of failures, of subset
// hints and of answers by other endpoints have changed. `make golden` rewrites the output.
func TestFrameScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/frames", func(t *testing.T, path string) {
		var fleet []string
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "workers":
				fleet = strings.Split(strings.TrimSpace(d.Input), "\n")
				return ""
			case "scenario":
				return playModes(t, d, fleet)
			default:
				d.Fatalf(t, "unknown directive %q", d.Cmd)
				return ""
			}
		})
	})
}

// mode is how a data plane's filter is set up.
type mode struct{ twoLeg, duplex, deaf bool }

func (m mode) String() string {
	out := "plain"
	if m.twoLeg {
		out = "two-leg"
	}
	if m.duplex {
		return out + " full-duplex"
	}
	return out + " buffered"
}

// playModes plays a scenario in each mode, and prints each outcome once.
func playModes(t *testing.T, d *datadriven.TestData, fleet []string) string {
	only := make(map[string]bool)
	for _, a := range d.CmdArgs {
		if a.Key == "only" {
			for _, v := range a.Vals {
				only[v] = true
			}
		}
	}
	either := func(a, b string, is bool) bool { return !only[a] && !only[b] || only[a] && !is || only[b] && is }
	var names, outs []string
	for _, m := range []mode{{}, {duplex: true}, {twoLeg: true}, {twoLeg: true, duplex: true}} {
		if !either("plain", "two-leg", m.twoLeg) || !either("buffered", "full-duplex", m.duplex) {
			continue
		}
		m.deaf = d.HasArg("no-answers")
		out := ""
		t.Run(fmt.Sprintf("%s/%s", d.Pos, m), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { out = play(t, d, fleet, m) })
		})
		i := 0
		for i < len(outs) && outs[i] != out {
			i++
		}
		if i == len(outs) {
			names, outs = append(names, m.String()), append(outs, out)
		} else {
			names[i] += ", " + m.String()
		}
	}
	var b strings.Builder
	for i, name := range names {
		fmt.Fprintf(&b, "[%s]\n%s", name, outs[i])
	}
	return b.String()
}

// play plays a scenario in one mode.
func play(t *testing.T, d *datadriven.TestData, fleet []string, m mode) string {
	f := newFleet(t, d, fleet)
	var out strings.Builder
	var s *frameStream
	script := statements(d.Input)
	if last := script[len(script)-1]; last[0] != "end" && !strings.HasPrefix(last[0], "end ") {
		script = append(script, []string{"end"})
	}
	for _, st := range script {
		if s == nil {
			s = f.open(m, str(d, "routing", ""))
		}
		verb, rest, _ := strings.Cut(st[0], " ")
		s.brief = d.HasArg("brief")
		if bare, ok := strings.CutSuffix(verb, ":"); ok {
			verb, rest = bare, ": "+rest
		}
		was := out.Len()
		switch verb {
		case "end":
			s.end(&out, rest == "cancel")
			s = nil
			continue
		case "prefill":
			s.otherLeg(&out, rest == "failed")
		case "wait":
			s.print(&out, s.recv())
		case "response-body", "response-trailers":
			if !m.duplex || m.deaf {
				continue
			}
			fallthrough
		default:
			for _, raw := range s.frames(verb, rest, st[1:]) {
				for _, m := range s.send(raw) {
					s.print(&out, m)
				}
			}
		}
		if out.Len() > was {
			told := out.String()
			out.Reset()
			out.WriteString(told[:was] + st[0][:min(len(st[0]), 60)] + "\n" + told[was:])
		}
	}
	return out.String()
}

// statements splits a script into its lines, each with the indented lines below it.
func statements(input string) (out [][]string) {
	for line := range strings.SplitSeq(strings.TrimRight(input, "\n"), "\n") {
		switch {
		case strings.TrimSpace(line) == "":
		case strings.HasPrefix(line, " "):
			out[len(out)-1] = append(out[len(out)-1], strings.TrimSpace(line))
		default:
			out = append(out, []string{line})
		}
	}
	return out
}

// unquoted returns s, without quotes and escapes if it is quoted; @N stands for N times v.
func unquoted(s string) string {
	if n, err := strconv.Atoi(strings.TrimPrefix(s, "@")); err == nil && strings.HasPrefix(s, "@") {
		return strings.Repeat("v", n)
	}
	if out, err := strconv.Unquote(s); err == nil && strings.HasPrefix(s, `"`) {
		return out
	}
	return s
}

// beside adds to a message and its headers what an indented line below it says.
func beside(t *testing.T, line string, req *extprocv3.ProcessingRequest, hs *corev3.HeaderMap) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "subset":
		v := new(structpb.Value)
		require.NoError(t, protojson.Unmarshal([]byte(rest), v), rest)
		req.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			wire.SubsetNamespace: {Fields: map[string]*structpb.Value{wire.SubsetKey: v}},
		}}
	case "metadata":
		req.MetadataContext = &corev3.Metadata{FilterMetadata: structsOf(t, rest)}
	case "attributes":
		req.Attributes = structsOf(t, rest)
	case "raw-metadata":
		namespace, key, _ := strings.Cut(rest, " ")
		req.MetadataContext = &corev3.Metadata{FilterMetadata: structsOf(t, fmt.Sprintf(`{%q:{%q:%q}}`, namespace, key, noUTF8))}
	case "raw-attributes":
		req.Attributes = structsOf(t, fmt.Sprintf(`{"envoy.filters.http.ext_proc":{%q:%q}}`, rest, noUTF8))
	case "observe":
		req.ObservabilityMode = true
	case "repeat":
		count, header, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(count)
		require.NoError(t, err)
		name, value, _ := strings.Cut(header, ": ")
		for i := range n {
			addHeader(t, hs, strings.ReplaceAll(name, "%d", strconv.Itoa(i)), value)
		}
	default:
		name, value, ok := strings.Cut(line, ": ")
		require.True(t, ok || strings.HasSuffix(line, ":"), line)
		addHeader(t, hs, strings.TrimSuffix(name, ":"), value)
	}
}

// noUTF8 stands for a text that is no UTF-8, until the message is written: protobuf's own
// writer refuses such a text.
const noUTF8 = "bytes that are no UTF-8"

func addHeader(t *testing.T, hs *corev3.HeaderMap, name, value string) {
	hs.Headers = append(hs.Headers, &corev3.HeaderValue{Key: unquoted(name), RawValue: []byte(unquoted(value))})
}

func structsOf(t *testing.T, text string) map[string]*structpb.Struct {
	var m map[string]map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &m), text)
	out := make(map[string]*structpb.Struct)
	for name, fields := range m {
		s, err := structpb.NewStruct(fields)
		require.NoError(t, err)
		out[name] = s
	}
	return out
}
