package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/facts"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/loads"
	"github.com/seed-60ae5743/baton/internal/mesh"
	"github.com/seed-60ae5743/baton/internal/modelfiles"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/shadow"
	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// plugin holds all parts of one process.
type plugin struct {
	cfg     config.Config
	log     *slog.Logger
	started time.Time

	tele     *telemetry.Telemetry
	journal  *journal.Journal
	view     *discovery.View
	board    *activation.Board
	slots    *kvindex.Slots // of index
	index    kvindex.Index
	routes   *overlap.Routes
	events   *kvevents.Subscriber
	book     *load.Book
	health   *health.Tracker
	reports  *loads.Poller // asks engines what they run
	facts    []*facts.Source
	expired  *expired
	tokens   *tokens.Resolver
	files    *modelfiles.Follower
	server   *extproc.Server
	mesh     *mesh.Hub                        // nil: other replicas cannot reach this one
	creds    credentials.TransportCredentials // nil: plain text
	memory   memory
	grpc     *grpc.Server
	probes   *probes
	history  *history
	hour     *hour.Hour
	told     trouble.Board // what parts have met
	ignored  []string      // parts of another picker's scheduler; set before the scrapes begin
	troubles troubles
	certs    certs
	dumping  chan struct{}         // has room for one: only one dump of the index is written at a time
	known    chan struct{}         // closed once the workers are known, and what their engines are
	refused  map[worker.Key]string // owned by onChange: why requests for a key are refused
	closers  []io.Closer           // of the discovery sources
	shown    struct {
		sync.Once
		config string
	}
	pools pools
	// waiting is set from the start of run until engines have had their time to say what
	// they are.
	waiting atomic.Bool
	dry     bool // made to be checked, and not to run

	recorder *record.Recorder // nil: decisions are not recorded
	shadow   *shadow.Shadow   // nil: there is no second policy
}

// Check makes every part and runs none, so that `extproc check` finds the faults that
// serve would find.
func Check(c config.Config) error {
	p, err := newPlugin(c, io.Discard, func(p *plugin) { p.dry = true })
	if err != nil {
		return err
	}
	p.grpc.Stop()
	p.tokens.Close()
	_ = closeAll(p.closers)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return p.tele.Shutdown(ctx)
}

func newPlugin(c config.Config, stderr io.Writer, change ...func(p *plugin)) (*plugin, error) {
	m := memoryHere()
	p := &plugin{cfg: sized(c, m), memory: m, started: time.Now(), history: &history{}, hour: hour.New(time.Now()), refused: map[worker.Key]string{}, dumping: make(chan struct{}, 1), known: make(chan struct{})}
	p.expired = &expired{plugin: p}
	p.probes = newProbes()
	p.pools.told = p.probes.pools
	for _, f := range change {
		f(p)
	}
	var err error
	p.log, err = telemetry.NewLogger(stderr, c.Log.Level, c.Log.Format)
	if err != nil {
		return nil, config.Usage(err)
	}
	version, revision := buildVersion()
	p.tele, err = telemetry.New(telemetry.Config{
		Version: version, Revision: revision, Logger: p.log, Trace: c.Trace.Spans(), Hour: p.hour,
	})
	if err != nil {
		return nil, config.Usage(err)
	}
	p.journal, err = journal.New(c.Journal)
	if err != nil {
		return nil, config.Usage(err)
	}
	if err := p.newWorld(); err != nil {
		return nil, config.Usage(err)
	}
	if err := p.newServer(); err != nil {
		return nil, config.Usage(err)
	}
	return p, nil
}

