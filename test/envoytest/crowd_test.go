//go:build e2e

package envoytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// crowdIs names the variable that makes this package's tests a crowd: a [crowd] in JSON.
const crowdIs = "ENVOYTEST_CROWD"

// crowd are clients with large bodies.
type crowd struct {
	URL     string
	Clients int
	Size    int           // of each one's body
	Rate    int64         // bytes in a second that reach Envoy, of all of them together
	Slow    int64         // and of each slow one
	Lasts   time.Duration // refused clients ask again until then
	Within  time.Duration // in which all have begun, one after the other
}

// link is a line on which so many bytes a second pass.
type link struct {
	rate int64

	mu   sync.Mutex
	free time.Time // guarded by mu: when what was given to it has passed
}

func (l *link) pass(ctx context.Context, n int) error {
	l.mu.Lock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
	at := l.free
	l.mu.Unlock()
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// linked is a body that comes over lines. Its bytes take no memory until they do.
type linked struct {
	r     io.Reader
	links []*link
	ctx   context.Context //nolint:containedctx // the test's
}

func (b *linked) Read(p []byte) (int, error) {
	n, err := b.r.Read(p[:min(len(p), 64<<10)])
	for _, l := range b.links {
		if err := l.pass(b.ctx, n); err != nil {
			return 0, err
		}
	}
	return n, err
}

// exes is a text of so many letters.
type exes struct{ left int }

var someExes = []byte(strings.Repeat("x", 64<<10))

func (x *exes) Read(p []byte) (int, error) {
	if x.left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), x.left)], someExes)
	x.left -= n
	return n, nil
}

// outcomes are what the clients of a crowd got.
type outcomes struct {
	mu    sync.Mutex
	Sent  int
	Count map[string]int
}

// add counts what a client got, and says in how long it may ask again, 0 for never.
func (o *outcomes) add(ctx context.Context, r *reply) (again time.Duration) {
	what := fmt.Sprintf("%d %.200s", r.status, r.body)
	switch {
	case ctx.Err() != nil:
		what = "time over"
	case r.err != nil:
		what, again = "broken off", 5*time.Second // refused while it wrote
	case r.status == 200:
		what = "200"
	case r.status == 503 && strings.Contains(r.body, `"bodies_full"`):
		if s, err := strconv.Atoi(r.header.Get("Retry-After")); err == nil {
			what, again = "503", time.Duration(s)*time.Second
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Count == nil {
		o.Count = map[string]int{}
	}
	o.Sent++
	o.Count[what]++
	return again
}

// sendAll has the clients send, half of them slowly, half of them without saying how
// much, again when they are refused, as soon as they may. It returns what they got.
func (c *crowd) sendAll() *outcomes {
	ctx, cancel := context.WithTimeout(context.Background(), c.Lasts)
	defer cancel()
	shared := &link{rate: c.Rate}
	var got outcomes
	var wg sync.WaitGroup
	for i := range c.Clients {
		links, sized := []*link{shared}, i/2%2 == 0
		if i%2 == 1 {
			links = append(links, &link{rate: c.Slow})
		}
		wg.Go(func() {
			for again := c.Within * time.Duration(i) / time.Duration(c.Clients); ; {
				select {
				case <-time.After(again):
				case <-ctx.Done():
					return
				}
				if again = got.add(ctx, c.ask(ctx, i, links, sized)); again == 0 {
					return
				}
				again += time.Duration(i) * time.Millisecond
			}
		})
	}
	wg.Wait()
	return &got
}

// ask sends one large body. No long prompt: simulated workers take their time over its tokens.
func (c *crowd) ask(ctx context.Context, i int, links []*link, sized bool) *reply {
	const tail = `"}`
	head := fmt.Sprintf(`{"model":"m","prompt":"large %d","max_tokens":2,"user":"`, i)
	var body io.Reader = &linked{io.MultiReader(strings.NewReader(head), &exes{c.Size}, strings.NewReader(tail)), links, ctx}
	if sized {
		body = &sizedBody{body, len(head) + c.Size + len(tail)}
	}
	return post(ctx, c.URL, body)
}

// sends has a process of its own send all, only where no other wants to run: clients have
// machines of their own in life. It returns what they got.
func (c crowd) sends(t *testing.T, f *fleet) map[string]int {
	c.URL = f.envoy.URL + "/v1/completions"
	said, err := json.Marshal(c)
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crowdIs+"="+string(said))
	var out, told bytes.Buffer
	child.Stdout, child.Stderr = &out, &told
	require.NoError(t, child.Start())
	giveWay(t, child.Process.Pid)
	require.NoError(t, child.Wait(), "%s", &told)
	var got outcomes
	require.NoError(t, json.Unmarshal(out.Bytes(), &got), "%s", &out)
	f.sent.Add(int64(got.Sent))
	return got.Count
}

// giveWay has a process run only where no other wants to, with all its threads: others need
// not wait for it, as with a low priority they would. A thread that is started has the policy
// of the one that starts it.
func giveWay(t *testing.T, pid int) {
	t.Helper()
	done := map[string]bool{}
	for more := true; more; { // a thread may have started another meanwhile
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		require.NoError(t, err)
		more = false
		for _, thread := range threads {
			if done[thread.Name()] {
				continue
			}
			done[thread.Name()], more = true, true
			tid, err := strconv.Atoi(thread.Name())
			require.NoError(t, err)
			if err := unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); !errors.Is(err, unix.ESRCH) {
				require.NoError(t, err)
			}
		}
	}
}

// playCrowd is what a crowd's process does. It returns its exit status.
func playCrowd(said string) int {
	var c crowd
	err := json.Unmarshal([]byte(said), &c)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(c.sendAll())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
