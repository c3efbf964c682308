package extproc

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fleet is a replica with the workers of a scenario.
type fleet struct {
	*replica
	t      *testing.T
	ids    []worker.ID
	tele   *telemetry.Telemetry
	client *grpc.ClientConn
	books  map[worker.Rank]load.Load // before the scenario
	opened chan *tap                 // the server's side of each stream
}

// pipeSize is how many bytes a connection within the process takes before they are read.
const pipeSize = 1 << 20

func newFleet(t *testing.T, d *datadriven.TestData, lines []string, set ...func(*Config)) *fleet {
	f := &fleet{t: t, opened: make(chan *tap, 1)}
	var ws fixed
	loads := make(map[worker.ID]int)
	for _, line := range lines {
		w, n := workerOf(t, line)
		ws, loads[w.ID], f.ids = append(ws, w), n, append(f.ids, w.ID)
	}
	var err error
	f.tele, err = telemetry.New(telemetry.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.tele.Shutdown(context.Background())) })
	f.replica = newReplicaOn(t, bufconn.Listen(pipeSize), "a", ws, func(c *Config) {
		c.Telemetry = f.tele.Instruments
		c.Gateway = Gateway{Enabled: true, Endpoints: num(t, d, "endpoints", 1), ReasonHeader: "x-dropped", PassUnknown: d.HasArg("pass-unknown"), SelectionHeader: d.HasArg("selection")}
		c.Sidecar = d.HasArg("sidecar")
		// Only the scenario makes time pass: nothing times out by itself.
		c.StartTimeout, c.OverdueBase = time.Minute, 5*time.Minute
		c.MaxBodyBytes, c.MaxQueuedISLTokens = num(t, d, "max-body", c.MaxBodyBytes), int64(num(t, d, "queue", 0))
		for _, set := range set {
			set(c)
		}
	})
	f.occupy(ws, loads)
	f.serve()
	f.books = f.loads()
	return f
}

// workerOf reads the line of a worker; busy is its load.
func workerOf(t *testing.T, line string) (w *worker.Worker, busy int) {
	words := strings.Fields(line)
	require.GreaterOrEqual(t, len(words), 3, line)
	id, err := worker.ParseID(words[0])
	require.NoError(t, err)
	role, err := worker.ParseRole(words[1])
	require.NoError(t, err)
	at, err := worker.ParseEndpoint(words[2])
	require.NoError(t, err)
	w = &worker.Worker{ID: id, Role: role, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 4}
	if role == worker.Prefill {
		w.Bootstrap = worker.Bootstrap{Host: at.AddrPort().Addr().String(), Port: 8998}
	}
	for _, word := range words[3:] {
		key, value, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "ranks":
			w.DPSize = uint32(n)
		case "own-ports":
			w.PortPerRank = true
		case "alone":
			w.AcceptsAggregated = true
		case "load":
			busy = n
		case "model":
			w.Models = strings.Split(value, ",")
		case "untold":
			w.Engine, w.Models, w.BlockSize, w.FactsUnknown = "", nil, 0, true
		default:
			require.Fail(t, "unknown word", word)
		}
	}
	return w, busy
}

// occupy books load, so that no two costs are equal and no pick depends on chance. A worker
// with more load costs more, and so does, a little, a higher rank.
func (f *fleet) occupy(ws fixed, loads map[worker.ID]int) {
	held := make([]load.Reservation, 0, 64)
	for _, w := range ws {
		for dp := range w.DPSize {
			n := loads[w.ID] + int(dp)
			if n == 0 {
				continue
			}
			req := &load.Request{Params: &f.srv.cfg.Aggregated}
			req.Pick.Role, req.Pick.ISLTokens, req.Pick.NewBlocks = w.Role, 16*n, 4*n
			held = append(held, load.Reservation{})
			require.Less(f.t, len(held), cap(held))
			require.NoError(f.t, f.book.Reserve(req, worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}, 0, &held[len(held)-1]))
		}
	}
	f.t.Cleanup(func() {
		for i := range held {
			held[i].Release(time.Now())
		}
		f.requireIdle()
	})
}

// serve starts another gRPC server for the replica, with a tap on each stream.
func (f *fleet) serve() {
	l := bufconn.Listen(pipeSize)
	g := grpc.NewServer(append(f.srv.GRPCOptions(), grpc.StreamInterceptor(f.tapped))...)
	f.srv.Register(g)
	ended := make(chan struct{})
	go func() { _ = g.Serve(l); close(ended) }()
	f.client = dial(f.t, l,
		grpc.WithInitialWindowSize(64<<20), grpc.WithInitialConnWindowSize(64<<20), // answers are read only between messages
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30)))
	f.t.Cleanup(func() {
		require.NoError(f.t, f.client.Close())
		g.Stop()
		<-ended
	})
}