// newWorld makes the parts that know the workers.
func (p *plugin) newWorld() error {
	allowed, err := Allowed(&p.cfg)
	if err != nil {
		return err
	}
	opened, err := p.cfg.Discovery.Open(sources.World{
		Log: p.log, Agent: "baton/" + Version(), Namespace: p.cfg.Namespace, Allowed: allowed, Dry: p.dry,
		Asking: p.asking, Expires: p.expired.source, Presence: p.pools.note,
	})
	if err != nil {
		return err
	}
	p.closers = opened.Closers
	p.pools.all = len(p.cfg.Discovery.Kubernetes)
	p.pools.beside = len(opened.Sources) > p.pools.all
	p.view, err = discovery.New(discovery.Config{
		Sources: opened.Sources, Hooks: discovery.Hooks{Transition: p.onTransition, Problem: p.onProblem},
	})
	if err != nil {
		return err
	}
	p.board = activation.New()
	p.book = load.New(mathrand.Uint64())
	around, err := toEngines(&p.cfg.Engines, p.view.Load, p.log)
	if err != nil {
		return err
	}
	p.expired.client = health.NewClient(around)
	p.reports = p.newReports(around)
	h := p.cfg.Health.Tracker()
	h.Around, h.Hooks = around, health.Hooks{Transition: p.onHealth}
	p.health = health.New(h)
	return newTokens(p, around)
}

func (p *plugin) newServer() error {
	p.slots = kvindex.NewSlots()
	var err error
	p.index, err = newIndex(kvindex.NewTree, p.cfg.Tree(), p.slots, p.log)
	if err != nil {
		return err
	}
	p.routes = overlap.NewRoutes(p.index)
	if err := p.newEvents(); err != nil {
		return err
	}
	conf, err := p.cfg.Server()
	if err != nil {
		return err
	}
	conf.LegKey, err = config.LegKey(p.cfg.Leg.KeyFile)
	if err != nil {
		return err
	}
	p.certs.log = p.log
	p.creds, err = p.certs.transport(p.cfg.TLS)
	if err != nil {
		return err
	}
	conf.PeerCredentials, err = p.certs.toReplicas(p.cfg.TLS)
	if err != nil {
		return err
	}
	conf.Instance = instance()
	conf.View, conf.Board, conf.Tokens, conf.Book, conf.Health = p.view, p.board, p.tokens, p.book, p.health
	conf.Index, conf.Routes, conf.Slots, conf.Tells = p.index, p.routes, p.slots, p.events.Tells
	conf.Resync, conf.Events = p.events.Resync, p.events.Heard
	conf.Ready = p.isReady
	conf.Journal, conf.Telemetry, conf.Tracer, conf.Logger = p.journal, p.tele.Instruments, p.tele.Tracer, p.log
	conf.MaxLegs = mostLegs(p.log)
	if err := newRecorder(p); err != nil {
		return err
	}
	conf.Recorder = p.recorder
	p.server, err = extproc.New(conf)
	if err != nil {
		return err
	}
	if err := newMesh(p, &conf); err != nil {
		return err
	}
	p.grpc = p.newGRPC()
	return nil
}

// leastIndex is the smallest budget with which newIndex tries.
const leastIndex = 64 << 20

// openTree is kvindex.NewTree, except in tests.
type openTree func(kvindex.TreeConfig, *kvindex.Slots) (*kvindex.Tree, error)

// newIndex makes the index. If the system does not give it the address space, eight times
// the budget, newIndex tries with half the budget, again and again down to leastIndex.
func newIndex(open openTree, conf kvindex.TreeConfig, slots *kvindex.Slots, log *slog.Logger) (kvindex.Index, error) {
	if conf.MaxBytes == 0 {
		conf.MaxBytes = kvindex.DefaultMaxBytes
	}
	for {
		tree, err := open(conf, slots)
		if err == nil {
			return tree, nil
		}
		conf.MaxBytes /= 2
		if !errors.Is(err, syscall.ENOMEM) || conf.MaxBytes < leastIndex {
			return nil, err
		}
		log.Warn("the index gets less memory than index.max_bytes, since it needs eight times as much address space: raise that limit (ulimit -v), or lower index.max_bytes", logkey.MaxBytes, conf.MaxBytes, logkey.Err, err)
	}
}

