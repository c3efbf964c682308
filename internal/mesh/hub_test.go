package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/replicas"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is one replica: a hub and its server.
type process struct {
	*Hub

	t      *testing.T
	addr   string
	server *grpc.Server
	stop   context.CancelFunc
	ended  chan struct{}

	mu       sync.Mutex
	counted  map[string]int
	routed   []worker.Rank
	suspects []worker.Rank
	learned  map[uint64]string
	away     []worker.Rank
}

const sealed = "key of all:"

// openToken reads tokens of these tests: the key, a name and an address.
func openToken(token string) (name, addr string, err error) {
	rest, ours := strings.CutPrefix(token, sealed)
	if !ours {
		return "", "", errors.New("another key")
	}
	name, addr, _ = strings.Cut(rest, "@")
	return name, addr, nil
}

func snapshot(t *testing.T) *worker.Snapshot {
	t.Helper()
	var ws []*worker.Worker
	for i := range 4 {
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:8000", i+1))
		require.NoError(t, err)
		ws = append(ws, &worker.Worker{ID: worker.ID(i + 1), Role: worker.Aggregated, Engine: worker.VLLM, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 16})
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s
}

// start starts a replica at an address; "" is any.
func start(t *testing.T, life uint64, addr string, list func() []string) *process {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", max(addr, "127.0.0.1:0"))
	require.NoError(t, err)
	p := &process{t: t, addr: l.Addr().String(), counted: map[string]int{}, learned: map[uint64]string{}, ended: make(chan struct{})}
	book := load.New(life)
	book.Update(snapshot(t))
	locked := func(f func()) {
		p.mu.Lock()
		defer p.mu.Unlock()
		f()
	}
	p.Hub = New(Config{
		Self: p.addr, Life: life, Token: fmt.Sprintf("%sreplica-%d@%s", sealed, life, p.addr), Open: openToken,
		LifeAt:  func(context.Context, string) (uint64, bool) { return life, true },
		Listers: map[string]Lister{"list": func(context.Context) ([]string, error) { return list(), nil }},
		Book:    book,
		Routed:  func(r worker.Rank, _ []kvindex.LocalHash) { locked(func() { p.routed = append(p.routed, r) }) },
		Aside:   func() (out []worker.Rank) { locked(func() { out = append([]worker.Rank{}, p.away...) }); return out },
		Suspect: func(r worker.Rank) { locked(func() { p.suspects = append(p.suspects, r) }) },
		Learned: func() (json.RawMessage, error) { return json.RawMessage(fmt.Sprintf(`"by %d"`, life)), nil },
		Learn: func(life uint64, learned json.RawMessage) error {
			locked(func() { p.learned[life] = string(learned) })
			return nil
		},
		Counted: func(outcome string) { locked(func() { p.counted[outcome]++ }) },
		Log:     slog.New(slog.DiscardHandler),
	})
	p.server = grpc.NewServer()
	p.Register(p.server)
	go func() { _ = p.server.Serve(l) }()
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.ended)
		_ = p.Run(ctx)
	}()
	t.Cleanup(p.leave)
	return p
}

// leave ends the process in order.
func (p *process) leave() {
	p.stop()
	<-p.ended
	p.server.Stop()
}

// die ends the process without a word: its connections are cut first.
func (p *process) die() {
	p.server.Stop()
	p.Hub.mu.Lock()
	for _, l := range p.links {
		l.cut()
	}
	p.Hub.mu.Unlock()
	p.stop()
	<-p.ended
}

func (p *process) count(outcome string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counted[outcome]
}

func (p *process) book(tokens int) *load.Reservation {
	p.t.Helper()
	s, r, params := snapshot(p.t), new(load.Reservation), picker.DefaultParams()
	_, err := p.cfg.Book.PickAndReserve(&load.Request{
		Key: worker.Key{Model: "m"}, Ranks: s.Pool(worker.Key{Model: "m"}).AggregatedRanks, Params: &params, Now: time.Now(),
		Pick: picker.Request{Role: worker.Aggregated, ISLTokens: tokens},
	}, r)
	require.NoError(p.t, err)
	return r
}

func (p *process) of(other *process) Mate {
	for _, m := range p.Mates() {
		if m.Address == other.addr {
			return m
		}
	}
	return Mate{}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 30*time.Second, time.Millisecond, what)
}

// trio starts three replicas; the others are known to each by a list.
func trio(t *testing.T) [3]*process {
	t.Helper()
	var mu sync.Mutex
	var addrs []string
	list := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), addrs...)
	}
	var all [3]*process
	for i := range all {
		all[i] = start(t, uint64(i)+1, "", list)
		mu.Lock()
		addrs = append(addrs, all[i].addr)
		mu.Unlock()
	}
	for _, p := range all {
		await(t, "all to share", func() bool {
			n := 0
			for _, m := range p.Mates() {
				if m.Hearing == replicas.Sharing && m.Told && m.Late > 0 {
					n++
				}
			}
			return n == 2
		})
	}
	return all
}