func (f *fleet) tapped(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	tp := &tap{ServerStream: s, reads: make(chan struct{}, 1<<16), done: make(chan struct{})}
	f.opened <- tp
	defer close(tp.done)
	return h(srv, tp)
}

// open opens a stream as the filter of the mode does.
func (f *fleet) open(m mode, routing string) *frameStream {
	var md []string
	if m.twoLeg {
		md = []string{filterKey, filterMain, protocolKey, "gateway"}
	}
	if routing != "" {
		md = append(md, routingKey, routing)
	}
	return f.stream(m, md...)
}

func (f *fleet) stream(m mode, md ...string) *frameStream {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), md...), time.Minute)
	f.t.Cleanup(cancel)
	s, err := f.client.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/envoy.service.ext_proc.v3.ExternalProcessor/Process")
	require.NoError(f.t, err)
	out := &frameStream{fleet: f, mode: m, s: s, cancel: cancel, counted: f.counters()}
	out.tap = <-f.opened
	<-out.tap.reads
	return out
}

// loads returns the load of each rank that the book knows.
func (f *fleet) loads() map[worker.Rank]load.Load {
	out := make(map[worker.Rank]load.Load)
	for _, id := range f.ids {
		for r := (worker.Rank{ID: id}); ; r.DPRank++ {
			l, known := f.book.Load(r)
			if !known {
				break
			}
			out[r] = l
		}
	}
	return out
}

// booked prints what is booked beyond what occupy has booked.
func (f *fleet) booked() string {
	var out []string
	now := f.loads()
	for _, r := range slices.SortedFunc(maps.Keys(now), worker.Rank.Compare) {
		prefills, decodes := now[r].PrefillRequests-f.books[r].PrefillRequests, now[r].DecodeRequests-f.books[r].DecodeRequests
		if prefills != 0 || decodes != 0 {
			out = append(out, fmt.Sprintf("%s prefill=%d decode=%d", r, prefills, decodes))
		}
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// counters reads the counters that scenarios show.
func (f *fleet) counters() map[string]int {
	out := make(map[string]int)
	for line := range strings.SplitSeq(f.shown(), "\n") {
		name, value, _ := strings.Cut(line, " ")
		metric, _, _ := strings.Cut(name, "{")
		switch metric {
		case telemetry.MetricFailures, telemetry.MetricServedElsewhere, telemetry.MetricSubsetFaults, telemetry.MetricFreshPicks, telemetry.MetricPanics:
			n, err := strconv.ParseFloat(value, 64)
			require.NoError(f.t, err)
			out[name] = int(n)
		}
	}
	return out
}

// shown returns the metrics page.
func (f *fleet) shown() string {
	w := httptest.NewRecorder()
	f.tele.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(w.Result().Body)
	require.NoError(f.t, err)
	return string(text)
}

// leave tells the attempts that wait for legs that the workers have left.
func (f *fleet) leave() { f.srv.OnChange(f.srv.view.Load(), discovery.Change{Left: f.ids}) }

// tap is the server's side of a stream. When the server's reader asks for the next message,
// all that the message before has caused was sent.
type tap struct {
	grpc.ServerStream
	reads chan struct{}
	sent  chanCounter
	done  chan struct{}
}

func (t *tap) RecvMsg(m any) error {
	t.reads <- struct{}{}
	return t.ServerStream.RecvMsg(m)
}

func (t *tap) SendMsg(m any) error {
	t.sent.add()
	return t.ServerStream.SendMsg(m)
}

// rawCodec leaves messages as they are on the wire.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "proto" }

// bodyOf makes a body of n bytes. It is a request, if n is large enough, whose text has
// characters of several bytes and escapes.
func bodyOf(n int) []byte {
	const head, tail = `{"model":"m","prompt":"`, `"}`
	if n < len(head)+len(tail) {
		return []byte(head[:n])
	}
	out := append(make([]byte, 0, n), head...)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for {
		piece := []string{"hello ", "é", "世界", "😀", `\u00e9`, `\ud83d\ude00`, `\\`, `\"`, `\n`}[r.IntN(9)]
		if len(out)+len(piece)+len(tail) > n {
			break
		}
		out = append(out, piece...)
	}
	for len(out)+len(tail) < n {
		out = append(out, 'x')
	}
	return append(out, tail...)
}
