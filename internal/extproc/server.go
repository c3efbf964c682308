package extproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The key and the values by which the filter's initial metadata says which leg a stream is.
const (
	filterKey     = "x-baton-filter"
	filterMain    = "main"
	filterPrefill = "prefill"
	filterSync    = "sync"
	filterFirst   = "first_token"
)

// Further keys of the metadata of a main leg's filter. Only the filter, and no header, says
// whether names of workers in a request are obeyed.
const (
	routingKey       = "x-baton-routing"        // prerouted or direct; absent: names of workers are not obeyed
	routingRepickKey = "x-baton-repick"         // true: who names workers is asked again on each attempt
	routingFieldsKey = "x-baton-routing-fields" // refuse: names are obeyed in headers, and refused in bodies
	protocolKey      = "x-baton-protocol"       // the endpoint picker protocol, and what is beside the filter
)

// legsKey with the value sent says that Envoy mirrors no leg: the plugin sends each prefill leg
// itself, and the filter fails closed. An earlier version, which would wait for a mirror,
// refuses such a stream.
const legsKey = "x-baton-legs"

// errorsKey with the value shown says that the filter has allow_mode_override, so that the
// body of an error can be asked for. Versions before it refuse keys that begin with x-baton-.
const errorsKey = "baton-errors"

// The values of protocolKey.
const (
	protocolGateway = "gateway"         // with all that two legs need
	protocolOneLeg  = "gateway-one-leg" // with nothing of ours
)

// Server is Envoy's external processor. Safe for concurrent use.
type Server struct {
	// Set at construction, read-only.
	cfg     Config
	log     *slog.Logger
	rules   *leg.Rules
	replies *wire.Writer
	sealer  *prefill.Sealer
	owner   string
	view    *discovery.View

	bodies   *budget.Budget
	router   *route.Router
	lately   outlen.Lately // how long and how fast answers have been of late
	attempts *registry
	unrouted unrouted
	avoid    *avoidList
	doubts   doubts
	liars    liars
	pairs    pairs
	shapes   *shapes
	said     said
	clocks   clocks
	tellers  tellers
	patience patience.Limits
	// Paces are what is learned of how long workers take.
	Paces     Paces
	leavers   leavers
	collected once
	peers     *peers
	carriers  carriers
	readers   tasks // of streams that the plugin may leave
	waiting   waiting
	still     atomic.Int64 // streamed answers whose bytes stand still
	engines   tasks        // decisions that wait for a tokenizer, and watches of other replicas

	legClient *legClient      // nil: no listener for legs of our own is configured
	legs      context.Context //nolint:containedctx // ends the legs of our own, which outlive their requests
	stopLegs  context.CancelFunc
	senders   tasks // the plugin's own legs that are on their way
	guests    guests

	unheard bool // owned by OnChange: a known worker needs PrefillListener, which is not set

	door door
}

// New returns a server.
func New(cfg Config) (*Server, error) {
	if cfg.View == nil || cfg.Board == nil || cfg.Index == nil || cfg.Routes == nil || cfg.Slots == nil || cfg.Tokens == nil || cfg.Book == nil || cfg.Health == nil || cfg.Instance == "" {
		return nil, errors.New("extproc: expected all of View, Board, Index, Routes, Slots, Tokens, Book, Health and Instance")
	}
	cfg = cfg.withDefaults()
	sealer, err := prefill.NewSealer(cfg.LegKey)
	if err != nil {
		return nil, err
	}
	srv := &Server{
		cfg: cfg, log: cfg.Logger, rules: cfg.rules(), sealer: sealer, view: cfg.View,
		owner: cfg.Instance, attempts: newRegistry(), unrouted: newUnrouted(), avoid: newAvoidList(cfg.MaxTimeout), leavers: newLeavers(), shapes: newShapes(), doubts: newDoubts(cfg.Telemetry, cfg.Logger), pairs: pairs{counts: cfg.Telemetry, log: cfg.Logger}, collected: newOnce(),
		bodies: budget.New(cfg.MaxBodiesBytes), door: newDoor(), said: said{log: cfg.Logger},
	}
	srv.replies = wire.NewWriter(srv.rules.Buffers)
	srv.legs, srv.stopLegs = context.WithCancel(context.Background())
	if cfg.PrefillListener != "" {
		srv.legClient, err = newLegClient(cfg.PrefillListener, cfg.MaxLegs, cfg.Logger)
		if err != nil {
			return nil, err
		}
	}
	srv.router, err = route.New(srv.routing())
	if err != nil {
		return nil, err
	}
	if cfg.Advertise != "" {
		srv.owner += "@" + cfg.Advertise
	}
	srv.Paces.fleets, srv.Paces.pairs = make(map[paced]*fleetPace), make(map[worker.Key]*pairPace)
	srv.peers = newPeers(cfg.Advertise, strconv.FormatUint(newNonce(), 36), cfg.Logger, cfg.PeerCredentials, func() { cfg.Telemetry.Leg("report_lost", "") })
	if token, err := sealer.Seal(prefill.Leg{Kind: prefill.SyncLeg, Owner: srv.owner}); err == nil { // else no leg can be sealed, which each request tells
		srv.peers.token = token
	}
	return srv, nil
}