func TestReplicasKnowWhatTheOthersHaveBooked(t *testing.T) {
	all := trio(t)
	var held []*load.Reservation
	for i, p := range all {
		for range 10 {
			held = append(held, p.book(100*(i+1)))
		}
	}
	for i, p := range all {
		for k, o := range all {
			if i != k {
				await(t, "its bookings", func() bool {
					m := p.of(o)
					return m.Booked.DecodeRequests == 10 && m.Booked.PrefillTokens == int64(1000*(k+1)) && m.Booked.Sum == o.cfg.Book.OwnSum() && m.Differs.IsZero()
				})
			}
		}
	}
	require.NotZero(t, all[0].cfg.Book.OwnSum())
	for _, r := range held {
		r.Release(time.Now())
	}
	for i, p := range all {
		for k, o := range all {
			if i != k {
				await(t, "nothing", func() bool { return p.of(o).Booked == load.Heard{} })
			}
		}
		require.Zero(t, p.cfg.Book.OwnSum())
		require.True(t, p.Ready())
	}
}

func TestWhatElseIsShared(t *testing.T) {
	all := trio(t)
	chain := make([]kvindex.LocalHash, replicas.MostChain+5)
	for range 2 * replicas.MostRouted / replicas.MostChain { // as many in 20 ms are cut off
		all[0].NoteRouted(worker.Rank{ID: 3}, chain)
	}
	all[0].mu.Lock()
	all[0].away = []worker.Rank{{ID: 2}}
	all[0].mu.Unlock()
	all[0].NoteHealth()
	for _, p := range all[1:] {
		await(t, "all of it", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.routed) > 0 && len(p.suspects) > 0 && p.learned[1] == `"by 1"`
		})
		p.mu.Lock()
		require.Equal(t, []worker.Rank{{ID: 2}}, p.suspects, "once")
		require.Equal(t, worker.Rank{ID: 3}, p.routed[0])
		p.mu.Unlock()
	}
	require.Positive(t, all[0].count(CutOff))
}

func TestAReplicaThatLeavesTakesItsBookingsAlong(t *testing.T) {
	all := trio(t)
	all[2].book(100)
	await(t, "its booking", func() bool { return all[0].of(all[2]).Booked.DecodeRequests == 1 })
	all[2].leave()
	for _, p := range all[:2] {
		await(t, "it to be away", func() bool { m := p.of(all[2]); return m.Hearing == replicas.Away && m.Booked == load.Heard{} })
		require.Empty(t, p.learned[3])
	}
	again := start(t, 9, all[2].addr, func() []string { return []string{all[0].addr} })
	await(t, "the next process there", func() bool { m := all[0].of(again); return m.Life == 9 && m.Hearing == replicas.Sharing })
}

func TestAReplicaThatDiesIsGoneSoon(t *testing.T) {
	all := trio(t)
	all[2].book(100)
	await(t, "its booking", func() bool { return all[0].of(all[2]).Booked.DecodeRequests == 1 })
	all[2].die()
	for _, p := range all[:2] {
		await(t, "it to be away", func() bool { m := p.of(all[2]); return m.Hearing == replicas.Away && m.Booked == load.Heard{} })
	}
}

// stranger opens a stream with a token, and sends messages until one is refused.
func stranger(t *testing.T, to *process, token string, messages ...[]byte) error {
	t.Helper()
	conn, err := grpc.NewClient(to.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, tokenKey, token)
	}
	s, err := conn.NewStream(ctx, &tellDesc, tell)
	require.NoError(t, err)
	for _, m := range messages {
		if s.SendMsg(wrapperspb.Bytes(m)) != nil {
			break
		}
	}
	for {
		if err := s.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
			return err
		}
	}
}

