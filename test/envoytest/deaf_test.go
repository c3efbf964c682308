//go:build e2e

package envoytest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestAConnectionThatIsNotMadeIsNoProof: one of two workers of a role takes no connection, as if
// packets to it were dropped. Each request is served by the other, and nobody is charged; the
// probe, which gets no connection either, sets the worker aside.
func TestAConnectionThatIsNotMadeIsNoProof(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layout
		legs []blame.Leg
	}{
		"mirrored": {layoutOf(layout{prefill: 2, decode: 2, config: everyTurn}, worker.SGLang), []blame.Leg{blame.Mirrored, blame.Decode}},
		"first":    {layoutOf(layout{prefill: 2, decode: 2, config: everyTurn}, worker.VLLM), []blame.Leg{blame.First}},
		"alone":    {layout{aggregated: 2, config: everyTurn}, []blame.Leg{blame.Alone}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, c.layout)
			all := slices.Clone(f.workers)
			for _, l := range c.legs {
				info := *f.serving(l)[0].Info
				info.ID, info.Endpoint = worker.ID(900+int(l)), deaf(t)
				mates := []*stack.Worker{{Info: &info}}
				for _, w := range all {
					if w != f.serving(l)[0] {
						mates = append(mates, w)
					}
				}
				f.publishAndWait(mates...)
				before := f.setAside()
				for i := 0; f.saw(l, blame.Unmade) == 0; i++ {
					require.Less(t, i, 8, "the deaf one is met in its turn")
					prompt := fmt.Sprintf("one is deaf, %s %d", l, i)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, i%2 == 0)), prompt, 4)
				}
				f.await("the deaf one to be set aside", func() bool {
					for _, w := range look(t, f.plugin).Workers {
						if w.Endpoint == info.Endpoint.String() {
							return w.State == "aside"
						}
					}
					return false
				})
				require.Zero(t, f.metric("baton_worker_charges_total", fmt.Sprintf("worker_id=%q", info.ID.String()), `charge="connect_failed"`))
				require.Equal(t, before+1, f.setAside(), "it, and only it")
				f.publishAndWait(all...)
			}
		})
	}
}

// TestARoleThatTakesNoConnectionIsWaitedFor: all workers of a role are beyond a network that drops
// packets. Requests wait for one of them, and are served once it is back.
func TestARoleThatTakesNoConnectionIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		for _, l := range []blame.Leg{blame.Mirrored, blame.Decode} {
			t.Run(fmt.Sprintf("%s %s", engine, l), func(t *testing.T) {
				t.Parallel()
				either(t, layoutOf(layout{prefill: 1, decode: 1, prefillArgs: map[worker.Engine][]string{worker.VLLM: shortLease}[engine]}, engine), func(t *testing.T, f *fleet) {
					lost := f.serving(l)[0]
					info := *lost.Info
					at, hears := deafInFront(t, lost.Info.Endpoint.String())
					info.ID, info.Endpoint = 900, at
					workers := []*stack.Worker{{Info: &info}}
					for _, w := range f.workers {
						if w != lost {
							workers = append(workers, w)
						}
					}
					f.publishAndWait(workers...)
					const requests = 6
					replies := make(chan *reply, requests+1)
					for i := range requests {
						go func() {
							replies <- f.send(t.Context(), "/v1/completions", completion("nobody hears", 4, i%2 == 0))
						}()
					}
					f.await("all to wait", func() bool {
						require.Empty(t, replies, "none has ended")
						return f.metric("baton_requests_waiting") == requests
					})
					f.await("the role to be set aside: they waited for a probe, and wait for its return now", func() bool {
						require.Empty(t, replies, "none has ended")
						return f.setAside() > 0
					})
					go func() { replies <- f.send(t.Context(), "/v1/completions", completion("nobody hears", 4, false)) }()
					f.await("who comes then to wait, too", func() bool {
						require.Empty(t, replies, "none has ended")
						return f.metric("baton_requests_waiting") == requests+1
					})
					hears()
					for range requests + 1 {
						requireAnswer(t, <-replies, "nobody hears", 4)
					}
					require.Zero(t, f.metric("baton_requests_waiting"))
				})
			})
		}
	}
}

// TestARequestWaitsForABoundedTime: nobody comes back.
func TestARequestWaitsForABoundedTime(t *testing.T) {
	t.Parallel()
	either(t, layout{prefill: 1, decode: 1, config: "request: {max_wait: 1s}\n"}, func(t *testing.T, f *fleet) {
		info := *f.decode[0].Info
		info.ID, info.Endpoint = 900, deaf(t)
		f.publishAndWait(f.prefill[0], &stack.Worker{Info: &info})
		for range 2 {
			r := f.send(t.Context(), "/v1/completions", completion("nobody comes back", 4, false))
			requireError(t, r, http.StatusServiceUnavailable, "no_decode_worker")
		}
		require.Zero(t, f.metric("baton_requests_waiting"))
	})
}

// deaf returns the address of a socket whose queue of new connections is full: the kernel drops
// what else comes.
func deaf(t *testing.T) worker.Endpoint {
	t.Helper()
	at, _ := deafInFront(t, "")
	return at
}

// deafInFront is deaf until hears is called. From then on it passes connections on.
func deafInFront(t *testing.T, to string) (at worker.Endpoint, hears func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "deaf")
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(fd, 0))
	sa, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*syscall.SockaddrInet4).Port))
	c, err := net.Dial("tcp", addr.String()) // the one that has room
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	at, err = worker.ParseEndpoint(addr.String())
	require.NoError(t, err)
	return at, func() {
		ln, err := net.FileListener(f)
		if err != nil {
			t.Errorf("the socket cannot listen: %v", err)
			return
		}
		t.Cleanup(func() { _ = ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go forward(c, to)
			}
		}()
	}
}

// forward copies what comes on a connection to an address, and back.
func forward(c net.Conn, to string) {
	defer c.Close()
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		defer c.Close()
		_, _ = io.Copy(c, up)
	}()
	_, _ = io.Copy(up, c)
}
