//go:build e2e

package envoytest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sharer is one of three replicas that share what they have booked.
type sharer struct {
	*replica
	address string // at which the others reach it
}

// sharers are the three, behind one gateway.
type sharers []*sharer

// nothingBooked is the checksum of no bookings.
const nothingBooked = "0000000000000000"

// sharedSeen is what tests read of /debug/state.
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
	Sum     string     `json:"booked_checksum"`
	Differs *time.Time `json:"differs_since"`
}

// shares is what a replica shows of itself and of the others.
func (r *replica) shares() (seen sharedSeen) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(r.adminGet("/debug/state")), &seen))
	return seen
}

// at is what is shown of the replica at an address; without a state: nothing.
func (s sharedSeen) at(address string) replicaSeen {
	if i := slices.IndexFunc(s.Replicas, func(r replicaSeen) bool { return r.Address == address }); i >= 0 {
		return s.Replicas[i]
	}
	return replicaSeen{}
}

// relay is before the address of a replica. It can stop passing on what is sent to it, and what it answers,
// while it keeps all connections and takes new ones.
type relay struct {
	address string
	pass    sync.RWMutex // held to pass bytes on
}

func newRelay(t *testing.T, behind string) *relay {
	t.Helper()
	ln := listen(t)
	r := &relay{address: ln.Addr().String()}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			up, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", behind)
			if err != nil {
				_ = c.Close()
				continue
			}
			go r.carry(c, up)
			go r.carry(up, c)
		}
	}()
	return r
}

// carry passes on what comes from a connection, its end too.
func (r *relay) carry(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		r.pass.RLock()
		if n > 0 {
			if _, failed := to.Write(buf[:n]); failed != nil {
				err = failed
			}
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
		}
		r.pass.RUnlock()
		if err != nil {
			return
		}
	}
}

// cut stops it until heal is called.
func (r *relay) cut() (heal func()) {
	r.pass.Lock()
	return sync.OnceFunc(r.pass.Unlock)
}

// advertised is the address in a plugin's configuration at which others reach it.
var advertised = regexp.MustCompile(`advertise: "([^"]+)"`)

// newSharers runs a gateway with three plugins that its streams go to in turn. The first and the last are
// behind relays, if there are to be some.
func newSharers(t *testing.T, engine worker.Engine, duplex, relayed bool) (three sharers, relays []*relay) {
	t.Helper()
	l := layoutOf(layout{
		prefill: 2, decode: 2, twoLegs: true, fullDuplex: duplex, config: takeTurns,
		prefillArgs: []string{"--prefill-base-us", "50000"}, decodeArgs: []string{"--decode-us-per-token", "10000"},
	}, engine)
	behindRelay := func(f *fleet, listen string) {
		if relayed {
			relays = append(relays, newRelay(t, listen))
			f.config = advertised.ReplaceAllString(f.config, fmt.Sprintf("advertise: %q", relays[len(relays)-1].address))
		}
	}
	l.describe = func(f *fleet) { behindRelay(f, advertised.FindStringSubmatch(f.config)[1]) }
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	a, b := newReplicas(t, l, "orphan_grace: 300ms", func(port int, _ string) func(string) string { return spread(t, ports[0], port) })

	like := *a.fleet
	behindRelay(&like, fmt.Sprintf("127.0.0.1:%d", ports[0]))
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
	three = sharers{{a, a.listen}, {b, b.listen}, {c, c.listen}}
	if relayed {
		three[0].address, three[2].address = relays[0].address, relays[1].address
	}
	return three, relays
}

