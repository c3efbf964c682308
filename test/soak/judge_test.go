package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestJudge runs testdata/judge. The commands:
//
//	faults      what was wrong, a line each: KIND TARGET FROM TO, where TARGET is
//	            decode, prefill, other (another model), lane, other-lane or - and
//	            TO is - while it lasts. It replaces what was there.
//	judge       the answer to a request for model m on lane 0 that was sent at
//	            10 s; the input is the answer's body. Arguments: status, took,
//	            err, left, stream, n, timeout, deserves, full-duplex
//
// The right answer to the request is "good" for each choice; the slack is 1 s.
func TestJudge(t *testing.T) {
	var h history
	datadriven.RunTest(t, "testdata/judge", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "faults":
			h = readFaults(t, d.Input)
			return ""
		case "judge":
			return judgeCase(t, d, h)
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		}
	})
}

func readFaults(t *testing.T, text string) (h history) {
	for line := range strings.Lines(text) {
		p := strings.Fields(line)
		require.Len(t, p, 4, line)
		s := span{Fault: fault{Kind: kind(p[0])}}
		switch p[1] {
		case "decode":
			s.Fault.On = target{Model: "m", Role: worker.Decode}
		case "prefill":
			s.Fault.On = target{Model: "m", Role: worker.Prefill}
		case "other":
			s.Fault.On = target{Model: "x", Role: worker.Decode}
		case "other-lane":
			s.Fault.On.Index = 1
		}
		s.From = duration(t, p[2])
		if p[3] != "-" {
			s.To = duration(t, p[3])
		}
		h = append(h, s)
	}
	return h
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func judgeCase(t *testing.T, d *datadriven.TestData, h history) string {
	a := &ask{Model: "m", Want: []string{"good"}, Stream: d.HasArg("stream")}
	g := &got{From: 10 * time.Second, Status: 200, Body: d.Input, Left: d.HasArg("left")}
	text := func(name, def string) string {
		if d.HasArg(name) {
			d.ScanArgs(t, name, &def)
		}
		return def
	}
	if d.HasArg("n") {
		a.Want = append(a.Want, "good")
	}
	if d.HasArg("status") {
		d.ScanArgs(t, "status", &g.Status)
	}
	a.Refusal, g.Err = text("deserves", ""), text("err", "")
	a.Timeout = duration(t, text("timeout", "5s"))
	g.To = g.From + duration(t, text("took", "1s"))
	class, wrong := judge(a, g, h, d.HasArg("full-duplex"), time.Second)
	if wrong != "" {
		wrong = "\nVIOLATION " + wrong
	}
	return fmt.Sprintf("%s%s\n", class, wrong)
}

func FuzzReadNeverPanics(f *testing.F) {
	f.Add(`{"choices":[{"index":0,"text":"a"}]}`, false)
	f.Add("data: {\"choices\":[{\"index\":99,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n", true)
	f.Add("data: {\"error\":{}}\n\ndata: [DONE]\n", true)
	f.Fuzz(func(t *testing.T, text string, stream bool) {
		texts, e := read(text, stream)
		require.LessOrEqual(t, len(texts), 16)
		require.LessOrEqual(t, e, endWhole)
	})
}

func TestWhichGoroutinesWork(t *testing.T) {
	const profile = `goroutine profile: total 12
7 @ 0x1 0x2
#	0x1	main.serve+0x1	serve.go:1

2 @ 0x3
#	0x3	net/http.(*persistConn).readLoop+0x1	transport.go:1

2 @ 0x4
#	0x4	net/http.(*persistConn).writeLoop+0x1	transport.go:2

1 @ 0x5
#	0x5	main.run+0x1	run.go:1

`
	require.Equal(t, 8, working(profile))
	require.Zero(t, working("no profile"))
	require.Zero(t, working(""))
}
