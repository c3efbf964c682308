package leg

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// framesOf writes messages one after the other, each after its length.
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

// FuzzMainFrames sends a main leg any bytes as Envoy's messages, read by the codec.
// Between the messages it sends the other events. It holds the machine to the invariants
// of the package documentation.
func FuzzMainFrames(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	whole := wiretest.Plausible("/v1/completions", []byte(`{"model":"m","prompt":"hi"}`), []byte("1"))
	f.Add(uint64(1), framesOf(whole...))
	f.Add(uint64(2), framesOf(wiretest.Plausible("/v1/embeddings", []byte("x"), []byte("1"))...))
	f.Add(uint64(3), framesOf(append(whole, whole...)...))
	f.Add(uint64(4), append(framesOf(whole[:2]...), 3, 0xff, 0xff, 0xff))
	for i := range 30 {
		var reqs []*extprocv3.ProcessingRequest
		for range 1 + r.IntN(6) {
			reqs = append(reqs, wiretest.RandomRequest(r))
		}
		f.Add(uint64(i), framesOf(reqs...))
	}
	pool := new(wire.Pool)
	c := wire.NewCodec(pool, wire.Config{TimeoutHeader: "x-timeout", Named: pin.Known})
	f.Fuzz(func(t *testing.T, seed uint64, frames []byte) {
		require.NoError(t, runFrames(c, pool, seed, frames), "seed %d", seed)
	})
}

func runFrames(c *wire.Codec, pool *wire.Pool, seed uint64, frames []byte) error {
	r := rand.New(rand.NewPCG(seed, 2))
	rules := testRules()
	rules.Hold, rules.Fallback, rules.Buffers = r.IntN(4) > 0, r.IntN(2) == 0, pool
	x := &mainRandom{r: r, m: mainOf(rules, Way{}), now: testStart}
	x.m.way = pickOf(r, Way{}, Way{Sends: true}, Way{Speaks: Gateway}, Way{Speaks: PlainGateway})
	for range 64 {
		frame, n := protowire.ConsumeBytes(frames)
		if n < 0 || x.closed {
			break
		}
		frames = frames[n:]
		var in wire.Message
		if err := c.Unmarshal(wiretest.Pieces(r, frame), &in); err != nil {
			return err
		}
		if in.Kind == 0 {
			continue
		}
		if err := x.frame(EventOf(&in), in.Hints != nil); err != nil {
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

// frame sends a message that was read, as mainStream would.
func (x *mainRandom) frame(ev Event, hinted bool) error {
	switch ev.Kind {
	case EventResponseBody: // pieces are numbered, so that their order can be checked
		x.came++
		ev.Body = strconv.AppendInt(ev.Body[:0], int64(x.came), 10)
	case EventResponseTrailers:
		x.came++
	case EventResponseHeaders:
		if hinted {
			ev.Answerer = pickOf(x.r, &Answerer{}, &Answerer{Rank: worker.Rank{ID: 4}, Known: true})
		}
	}
	return x.send(ev, fmt.Sprintf("frame %d eos=%t %+v", ev.Kind, ev.EndOfStream, ev.Headers))
}

// beside sends an event that is not a message of Envoy's.
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
		rep := Report{State: Started + State(x.r.IntN(4)), Reason: pickOf(x.r, randomReasons...), Status: pickOf(x.r, 200, 400, 429, 500)}
		x.ended = rep.State == Ended
		return x.send(Event{Kind: EventLeg, Leg: rep}, "leg "+rep.State.String()+" "+string(rep.Reason))
	}
	return nil
}
