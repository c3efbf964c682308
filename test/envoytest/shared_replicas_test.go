//go:build e2e

package envoytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2/hpack"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// sharer is a replica that shares with two others what it has booked.
type sharer struct {
	*replica
	address string // at which the others reach it
}

// sharers are the three, behind one gateway.
type sharers [3]*sharer

// nothingBooked is the checksum of no bookings.
const nothingBooked = "0000000000000000"

// sharedSeen is what a replica shows of itself and of the others.
type sharedSeen struct {
	Sum      string        `json:"booked_checksum"`
	Replicas []replicaSeen `json:"replicas"`
	Trouble  []string      `json:"trouble"`
}

type replicaSeen struct {
	Address string     `json:"address"`
	State   string     `json:"state"`
	Told    bool       `json:"told"`
	Error   string     `json:"error"`
	Legs    int64      `json:"legs"`
	Prefill int64      `json:"prefill_tokens"`
	Decode  int64      `json:"decode_blocks"`
	Sum     string     `json:"booked_checksum"`
	Differs *time.Time `json:"differs_since"`
}

func (f *fleet) shared() (seen sharedSeen) {
	f.t.Helper()
	require.NoError(f.t, json.Unmarshal([]byte(f.adminGet("/debug/state")), &seen))
	return seen
}

// of is what is shown of the replica at an address. It has no state if nothing is shown.
func (s sharedSeen) of(address string) replicaSeen {
	if i := slices.IndexFunc(s.Replicas, func(r replicaSeen) bool { return r.Address == address }); i >= 0 {
		return s.Replicas[i]
	}
	return replicaSeen{}
}

// warns reports whether the page says that something is wrong with the replica.
func (s sharedSeen) warns(of *sharer) bool {
	return slices.ContainsFunc(s.Trouble, func(line string) bool {
		return strings.HasPrefix(line, "REPLICA: ") && strings.Contains(line, of.address)
	})
}

// shares reports whether each of two knows what the other books.
func (r replicaSeen) shares() bool {
	return r.State == "sharing" && r.Told && r.Error == "" && r.Differs == nil
}

// empty reports whether nothing is booked.
func (r replicaSeen) empty() bool {
	return r.Legs == 0 && r.Prefill == 0 && r.Decode == 0 && r.Sum == nothingBooked
}

// relay is before a replica. It can hold up what is sent there and what is answered. Meanwhile it keeps all
// connections, and takes new ones.
type relay struct {
	address string
	only    []byte       // the client of a connection that can be held up has sent this; empty: all can
	pass    sync.RWMutex // held to pass on what can be held up
}

func newRelay(t *testing.T, behind string, only []byte) *relay {
	t.Helper()
	ln := listen(t)
	r := &relay{address: ln.Addr().String(), only: only}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			up, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", behind)
			if err != nil {
				_ = c.Close()
				continue
			}
			holds := new(atomic.Bool)
			go r.carry(c, up, holds, true)
			go r.carry(up, c, holds, false)
		}
	}()
	return r
}

// carry passes on what comes, and its end. holds says that it can be held up.
func (r *relay) carry(from, to net.Conn, holds *atomic.Bool, client bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if client && bytes.Contains(buf[:n], r.only) {
			holds.Store(true)
		}
		held := holds.Load()
		if held {
			r.pass.RLock()
		}
		if _, failed := to.Write(buf[:n]); err == nil {
			err = failed
		}
		if err != nil {
			_, _ = to.Close(), from.Close()
		}
		if held {
			r.pass.RUnlock()
		}
		if err != nil {
			return
		}
	}
}

// cut holds up what it passes on, until heal is called.
func (r *relay) cut() (heal func()) {
	r.pass.Lock()
	return sync.OnceFunc(r.pass.Unlock)
}

// tellPath is in what opens a stream on which a replica tells what it has booked.
var tellPath = hpack.AppendHuffmanString(nil, "/baton.v1.Replicas/Tell")

