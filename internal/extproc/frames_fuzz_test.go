package extproc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// framesOf writes messages one after the other, each with its length.
func framesOf(reqs ...*extprocv3.ProcessingRequest) (out []byte) {
	for _, req := range reqs {
		b, err := proto.Marshal(req)
		if err != nil {
			panic(err)
		}
		out = protowire.AppendBytes(out, b)
	}
	return out
}

// plausible are the messages of one request in their order.
func plausible(path string, body, answer []byte) []*extprocv3.ProcessingRequest {
	return []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":method", "POST", ":path", path)}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":status", "200")}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: answer, EndOfStream: true}}},
	}
}

// FuzzMainFrames sends a main leg whatever comes as messages of Envoy, read by the
// codec, with what else may happen to it between them, and holds it to X1 to X6.
func FuzzMainFrames(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	whole := plausible("/v1/completions", []byte(`{"model":"m","prompt":"hi"}`), []byte("1"))
	f.Add(uint64(1), framesOf(whole...))
	f.Add(uint64(2), framesOf(plausible("/v1/embeddings", []byte("x"), []byte("1"))...))
	f.Add(uint64(3), framesOf(append(whole, whole...)...))
	f.Add(uint64(4), append(framesOf(whole[:2]...), 3, 0xff, 0xff, 0xff))
	for i := range 30 {
		var reqs []*extprocv3.ProcessingRequest
		for range 1 + r.IntN(6) {
			reqs = append(reqs, randomRequest(r))
		}
		f.Add(uint64(i), framesOf(reqs...))
	}
	c := newCodec(new(bufferPool), "x-timeout")
	f.Fuzz(func(t *testing.T, seed uint64, frames []byte) {
		require.NoError(t, runFrames(c, seed, frames), "seed %d", seed)
	})
}

func runFrames(c *codec, seed uint64, frames []byte) error {
	r := rand.New(rand.NewPCG(seed, 2))
	rules := testRules()
	rules.hold, rules.fallback, rules.buffers = r.IntN(4) > 0, r.IntN(2) == 0, c.buffers
	x := &mainRandom{r: r, m: &mainLeg{rules: rules}, now: testStart}
	x.m.way = pickOf(r, way{}, way{gateway: true}, way{gateway: true, plain: true})
	for range 64 {
		frame, n := protowire.ConsumeBytes(frames)
		if n < 0 || x.closed {
			break
		}
		frames = frames[n:]
		var in incoming
		if err := c.Unmarshal(pieces(r, frame), &in); err != nil {
			return err
		}
		if in.ev.kind == 0 {
			continue
		}
		if err := x.frame(in.ev); err != nil {
			return err
		}
		for range r.IntN(3) {
			if err := x.beside(); err != nil {
				return err
			}
		}
	}
	return x.settle()
}

// frame sends what was read, as mainStream would.
func (x *mainRandom) frame(ev *event) error {
	switch ev.kind {
	case evResponseBody: // numbered, so that its order can be checked
		x.came++
		ev.body = strconv.AppendInt(ev.body[:0], int64(x.came), 10)
	case evResponseTrailers:
		x.came++
	case evResponseHeaders:
		if ev.hints != nil {
			ev.answerer = pickOf(x.r, &answerer{}, &answerer{rank: worker.Rank{ID: 4}, known: true})
		}
	}
	return x.send(*ev, fmt.Sprintf("frame %d eos=%t %+v", ev.kind, ev.endOfStream, ev.headers))
}

// beside does something that is no message of Envoy's.
func (x *mainRandom) beside() error {
	switch {
	case x.picking:
		return x.answerPick()
	case x.prefilling:
		return x.answerPrefill()
	case x.collecting:
		return x.answerCollect()
	case x.r.IntN(4) == 0:
		x.now = x.now.Add(pickOf(x.r, time.Millisecond, 2*time.Second, time.Minute))
		return x.timer()
	case x.routed > 0 && x.disaggregated && !x.ended:
		rep := legReport{state: legStarted + legState(x.r.IntN(4)), reason: pickOf(x.r, randomReasons...), status: pickOf(x.r, 200, 400, 429, 500)}
		x.ended = rep.state == legEnded
		return x.send(event{kind: evLeg, leg: rep}, "leg "+rep.state.String()+" "+string(rep.reason))
	}
	return nil
}

// requireReadAlike holds what the codec reads of a message to what protobuf does.
func requireReadAlike(t *testing.T, c *codec, b []byte, cut uint64) {
	var in incoming
	data := pieces(rand.New(rand.NewPCG(cut, cut)), b)
	require.NoError(t, c.Unmarshal(data, &in))
	defer func() { c.buffers.put(in.ev.body) }()
	var req extprocv3.ProcessingRequest
	err := proto.Unmarshal(b, &req)
	if err != nil || in.ev.kind == evMalformed {
		return // text that is no UTF-8, which we do not look at; or groups, which nobody sends
	}
	want, known := eventOf(&req, "x-timeout")
	require.Equal(t, known, in.ev.kind != 0)
	requireSameConfig(t, &req, in.ev)
	if !known {
		return
	}
	require.Equal(t, want.kind, in.ev.kind)
	require.Equal(t, want.endOfStream, in.ev.endOfStream)
	require.True(t, bytes.Equal(want.body, in.ev.body))
	require.Equal(t, want.headers, in.ev.headers)
	if fieldsOf(b, fieldAttributes) <= 1 { // of several, which one counts is a matter of order
		requireSameHints(t, hintsOf(&req), in.ev.hints)
	}
}

// requireSameConfig compares what is said of bodies.
func requireSameConfig(t *testing.T, req *extprocv3.ProcessingRequest, ev *event) {
	answers := req.GetProtocolConfig().GetResponseBodyMode()
	require.Equal(t, req.GetProtocolConfig().GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ev.fullDuplex)
	require.Equal(t, answers == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ev.answerDuplex)
	require.Equal(t, answers != extprocfilterv3.ProcessingMode_NONE, ev.answerBodies)
}

// fieldsOf counts how often a message has a field.
func fieldsOf(b []byte, field protowire.Number) (n int) {
	_ = each(b, func(num protowire.Number, _ uint64, _ []byte) error {
		if num == field {
			n++
		}
		return nil
	})
	return n
}