// newGRPC makes a server for all services of the plugin's own listener.
func (p *plugin) newGRPC() *grpc.Server {
	options := p.server.GRPCOptions()
	if p.creds != nil {
		options = append(options, grpc.Creds(p.creds))
	}
	s := grpc.NewServer(options...)
	p.server.Register(s)
	if p.mesh != nil {
		p.mesh.Register(s)
	}
	healthv1.RegisterHealthServer(s, p.probes.health)
	return s
}

// instance returns a name of this process that is unique among replicas and among its
// lives.
func instance() string {
	name, _ := os.Hostname()
	return name + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(mathrand.Uint64()>>40, 36)
}

// Serve runs the plugin until ctx ends, then drains. The notes are logged at the start. given
// are the listeners that systemd has passed on, if any.
func Serve(ctx context.Context, c config.Config, notes []config.Note, given []net.Listener, stderr io.Writer) error {
	p, err := newPlugin(c, stderr)
	if err != nil {
		return err
	}
	d, err := p.open(given...)
	if err != nil {
		return err
	}
	d.tell(p)
	limitMemory(p.cfg.Request.MaxBodiesBytes, p.memory, p.log)
	for _, n := range notes {
		for _, x := range n.Ignored {
			p.ignored = append(p.ignored, x.Part)
			p.told.Put(trouble.Trouble{Kind: trouble.SchedulerIgnored, Subject: x.Part, What: n.Flag + ": " + x.Part + " has no counterpart", Effect: "In its place: " + x.Instead}, p.started)
		}
		if n.Level >= slog.LevelWarn && len(n.Ignored) == 0 {
			p.told.Set(trouble.ConfigIgnored, n.Flag, n.Flag+": "+n.Reason, p.started)
		}
		p.log.Log(ctx, n.Level, "this flag has no effect here", logkey.Flag, n.Flag, logkey.Reason, n.Reason)
	}
	return p.run(ctx, d)
}

// run serves until ctx ends, drains, and returns when every goroutine has ended. The
// parts that follow the workers run on while requests drain.
func (p *plugin) run(ctx context.Context, d *doors) error {
	world, endWorld := context.WithCancel(context.WithoutCancel(ctx))
	defer endWorld()
	g, world := errgroup.WithContext(world)
	p.waiting.Store(true)
	cancel := p.view.Subscribe(p.onChange)
	defer cancel()
	stopObserving, err := p.tele.Instruments.Observe(p.observe)
	if err != nil {
		return err
	}
	p.resumeIndex()
	g.Go(func() error { return p.view.Run(world) })
	g.Go(func() error { return p.events.Run(world) })
	if p.cfg.Tokens.Mode == "" || p.cfg.Tokens.Mode == string(tokens.Auto) { // else no tokens are made
		g.Go(func() error { return p.files.Run(world) })
	}
	g.Go(func() error { return watchTroubles(world, p) })
	g.Go(func() error { return p.keepIndex(world) })
	g.Go(func() error { return p.routes.Run(world) })
	g.Go(func() error { return p.recorder.Run(world) })
	g.Go(func() error { return p.shadow.Run(world) })
	g.Go(func() error { return p.health.Run(world) })
	if p.cfg.Engines.ReportInterval > 0 {
		g.Go(func() error { return p.reports.Run(world) })
	}
	g.Go(func() error { return d.page.Run(world) })
	g.Go(func() error { return sampleLoads(world, p) })
	main := inTurns(d.at)
	defer main.Close()
	g.Go(func() error { return serveGRPC(p.grpc, main.turn()) })
	g.Go(func() error { return takeCalls(world, p, d, main) })
	probing := newProbeServer(p.probes)
	if d.probes != nil {
		g.Go(func() error { return serveGRPC(probing, d.probes) })
	}
	if d.metrics != nil {
		g.Go(func() error { return p.serveMetrics(world, d.metrics) })
	}
	g.Go(func() error { return p.awaitView(world) })
	leave := join(ctx, p.mesh)
	select {
	case <-ctx.Done():
		p.drain(main)
	case <-world.Done(): // a part has failed
		p.grpc.Stop()
		_ = main.Close()
	}
	leave()
	p.server.Close()
	p.tokens.Close()
	endWorld()
	probing.Stop() // it answers probes through the drain
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	p.saveIndex() // after the last event
	flush, done := context.WithTimeout(context.Background(), 2*time.Second)
	defer done()
	return errors.Join(err, closeAll(p.closers), stopObserving(), p.tele.Shutdown(flush))
}