// advertised is the address in a plugin's configuration at which the others reach it.
var advertised = regexp.MustCompile(`advertise: "([^"]+)"`)

// newSharers runs a gateway with three plugins that its streams go to in turn. The first and the last are
// behind relays, if before makes some.
func newSharers(t *testing.T, engine worker.Engine, duplex bool, before func(listen string) *relay) sharers {
	t.Helper()
	l := layoutOf(layout{
		prefill: 2, decode: 2, twoLegs: true, fullDuplex: duplex,
		prefillArgs: []string{"--prefill-base-us", "50000", "--kv-lease", "8s"}, // of KV that a killed replica had in its hand
		decodeArgs:  []string{"--decode-us-per-token", "10000"},
	}, engine)
	behind := func(f *fleet, listen string) (address string) {
		if before == nil {
			return listen
		}
		address = before(listen).address
		f.config = advertised.ReplaceAllString(f.config, fmt.Sprintf("advertise: %q", address))
		return address
	}
	var addresses [3]string
	l.describe = func(f *fleet) { addresses[0] = behind(f, advertised.FindStringSubmatch(f.config)[1]) }
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	a, b := newReplicas(t, l, inLoad+", orphan_grace: 300ms, handoff_lease: 8s", func(port int, _ string) func(string) string { return spread(t, ports[0], port) })

	like := *a.fleet
	addresses[1], addresses[2] = b.listen, behind(&like, fmt.Sprintf("127.0.0.1:%d", ports[0]))
	c := (&replica{fleet: &like}).third(ports[0])
	dir := t.TempDir()
	c.again = func() {
		var err error
		c.plugin, err = stack.StartPlugin(c.ctx, stack.PluginOptions{
			BinDir: binDir, Dir: dir, Workers: filepath.Join(c.dir, "workers.yaml"), Listen: c.listen,
			Config: strings.ReplaceAll(c.config, a.listen, c.listen), Args: []string{"--log-level", "debug"},
		})
		require.NoError(t, err)
	}
	return sharers{{a, addresses[0]}, {b, addresses[1]}, {c, addresses[2]}}
}