func TestStrangersAreRefused(t *testing.T) {
	p := start(t, 1, "", func() []string { return nil })
	booked, err := (&replicas.Message{Told: load.Told{Life: 5, Version: 1, Ranks: []load.Booked{{Rank: worker.Rank{ID: 1}, Load: load.Load{DecodeRequests: 1000}}}}}).Encode()
	require.NoError(t, err)
	for _, token := range []string{"", "key of another:x@127.0.0.1:1", sealed + "nowhere"} {
		require.Equal(t, codes.PermissionDenied, status.Code(stranger(t, p, token, booked)))
	}
	require.Equal(t, 3, p.count(Refused))
	require.Empty(t, p.Mates())

	other, err := (&replicas.Message{Told: load.Told{Life: 6, Version: 2}}).Encode()
	require.NoError(t, err)
	for i, garbage := range [][]byte{nil, []byte("{"), []byte(`{"life":"5","version":3,"ranks":[{"id":"1","load":[-1,0,0,0,0,0,0]}]}`), other} {
		require.Equal(t, codes.InvalidArgument, status.Code(stranger(t, p, sealed+"x@127.0.0.1:1", booked, garbage)))
		require.Equal(t, i+1, p.count(Garbage))
	}
	newer, err := (&replicas.Message{Told: load.Told{Life: 7, Version: 1}}).Encode()
	require.NoError(t, err)
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	s, err := conn.NewStream(metadata.AppendToOutgoingContext(t.Context(), tokenKey, sealed+"x@127.0.0.1:1"), &tellDesc, tell)
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(wrapperspb.Bytes(newer)))
	await(t, "the next life", func() bool { m := p.Mates(); return len(m) == 1 && m[0].Life == 7 })
	require.Equal(t, codes.FailedPrecondition, status.Code(stranger(t, p, sealed+"x@127.0.0.1:1", booked)), "the life before")
	require.Zero(t, p.cfg.Book.Heard(5))
}

func TestAReplicaDoesNotCountItself(t *testing.T) {
	var addr string
	var mu sync.Mutex
	p := start(t, 1, "", func() []string {
		mu.Lock()
		defer mu.Unlock()
		if addr == "" {
			return nil
		}
		return []string{addr}
	})
	_, port, err := net.SplitHostPort(p.addr)
	require.NoError(t, err)
	mu.Lock()
	addr = "localhost:" + port
	mu.Unlock()
	await(t, "it to be tried, and known", func() bool {
		p.Hub.mu.Lock()
		defer p.Hub.mu.Unlock()
		p.roster.Meet("localhost:"+port, time.Now()) // a replica as any other, until it is known
		return len(p.links) == 0 && len(p.roster.Mates()) == 0
	})
	require.True(t, p.Ready())
}

// A process that is listed by two addresses is one replica, and a start does not wait for the other address.
func TestAReplicaIsKnownByOneAddress(t *testing.T) {
	other := start(t, 2, "", func() []string { return nil })
	_, port, err := net.SplitHostPort(other.addr)
	require.NoError(t, err)
	p := start(t, 1, "", func() []string { return []string{other.addr, "localhost:" + port} })
	await(t, "one of them to be left", func() bool {
		m := p.Mates()
		return len(m) == 1 && m[0].Address == other.addr && m[0].Hearing == replicas.Sharing
	})
	await(t, "it to be ready", p.Ready)
}

// What is refused is not begun anew at once, each time with the whole book.
func TestAStreamThatIsRefusedIsNotBegunAnewAtOnce(t *testing.T) {
	other := start(t, 2, "", func() []string { return nil })
	p := start(t, 1, "", func() []string { return nil })
	p.cfg.Token = "another key"
	l := newLink(p.Hub, other.addr)
	require.Equal(t, codes.PermissionDenied, status.Code(l.send()))
	p.Hub.mu.Lock()
	p.roster.Meet(other.addr, time.Now())
	p.Hub.mu.Unlock()
	ended := make(chan struct{})
	go func() { defer close(ended); l.run() }()
	await(t, "it to be said", func() bool { m := p.Mates(); return len(m) == 1 && strings.Contains(m[0].Error, "leg.key_file") })
	l.stop()
	<-ended
	require.Equal(t, 2, other.count(Refused))
}

func TestADrainEndsTheOthersStreams(t *testing.T) {
	all := trio(t)
	all[2].Hang()
	done := make(chan struct{})
	go func() { defer close(done); all[2].server.GracefulStop() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the server waits for streams that never end")
	}
}

func TestAVersionThatDoesNotShareIsSaid(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	old := grpc.NewServer()
	go func() { _ = old.Serve(l) }()
	defer old.Stop()
	p := start(t, 1, "", func() []string { return []string{l.Addr().String()} })
	await(t, "it to be said", func() bool {
		m := p.Mates()
		return len(m) == 1 && m[0].Hearing == replicas.Unshared && strings.Contains(m[0].Error, "version before 0.2")
	})
	require.True(t, p.Ready(), "nothing is waited for")
}

// A link that cannot send drops what waits, and begins with all.
func TestASlowReplicaHoldsNobodyUp(t *testing.T) {
	p := start(t, 1, "", func() []string { return nil })
	l := newLink(p.Hub, "127.0.0.1:1")
	l.offer(nil)
	require.Empty(t, l.box, "there is no stream")
	l.open.Store(true)
	for range boxSize + 10 {
		l.offer(nil)
	}
	require.Equal(t, 10, p.count(Dropped))
	require.True(t, l.behind.Load())
}