// timeoutHeader has the client's own deadline, in milliseconds.
const timeoutHeader = "x-request-timeout-ms"

// GRPCOptions returns the options that the gRPC server needs for Envoy's streams. Bodies
// come in messages as large as Envoy's buffers, so the windows are large, too.
func (srv *Server) GRPCOptions() []grpc.ServerOption {
	c := wire.NewCodec(srv.rules.Buffers, wire.Config{
		TimeoutHeader: timeoutHeader, Named: pin.Known, KeepHeaders: srv.legClient != nil,
	})
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(c),
		experimental.BufferPool(srv.rules.Buffers), // gRPC's own pool clears memory, which takes time
		// Without a limit anybody who reaches the port could make the plugin take
		// 2 GiB. The limit is above MaxBodyBytes, so that a larger body gets a 413.
		grpc.MaxRecvMsgSize(min(2*max(srv.cfg.MaxBodyBytes, 64<<20)+1<<20, math.MaxInt32)),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		// Messages for a proxy that has vanished must not stay in memory.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		// Envoy asks every 5 s whether the plugin is there. gRPC would take more than one such question in 5 minutes for an attack.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
	}
}

// Register adds the services to g: the external processor, the access log and the calls
// between replicas.
func (srv *Server) Register(g *grpc.Server) {
	wire.Register(g, srv.process, (&accessLog{srv: srv}).serve)
	g.RegisterService(legsDesc(srv), srv)
}

// process serves one stream, which is one leg of one attempt.
func (srv *Server) process(g *wire.Stream) error {
	md, _ := metadata.FromIncomingContext(g.Context()) // a copy, so it is made once
	said := initial(md, filterKey)
	plain := said == "" && srv.cfg.Gateway.Enabled
	switch {
	case plain:
		said = filterMain
	case said != filterMain && said != filterPrefill && said != filterSync && said != filterFirst:
		return srv.said.misled(fmt.Errorf(
			"initial metadata %s is %q: expected %s, %s, %s or %s; set it on the ext_proc filter's grpc_service, or gateway.enabled here for one of a Gateway API implementation",
			filterKey, said, filterMain, filterPrefill, filterSync, filterFirst))
	}
	if err := strangeKey(md); err != nil {
		return srv.said.misled(err)
	}
	if srv.blind() {
		return status.Error(codes.Unavailable, "this replica does not know its workers yet")
	}
	srv.cfg.Telemetry.StreamOpened(said)
	defer srv.cfg.Telemetry.StreamClosed(said)
	switch said {
	case filterMain:
		return srv.processMain(g, md, plain)
	case filterPrefill:
		s := &prefillStream{stream: newStream(srv, g), m: leg.NewPrefill(srv.rules)}
		s.act.handle = s.handle
		s.read()
	case filterFirst: // the plugin leaves the stream at the first token
		s := &firstStream{stream: newStream(srv, g), token: initial(md, prefill.HeaderLeg)}
		s.act.handle = s.handle
		return s.readAside()
	case filterSync: // the plugin leaves the stream once the leg is admitted
		s := &syncStream{stream: newStream(srv, g)}
		s.act.handle = s.handle
		return s.readAside()
	}
	return nil
}

// blind reports whether this process refuses streams, since it has other replicas and does
// not know its workers yet: legs of the other replicas' attempts could not start here. A
// process without other replicas answers requests with not_ready instead.
func (srv *Server) blind() bool { return srv.rules.Replicas && !srv.cfg.Board.Load().Ready() }

// processMain serves a main leg, whose stream the plugin may leave before Envoy ends it. The
// argument plain is true if the filter has no metadata of Baton's; see Gateway.Enabled.
func (srv *Server) processMain(g *wire.Stream, md metadata.MD, plain bool) error {
	filter, err := filterOf(md, plain)
	if err != nil {
		return srv.said.misled(err)
	}
	s := &mainStream{stream: newStream(srv, g), asked: asked{began: time.Now()}, filter: filter, m: leg.NewMain(srv.rules, filter.Way)}
	s.act.handle = s.handle
	if !srv.door.enter(s) { // Envoy tries another replica, and leaves this one alone for a while
		return status.Error(codes.Unavailable, "this process is about to end")
	}
	defer srv.door.leave(s)
	return s.readAside()
}

func newStream(srv *Server, g *wire.Stream) stream {
	return stream{srv: srv, grpc: g, over: make(chan struct{})}
}

// initial reads a value of the stream's initial metadata.
func initial(md metadata.MD, key string) string {
	return strings.Join(md.Get(key), ",") // several, joined, are no value that is known
}

