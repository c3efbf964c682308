// Command shared measures what it costs that replicas share their books, and how late they know.
//
// Contract. It runs three meshes with their books in one process, over loopback, and books at each of them so
// many requests a second as a plugin does: a prefill and a decode rank, the end of the prompt, the end of the
// answer. It prints how long after a booking the others have it, the processor time for each request and
// replica beside that of a run in which nothing is shared, the memory, and what goes over the wire.
//
// What it does not do: it serves no request, and has no Envoy.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/mesh"
	"github.com/seed-60ae5743/baton/internal/replicas"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/bench/host"
)

const n = 3

// The model of the load, and one whose single rank is booked to see when the others know.
var (
	busy   = worker.Key{Model: "m"}
	marker = worker.Key{Model: "marker"}
)

type result struct {
	p50, p99, most time.Duration
	requests       int
	cpu            time.Duration
	heap, rss      uint64
	sent           int64
}

func main() {
	rate := flag.Int("rate", 2000, "requests a second at each replica")
	workers := flag.Int("workers", 100, "workers of each role")
	running := flag.Duration("answer", time.Second, "how long an answer is booked; its prompt a tenth of that")
	last := flag.Duration("for", 10*time.Second, "how long")
	flag.Parse()
	var got [2]result
	for i, shared := range []bool{false, true} {
		var err error
		got[i], err = measure(*rate, *workers, *running, *last, shared)
		if err != nil {
			fmt.Fprintln(os.Stderr, "shared:", err)
			os.Exit(1)
		}
	}
	alone, r := got[0], got[1]
	each := func(x result) float64 { return stats.Micros(x.cpu) / float64(x.requests) }
	fmt.Printf("%d replicas, %d requests/s each, %d prefill and as many decode workers\n", n, *rate, *workers)
	fmt.Printf("the others know a booking after: p50 %.1f ms, p99 %.1f ms, at most %.1f ms\n", ms(r.p50), ms(r.p99), ms(r.most))
	fmt.Printf("processor time for each request and replica: %.1f us; %.1f us of it if nothing is shared\n", each(r), each(alone))
	fmt.Printf("messages: %.0f a second from each replica\n", float64(r.sent)/last.Seconds()/n)
	fmt.Printf("heap of all three: %.1f MiB; %.1f MiB if nothing is shared; resident set %.1f and %.1f MiB\n", mib(r.heap), mib(alone.heap), mib(r.rss), mib(alone.rss))
}

func ms(d time.Duration) float64 { return stats.Micros(d) / 1000 }

func mib(b uint64) float64 { return float64(b) / (1 << 20) }

func world(workers int) (*worker.Snapshot, error) {
	var ws []*worker.Worker
	for i := range 2*workers + 1 {
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255))
		if err != nil {
			return nil, err
		}
		w := &worker.Worker{
			ID: worker.ID(1<<50 + i), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at, Models: []string{busy.Model}, DPSize: 1, BlockSize: 16, CapacityBlocks: 1 << 20, //nolint:gosec // not below 0
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998},
		}
		switch {
		case i == 2*workers:
			w.Role, w.Bootstrap, w.Models = worker.Aggregated, worker.Bootstrap{}, []string{marker.Model}
		case i >= workers:
			w.Role, w.Bootstrap = worker.Decode, worker.Bootstrap{}
		}
		ws = append(ws, w)
	}
	return worker.NewSnapshot(1, ws)
}

// member is one replica.
type member struct {
	book *load.Book
	snap *worker.Snapshot
	hub  *mesh.Hub
}

// book books one leg.
func (m *member) pick(k worker.Key, role worker.Role, tokens int) *load.Reservation {
	r, params := new(load.Reservation), picker.DefaultParamsFor(role)
	_, err := m.book.PickAndReserve(&load.Request{
		Key: k, Ranks: m.snap.Pool(k).Ranks(role), Params: &params, Now: time.Now(), Pick: picker.Request{Role: role, ISLTokens: tokens},
	}, r)
	if err != nil {
		panic(err) // nothing bars any rank
	}
	return r
}

func measure(rate, workers int, running, last time.Duration, shared bool) (out result, err error) {
	snap, err := world(workers)
	if err != nil {
		return out, err
	}
	var sent atomic.Int64
	var all [n]*member
	for i := range all {
		all[i] = &member{book: load.New(uint64(i) + 1), snap: snap} //nolint:gosec // small
		all[i].book.Update(snap)
	}
	if shared {
		end, err := meet(all, &sent)
		if err != nil {
			return out, err
		}
		defer end()
	}
	runtime.GC()
	before, err := host.CPUTime(os.Getpid())
	if err != nil {
		return out, err
	}
	var requests atomic.Int64
	var load sync.WaitGroup
	for _, m := range all {
		load.Go(func() { requests.Add(m.drive(rate, running, last)) })
	}
	lags := watch(all, last, shared)
	load.Wait()
	after, err := host.CPUTime(os.Getpid())
	if err != nil {
		return out, err
	}
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	rss, _, err := host.Memory(os.Getpid())
	return result{
		requests: int(requests.Load()), cpu: after - before, heap: mem.HeapAlloc, sent: sent.Load(), rss: uint64(rss), //nolint:gosec // not below 0
		p50: stats.Quantile(lags, 0.5), p99: stats.Quantile(lags, 0.99), most: lags[len(lags)-1],
	}, err
}