// eachShared runs a test for engines of both kinds of hand-off.
func eachShared(t *testing.T, test func(t *testing.T, engine worker.Engine)) {
	t.Helper()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// tenASecond sends requests until stop is called, which waits for them and returns which were not served well,
// and how many there were.
func (f *fleet) tenASecond() (stop func() (lost []string, all int)) {
	begin, end := context.WithCancel(f.t.Context())
	var mu sync.Mutex
	var lost []string
	all := 0
	var load sync.WaitGroup
	load.Go(func() {
		tick := time.NewTicker(time.Second / 10)
		defer tick.Stop()
		for ; begin.Err() == nil; all++ {
			q := ask(fmt.Sprintf("replicas share, %d", all), 60)[all%4]
			load.Go(func() {
				r := f.send(f.ctx, q.path, q.body)
				if r.err != nil || r.status != http.StatusOK || strings.TrimSpace(r.text()) != q.answer {
					mu.Lock()
					defer mu.Unlock()
					lost = append(lost, fmt.Sprintf("%s after %v: %d %v %.300s", q.body, r.took, r.status, r.err, r.body))
				}
			})
			select {
			case <-tick.C:
			case <-begin.Done():
			}
		}
	})
	return func() ([]string, int) {
		end()
		load.Wait()
		return lost, all
	}
}

// awaitSharing waits until each shows bookings of each other one, and those that that one has.
func (three sharers) awaitSharing() {
	three[0].t.Helper()
	for _, r := range three {
		for _, o := range three {
			if r == o {
				continue
			}
			legs := false
			r.await(fmt.Sprintf("%s to know what %s has booked", r.listen, o.listen), func() bool {
				has, knows := o.shares().Sum, r.shares().at(o.address)
				legs = legs || knows.Legs > 0
				return legs && knows.State == "sharing" && knows.Told && knows.Error == "" && has != nothingBooked && has == knows.Sum && has == o.shares().Sum
			})
		}
	}
}

// others are all but one.
func (three sharers) but(one *sharer) (others sharers) {
	for _, r := range three {
		if r != one {
			others = append(others, r)
		}
	}
	return others
}

// awaitAway waits until the others show that one has ended, and that nothing of it is booked any more.
func (three sharers) awaitAway(one *sharer) {
	one.t.Helper()
	began := time.Now()
	for _, r := range three.but(one) {
		r.await("the others to show that it has ended", func() bool {
			knows := r.shares().at(one.address)
			return knows.State == "away" && knows.Legs == 0 && knows.Sum == nothingBooked
		})
	}
	one.t.Logf("away after %v", time.Since(began))
}

// requireNobodyAside: none has set a worker aside in the life that it has now.
func (three sharers) requireNobodyAside() {
	three[0].t.Helper()
	for _, r := range three {
		require.Zero(r.t, r.setAside(), "no worker is to blame")
	}
}

// awaitEnd waits until nothing is booked anywhere, and all know it.
func (three sharers) awaitEnd() {
	three[0].t.Helper()
	for _, r := range three {
		r.await("nothing to be booked, as all know", func() bool {
			seen := r.shares()
			for _, o := range three.but(r) {
				knows := seen.at(o.address)
				if knows.State != "sharing" || !knows.Told || knows.Legs != 0 || knows.Sum != nothingBooked || knows.Differs != nil {
					return false
				}
			}
			return seen.Sum == nothingBooked
		})
	}
	three.requireNobodyAside()
}

// TestReplicasThatEndLeaveNothingBooked: of three one is killed, and then each is updated in turn. No request
// is lost, what the others know of one ends with it, and its successor is soon heard.
func TestReplicasThatEndLeaveNothingBooked(t *testing.T) {
	t.Parallel()
	eachShared(t, func(t *testing.T, engine worker.Engine) {
		three, _ := newSharers(t, engine, false, false)
		stop := three[0].tenASecond()
		defer stop()
		three.awaitSharing()
		end := func(r *sharer, by func()) {
			three.requireNobodyAside()
			by()
			three.awaitAway(r)
			r.again()
			r.awaitReplicas(3)
			three.awaitSharing()
		}
		end(three[1], func() { require.NoError(t, three[1].plugin.Kill()) })
		for _, r := range three {
			end(r, func() {
				require.NoError(t, r.plugin.Stop(25*time.Second))
				require.NoError(t, r.plugin.Err())
			})
		}
		lost, all := stop()
		t.Logf("%d requests", all)
		require.Empty(t, lost)
		three.awaitEnd()
	})
}

// TestReplicasThatAreCutOffFromEachOtherServe: of three two do not get for a while what the others send them. Nothing else is
// lost: each serves, says whom it does not hear and who does not hear it, and counts what they had booked less
// and less. Soon after the cut all know all again.
func TestReplicasThatAreCutOffFromEachOtherServe(t *testing.T) {
	t.Parallel()
	eachShared(t, func(t *testing.T, engine worker.Engine) {
		three, relays := newSharers(t, engine, engine == worker.SGLang, true)
		stop := three[0].tenASecond()
		defer stop()
		three.awaitSharing()
		served := func() (n [3]float64) {
			for i, r := range three {
				n[i] = r.outcomes("ok")
			}
			return n
		}
		before := served()
		began := time.Now()
		for _, r := range relays {
			_ = r.cut()
		}
		over := time.After(10 * time.Second)
		for i, r := range three {
			for j, o := range three {
				if i == j {
					continue
				}
				r.await("silence", func() bool {
					x := r.shares().at(o.address)
					return (i == 1) == (x.State == "sharing") && (j == 1) == x.Told
				})
				t.Logf("%d of %d after %v: %+v", i, j, time.Since(began), r.shares().at(o.address))
			}
			t.Log(strings.Join(r.shares().Trouble, "\n"))
		}
		<-over
		t.Log(before, served())
		for i, r := range three {
			t.Logf("%d: %+v\n%s", i, r.shares().Replicas, strings.Join(r.shares().Trouble, "\n"))
			t.Log("silent", r.metric("baton_prefill_legs_total", `outcome="report_lost"`), r.metric("baton_fresh_picks_total"))
		}
		for _, r := range relays {
			r.pass.Unlock()
		}
		healed := time.Now()
		three.awaitSharing()
		t.Logf("healed after %v", time.Since(healed))
		lost, all := stop()
		t.Logf("%d requests, lost %d %s", all, len(lost), strings.Join(lost, "\n"))
		three.awaitEnd()
	})
}