func serveGRPC(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// awaitView makes the plugin ready once the board has a set of workers, and each of them
// whose engine is asked for its facts has been asked once. Then it closes p.known: the other
// replicas tell what they have booked only where this one listens.
func (p *plugin) awaitView(ctx context.Context) error {
	select {
	case <-p.board.Ready():
		awaitAnswers(ctx, p.board, p.facts, p.log)
		close(p.known)
		awaitReplicas(ctx, p.mesh)
		p.waiting.Store(false)
		p.probes.becomeReady()
		p.log.Info("ready", logkey.Workers, len(p.board.Load().Workers()))
	case <-ctx.Done():
	}
	return nil
}

const (
	// mayWait is how long requests wait for engines' first answers before the plugin takes
	// them without: less than Envoy waits for the plugin (message_timeout).
	mayWait = 2 * time.Second
	// viewLate is when a start without a view is told.
	viewLate = 5 * time.Second
)

// awaitKnown waits until the workers are known, and told of as far as mayWait allows. Without
// a view nothing can be served, so there is no end to waiting for one.
func awaitKnown(ctx context.Context, p *plugin) {
	late := time.NewTimer(viewLate)
	defer late.Stop()
	for first := p.board.Ready(); ; {
		select {
		case <-p.known:
			return
		case <-first:
			first = nil
			late.Reset(mayWait)
		case <-late.C:
			if first == nil {
				return
			}
			_, why := p.isReady()
			p.log.Warn("the plugin takes no requests until it has read the list of workers", logkey.Reason, why)
		case <-ctx.Done():
			return
		}
	}
}

// lastWords is how long a drain waits at its end until the last messages of its streams
// are sent. A stream has ended before that, and to cut its connection would fail a
// request that was served.
const lastWords = time.Second

// drain serves the requests that have begun to their end, and new ones as long as those
// run. Envoy is told to go away. If a balancer is between, it finds another replica; else
// it connects again, to a second server here. That one has to be there for the legs of
// requests that have begun, for decodes that collect held KV, and for messages of
// replicas.
func (p *plugin) drain(main *turns) {
	p.log.Info("draining", logkey.Streams, p.server.Streams(), logkey.AtMost, p.cfg.DrainTimeout)
	p.probes.drain()
	var servers sync.WaitGroup
	servers.Go(p.grpc.GracefulStop) // this server accepts no more, and waits for its streams
	last := p.newGRPC()
	servers.Go(func() {
		if err := serveGRPC(last, main.turn()); err != nil {
			p.log.Warn("new connections are refused until the drain ends", logkey.Err, err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.DrainTimeout)
	defer cancel()
	left := lastWords
	if err := p.server.Drain(ctx, p.cfg.DrainTimeout/2); err != nil {
		left = 0
		p.log.Warn("some requests took longer than drain_timeout and are cut off: raise drain_timeout, or lower request.max_timeout", logkey.Streams, p.server.Streams())
	}
	if p.mesh != nil {
		p.mesh.Hang()
	}
	servers.Go(last.GracefulStop)
	cut := time.AfterFunc(left, func() { // health streams do not end by themselves
		p.grpc.Stop()
		last.Stop()
	})
	servers.Wait()
	cut.Stop()
	_ = main.Close() // only now, since the servers would report a closed listener as a failure
	p.log.Info("drained", logkey.PrefillLegsLeft, p.server.Attempts())
}