// eachHandOff runs a test for engines whose legs begin together and for such as prefill first.
func eachHandOff(t *testing.T, test func(t *testing.T, engine worker.Engine)) {
	t.Helper()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// tenASecond sends requests until stop is called. It waits for the last answer, and returns which requests
// were not served, and how many came.
func (s sharers) tenASecond() (stop func() (lost []string, came int)) {
	f := s[0].fleet
	ctx, end := context.WithCancel(f.t.Context())
	var mu sync.Mutex
	var lost []string
	var came int
	var load sync.WaitGroup
	load.Go(func() {
		tick := time.NewTicker(time.Second / 10)
		defer tick.Stop()
		for ; ctx.Err() == nil; came++ {
			q := ask(fmt.Sprintf("three replicas share, %d", came), 60)[came%4]
			load.Go(func() {
				r := f.send(f.ctx, q.path, q.body)
				if r.err != nil || r.status != http.StatusOK || strings.TrimSpace(r.text()) != q.answer {
					mu.Lock()
					defer mu.Unlock()
					lost = append(lost, fmt.Sprintf("%s after %v: %d %v %.200s", q.body, r.took, r.status, r.err, r.body))
				}
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() ([]string, int) {
		end()
		load.Wait()
		return lost, came
	}
}

// but returns the others.
func (s sharers) but(one *sharer) []*sharer {
	return slices.DeleteFunc(slices.Clone(s[:]), func(r *sharer) bool { return r == one })
}

// awaitSharing waits, while there is load, until each knows of legs of each other one.
func (s sharers) awaitSharing() {
	s[0].t.Helper()
	for _, r := range s {
		for _, o := range s.but(r) {
			r.await(fmt.Sprintf("%s to know of legs of %s", r.address, o.address), func() bool {
				seen := r.shared().of(o.address)
				return seen.shares() && seen.Legs > 0 && seen.Sum != nothingBooked
			})
		}
	}
}

// beginLong begins answers of a minute, until each has one in its book, and no prefill any more. leave has
// their clients leave.
func (s sharers) beginLong() (began int, leave func()) {
	f, t := s[0].fleet, s[0].t
	t.Helper()
	s.awaitNothing()
	var running []*leaver
	for slices.ContainsFunc(s[:], func(r *sharer) bool { return r.booked("decode") == 0 }) {
		require.Less(t, len(running), 20, "they have requests in turn")
		running = append(running, f.begin(ask(fmt.Sprintf("a long answer, %d", len(running)), 6000)[2]))
		f.await("it to be answered", func() bool { return f.running(f.decode) == len(running) })
	}
	for _, r := range s {
		r.await("its prefill to be over", func() bool { return r.booked("prefill") == 0 })
	}
	return len(running), sync.OnceFunc(func() {
		for _, c := range running {
			c.leave()
			<-c.reply
		}
	})
}

// booked is how many requests this replica itself has booked at workers of a role.
func (r *sharer) booked(role string) int { return int(r.metric("baton_worker_" + role + "_requests")) }

// requireEqualBooks has each book something that stays, and waits until the others have the same of it, and
// decide by it. Then nothing is booked any more, as all know.
func (s sharers) requireEqualBooks() {
	s[0].t.Helper()
	long, leave := s.beginLong()
	for _, r := range s {
		for _, o := range s.but(r) {
			r.await(fmt.Sprintf("%s to know what %s has booked", r.address, o.address), func() bool {
				seen, has := r.shared().of(o.address), o.shared().Sum
				return seen.shares() && seen.Legs > 0 && has != nothingBooked && has == seen.Sum
			})
		}
	}
	s.awaitDecisions(long)
	leave()
	s.awaitNothing()
	s.awaitDecisions(0)
	s.awaitNothing()
}

// awaitDecisions sends requests until each replica has decided on one with so many others in its book, at the
// decode workers.
func (s sharers) awaitDecisions(others int) {
	s[0].t.Helper()
	for _, r := range s {
		before, _ := r.lastDecision()
		r.await(fmt.Sprintf("%s to decide with %d requests in its book", r.address, others), func() bool {
			if s[0].booked("decode")+s[1].booked("decode")+s[2].booked("decode") != others {
				return false // the end of the last one is not known yet
			}
			q := ask("what is booked?", 2)[0]
			q.require(r.t, r.send(r.ctx, q.path, q.body))
			id, booked := r.lastDecision()
			return id != before && booked == others
		})
	}
}

// lastDecision returns the newest request, and how many others were booked at decode workers.
func (r *sharer) lastDecision() (id string, booked int) {
	r.t.Helper()
	var seen struct {
		Decisions []struct {
			ID     string `json:"request_id"`
			Decode struct {
				Table []struct {
					Requests int `json:"active_requests"`
				} `json:"table"`
			} `json:"decode"`
		} `json:"decisions"`
	}
	require.NoError(r.t, json.Unmarshal([]byte(r.adminGet("/debug/decisions?n=1")), &seen))
	require.NotEmpty(r.t, seen.Decisions)
	for _, row := range seen.Decisions[0].Decode.Table {
		booked += row.Requests
	}
	return seen.Decisions[0].ID, booked
}

// awaitNothing waits until nothing is booked, as all know. Of an answer whose log has broken nothing is known
// for 12 s.
func (s sharers) awaitNothing() {
	s[0].t.Helper()
	ctx, cancel := context.WithTimeout(s[0].ctx, 20*time.Second)
	defer cancel()
	for _, r := range s {
		var seen sharedSeen
		err := stack.Await(ctx, "nothing to be booked, as all know", func() bool {
			seen = r.shared()
			return seen.Sum == nothingBooked && !slices.ContainsFunc(s.but(r), func(o *sharer) bool {
				of := seen.of(o.address)
				return !of.shares() || !of.empty()
			})
		})
		require.NoError(r.t, err, "%s has and knows %+v", r.address, seen)
	}
}

// requireBlameless: none of them has set a worker aside since it was started.
func (s sharers) requireBlameless() {
	s[0].t.Helper()
	for _, r := range s {
		require.Zero(r.t, r.setAside(), "no worker is to blame")
	}
}

// TestSharedReplicasDieAndComeBack: under load each of three is updated in turn, and then one is killed. No
// request is lost. The others forget what it had booked, and share with its successor.
func TestSharedReplicasDieAndComeBack(t *testing.T) {
	t.Parallel()
	eachHandOff(t, func(t *testing.T, engine worker.Engine) {
		three := newSharers(t, engine, false, nil)
		stop := three.tenASecond()
		defer stop()
		three.awaitSharing()
		replace := func(r *sharer, end func() error) {
			three.requireBlameless()
			require.NoError(t, end())
			began := time.Now()
			var found []time.Duration
			for _, o := range three.but(r) {
				o.await("the others to know that it has ended", func() bool {
					seen := o.shared().of(r.address)
					return seen.State == "away" && seen.empty()
				})
				found = append(found, time.Since(began))
			}
			t.Logf("found after %v", found)
			require.Less(t, slices.Min(found), 3*time.Second)
			r.again()
			r.awaitReplicas(3)
			three.awaitSharing()
		}
		for _, r := range three {
			replace(r, func() error {
				if err := r.plugin.Stop(25 * time.Second); err != nil {
					return err
				}
				return r.plugin.Err()
			})
		}
		replace(three[1], func() error { return three[1].plugin.Kill() }) // the last: who knew it is not started anew
		lost, came := stop()
		require.Empty(t, lost, "of %d requests", came)
		three.requireEqualBooks()
		three.requireBlameless()
	})
}

// TestSharedReplicasThatAreCutOffServe: two of three get nothing of what the others tell, for a while.
// Each goes on to serve, says whom it does not hear and who does not hear it, and what it knows of them fades.
// Then all share again. With engines that prefill first all calls between replicas are held up. With others a
// cut-off replica would not hear of its legs either (docs/behaviour.md#not-started), so only the sharing is.
func TestSharedReplicasThatAreCutOffServe(t *testing.T) {
	t.Parallel()
	eachHandOff(t, func(t *testing.T, engine worker.Engine) {
		var relays []*relay
		three := newSharers(t, engine, engine == worker.VLLM, func(listen string) *relay {
			only := tellPath
			if engine == worker.VLLM {
				only = nil
			}
			relays = append(relays, newRelay(t, listen, only))
			return relays[len(relays)-1]
		})
		stop := three.tenASecond()
		defer stop()
		three.awaitSharing()

		over := time.After(10 * time.Second)
		var heals []func()
		for _, r := range relays {
			heal := r.cut()
			defer heal()
			heals = append(heals, heal)
		}
		hears := three[1] // all that is sent to it comes
		for _, r := range three {
			for _, o := range three.but(r) {
				r.await("each to say what is held up", func() bool {
					seen := r.shared()
					of := seen.of(o.address)
					if r == hears {
						return of.State == "sharing" && !of.Told && seen.warns(o)
					}
					return of.State == "silent" && of.Told == (o == hears) && seen.warns(o)
				})
			}
		}
		served := func(r *sharer) float64 { return r.outcomes("ok") }
		before := [3]float64{served(three[0]), served(three[1]), served(three[2])}
		for i, r := range three {
			r.await("it to serve", func() bool { return served(r) >= before[i]+5 })
			for _, o := range three.but(r) {
				r.await("what it knows of the silent to fade", func() bool {
					of := r.shared().of(o.address)
					return r == hears || of.State == "silent" && of.Legs == 0
				})
			}
		}
		<-over
		require.Equal(t, "silent", three[0].shared().of(three[2].address).State, "it has not ended")
		for _, heal := range heals {
			heal()
		}
		healed := time.Now()
		three.awaitSharing()
		t.Logf("all share again after %v", time.Since(healed))
		lost, came := stop()
		require.Empty(t, lost, "of %d requests", came)
		three.requireEqualBooks()
		three.requireBlameless()
	})
}

// TestSharedReplicasForgetNobodyWhoStandsStill: of one that stands still the bookings fade for the others, since
// it may go on or not. It goes on, and all share again.
func TestSharedReplicasForgetNobodyWhoStandsStill(t *testing.T) {
	t.Parallel()
	eachHandOff(t, func(t *testing.T, engine worker.Engine) {
		three := newSharers(t, engine, engine == worker.SGLang, nil)
		load := three.tenASecond()
		three.awaitSharing()
		load()
		_, leave := three.beginLong()
		defer leave()
		still := three[1]
		require.NoError(t, still.plugin.Signal(syscall.SIGSTOP))
		defer func() { require.NoError(t, still.plugin.Signal(syscall.SIGCONT)) }()
		over := time.After(8 * time.Second)
		stop := three.tenASecond()
		defer stop()
		for _, r := range three.but(still) {
			r.await("its bookings to fade", func() bool {
				seen := r.shared()
				of := seen.of(still.address)
				return of.State == "silent" && of.Legs == 0 && seen.warns(still)
			})
		}
		<-over
		for _, r := range three.but(still) {
			of := r.shared().of(still.address)
			require.Equal(t, "silent", of.State, "it has not ended")
			require.NotEqual(t, nothingBooked, of.Sum, "it is not forgotten")
		}
		require.NoError(t, still.plugin.Signal(syscall.SIGCONT))
		began := time.Now()
		still.awaitReplicas(3)
		three.awaitSharing()
		t.Logf("all share again after %v", time.Since(began))
		lost, came := stop()
		t.Logf("%d of %d requests lost", len(lost), came)
		leave()
		three.requireEqualBooks()
		three.requireBlameless()
	})
}

// TestSharedReplicasRefuseAStranger: a plugin that has another key knows where the replicas are, and calls
// them. They refuse its streams and share with each other. It is told nothing either.
func TestSharedReplicasRefuseAStranger(t *testing.T) {
	t.Parallel()
	three := newSharers(t, worker.SGLang, true, nil)
	dir, address := t.TempDir(), unused(t)
	key := filepath.Join(dir, "leg.key")
	require.NoError(t, os.WriteFile(key, []byte("a key that nobody else has"), 0o600))
	refused := func(r *sharer) float64 {
		return r.metric("baton_replica_messages_total", `outcome="refused"`)
	}
	for _, r := range three {
		require.Zero(t, refused(r))
	}
	plugin, err := stack.StartPlugin(three[0].ctx, stack.PluginOptions{
		BinDir: binDir, Dir: dir, Workers: filepath.Join(three[0].dir, "workers.yaml"), Listen: address,
		Config: fmt.Sprintf("leg: {key_file: %q, advertise: %q, replicas: [%q, %q, %q]}\n", key, address, three[0].address, three[1].address, three[2].address),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, plugin.Kill()) }()
	stranger := *three[0].fleet
	stranger.plugin = plugin

	stop := three.tenASecond()
	defer stop()
	three.awaitSharing()
	for _, r := range three {
		r.await("it to be refused again and again", func() bool { return refused(r) >= 3 })
		require.Empty(t, r.shared().of(address), "it is not known")
		seen := stranger.shared().of(r.address)
		require.Equal(t, "not met", seen.State)
		require.False(t, seen.Told)
		require.Contains(t, seen.Error, "leg.key_file")
		require.Zero(t, seen.Legs)
	}
	lost, came := stop()
	require.Empty(t, lost, "of %d requests", came)
	three.requireEqualBooks()
}