// OnChange must be called for each change of the view, one call at a time. It tells attempts
// that a worker of theirs has left. The argument old is the snapshot before the change.
func (srv *Server) OnChange(old *worker.Snapshot, c discovery.Change) {
	if len(c.Left) > 0 {
		srv.leavers.add(c.Left, old, time.Now())
		srv.attempts.gone(c.Left, c.Moved)
		srv.patience.Forget(c.Left)
		srv.liars.keep(srv)
	}
	srv.Paces.tell(&srv.cfg)
	srv.pairs.do(func(b *sides.Book) { b.Keep(idsOf(srv.cfg.Board.Load().Workers()), c.Changed) })
	err := srv.CheckListener()
	if err != nil && !srv.unheard {
		srv.log.Error("a worker has joined that cannot be used", logkey.Err, err)
	}
	srv.unheard = err != nil
}

func idsOf(ws []*worker.Worker) []worker.ID {
	ids := make([]worker.ID, len(ws))
	for i, w := range ws {
		ids[i] = w.ID
	}
	return ids
}

// Heard must be called when KV events of a rank have begun or ceased to arrive.
func (srv *Server) Heard() { srv.router.Heard() }

// routing returns the configuration of the router.
func (srv *Server) routing() route.Config {
	c := &srv.cfg
	return route.Config{
		Board: c.Board, Newer: newerOf(c.Board, c.View), Book: c.Book, Health: c.Health,
		Overlap: overlap.Config{Index: c.Index, Slots: c.Slots, Tells: c.Tells, Predicts: c.Predicts},
		Routes:  c.Routes, Estimate: c.Tokens.Estimate, Expect: srv.lately.Expect,
		Apart: srv.pairs.apart.Load, Left: srv.leavers.has, LeftFrom: srv.leavers.hasAt, Policy: srv.policy(),
		Prefill: c.Prefill, Decode: c.Decode, Aggregated: c.Aggregated, Targets: c.Targets,
		Conditional: c.Conditional, Overrides: c.Overrides, MaxQueuedISLTokens: c.MaxQueuedISLTokens,
		PassUnknown: c.Gateway.PassUnknown,
		HandedOver:  func(member string) bool { return slices.Contains(c.HandedOver, member) },
		Unweighed:   srv.said.weighed,
	}
}

// worldLag bounds how long to wait until the board has followed the view. The board usually
// needs well under a millisecond; on a machine that is short of CPU it may need far longer,
// and the request is better served late than refused.
const worldLag = time.Second

// newerOf returns route.Config's function Newer, which finds a world that is later than the
// given one. If the view is later already, the function waits for the board.
func newerOf(board *activation.Board, view *discovery.View) func(than *activation.World) (*activation.World, time.Time) {
	return func(than *activation.World) (*activation.World, time.Time) {
		if than.Revision() < view.Load().Revision() {
			select {
			case <-than.Replaced():
			case <-time.After(worldLag):
			}
		}
		now := board.Load()
		if now == than {
			return nil, time.Time{}
		}
		return now, time.Now()
	}
}

// Drain prepares the end of the process. From now on the plugin leaves each stream as soon as
// it can. New requests are served while a main leg is open that was open at the start, for
// the time serve at most. Then new requests are refused, and only legs come in. Drain returns
// when no main leg is open, no leg of another replica's attempts runs here and no attempt may
// have held KV to collect, or when ctx ends. So it waits for the legs whose KV may have to be
// collected, also if the client has gone, and not for others that outlive their client.
func (srv *Server) Drain(ctx context.Context, serve time.Duration) error {
	old := srv.door.goOn(stageDraining)
	for _, s := range append(srv.attempts.all(), old...) { // some are told twice, which does no harm
		s.post(just(leg.Event{Kind: leg.EventDrain}))
	}
	serving, cancel := context.WithTimeout(ctx, serve)
	defer cancel()
	_ = await(serving, func() bool { return !slices.ContainsFunc(old, srv.door.holds) })
	open := srv.door.goOn(stageRefusing)
	srv.log.Info("new requests are refused", logkey.Streams, len(open), logkey.LegsOfOthers, srv.guests.len())
	defer srv.door.goOn(stageEnding)
	return await(ctx, func() bool {
		return srv.Streams() == 0 && !srv.door.again.due(time.Now()) && srv.guests.len() == 0 &&
			!slices.ContainsFunc(srv.attempts.all(), func(s *mainStream) bool { return s.owes.Load() })
	})
}

// await calls ok again and again, until it returns true or ctx ends.
func await(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Streams returns the number of open main legs.
func (srv *Server) Streams() int { return srv.door.len() }

// Attempts returns the number of attempts that are not over: a leg still runs, perhaps one
// whose stream the plugin has left.
func (srv *Server) Attempts() int { return srv.attempts.len() }

// Close waits until the reader of each stream has ended, and ends the plugin's own legs. The
// gRPC server must have been stopped before.
func (srv *Server) Close() {
	srv.readers.close()
	srv.stopLegs()
	srv.senders.close()
	srv.engines.close()
	if srv.legClient != nil {
		srv.legClient.close()
	}
	srv.peers.close()
}

// newNonce returns a name for an attempt, never 0. It need not be secret: tokens are sealed.
func newNonce() uint64 { return rand.Uint64() | 1 }