// meet lets the replicas share, until end is called.
func meet(all [n]*member, sent *atomic.Int64) (end func(), err error) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var addrs []string
	var servers []*grpc.Server
	end = func() {
		stop()
		running.Wait()
		for _, s := range servers {
			s.Stop()
		}
	}
	for i, m := range all {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			end()
			return nil, err
		}
		addrs = append(addrs, l.Addr().String())
		server := grpc.NewServer()
		servers = append(servers, server)
		m.hub = hub(uint64(i)+1, l.Addr().String(), &addrs, m.book, sent) //nolint:gosec // small
		m.hub.Register(server)
		go func() { _ = server.Serve(l) }()
	}
	for _, m := range all {
		running.Go(func() { _ = m.hub.Run(ctx) })
	}
	shares := func(m *member) bool {
		sharing := 0
		for _, x := range m.hub.Mates() {
			if x.Hearing == replicas.Sharing {
				sharing++
			}
		}
		return sharing == n-1
	}
	for !shares(all[0]) || !shares(all[1]) || !shares(all[2]) {
		time.Sleep(10 * time.Millisecond)
	}
	return end, nil
}

// drive books rate requests a second.
func (m *member) drive(rate int, running, last time.Duration) (requests int64) {
	type ending struct {
		at              time.Time
		prefill, decode *load.Reservation
	}
	var prompts, answers []ending // in order, since all take as long
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for now := range tick.C {
		for len(prompts) > 0 && !now.Before(prompts[0].at) {
			prompts[0].prefill.Release(now)
			prompts = prompts[1:]
		}
		for len(answers) > 0 && !now.Before(answers[0].at) {
			answers[0].decode.Release(now)
			answers = answers[1:]
		}
		if now.Sub(began) > last {
			if len(answers) == 0 {
				return requests
			}
			continue
		}
		for want := int64(now.Sub(began).Seconds() * float64(rate)); requests < want; requests++ {
			e := ending{prefill: m.pick(busy, worker.Prefill, 2000), decode: m.pick(busy, worker.Decode, 2000)}
			e.at = now.Add(running / 10)
			prompts = append(prompts, e)
			e.at = now.Add(running)
			answers = append(answers, e)
		}
	}
	return requests
}

// watch books on the marker's rank at the first replica, again and again, and sees when the others have it.
func watch(all [n]*member, last time.Duration, shared bool) (lags []time.Duration) {
	ranks := all[0].snap.Pool(marker).AggregatedRanks
	for end := time.Now().Add(last); time.Now().Before(end); time.Sleep(17 * time.Millisecond) {
		r := all[0].pick(marker, worker.Aggregated, 100)
		at := time.Now()
		for _, m := range all[1:] {
			for shared && m.book.QueuedISLTokens(ranks, nil, time.Now()) == 0 && time.Since(at) < time.Second {
				time.Sleep(200 * time.Microsecond)
			}
			lags = append(lags, time.Since(at))
		}
		r.Release(time.Now())
		for _, m := range all[1:] {
			for shared && m.book.QueuedISLTokens(ranks, nil, time.Now()) != 0 && time.Since(at) < 2*time.Second {
				time.Sleep(200 * time.Microsecond)
			}
		}
	}
	slices.Sort(lags)
	return lags
}

func hub(life uint64, addr string, addrs *[]string, book *load.Book, sent *atomic.Int64) *mesh.Hub {
	return mesh.New(mesh.Config{
		Self: addr, Life: life, Token: addr, Open: func(token string) (name, addr string, err error) { return token, token, nil },
		LifeAt:  func(context.Context, string) (uint64, bool) { return 0, false },
		Listers: map[string]mesh.Lister{"list": func(context.Context) ([]string, error) { return *addrs, nil }},
		Book:    book, Routed: func(worker.Rank, []kvindex.LocalHash) {}, Aside: func() []worker.Rank { return []worker.Rank{} }, Suspect: func(worker.Rank) {},
		Learned: func() (json.RawMessage, error) { return nil, nil }, Learn: func(uint64, json.RawMessage) error { return nil },
		Counted: func(outcome string) {
			if outcome == mesh.Sent {
				sent.Add(1)
			}
		},
		Log: slog.New(slog.DiscardHandler),
	})
}
