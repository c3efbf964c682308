//go:build long

package etcd_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// slowEtcd runs an etcd as others do, with a password's usual cost, on 0.6 of a processor:
// of each tenth of a second it stands still for four hundredths. used is how much of the
// processor it has had, which on a busy machine is less.
func slowEtcd(t *testing.T) (endpoint string, used func() time.Duration) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "devetcd")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/devetcd").CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.Command(bin, "--dir", t.TempDir(), "--no-fsync", "--election-timeout", "1s")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for stands := false; ; stands = !stands {
			wait, next := 60*time.Millisecond, syscall.SIGSTOP
			if stands {
				wait, next = 40*time.Millisecond, syscall.SIGCONT
			}
			select {
			case <-done:
				return
			case <-time.After(wait):
				_ = cmd.Process.Signal(next)
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-stopped
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(pipe).ReadBytes('\n')
	require.NoError(t, err)
	var ready struct{ Endpoints []string }
	require.NoError(t, json.Unmarshal(line, &ready))
	return ready.Endpoints[0], func() time.Duration {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err)
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		return time.Duration(user+system) * 10 * time.Millisecond // it counts hundredths
	}
}

// Registrars with users that begin at once keep etcd busy with their passwords for a while:
// all are registered within what it computes in a minute, and stay so.
func TestACrowdWithPasswordsIsRegistered(t *testing.T) {
	const crowd, minute = 120, 36 * time.Second // 0.6 of it
	at, used := slowEtcd(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{at}})
	require.NoError(t, err)
	withUsers(t, admin)
	require.NoError(t, admin.Close())
	var in, lost atomic.Int64
	begun, before := time.Now(), used()
	for i := range crowd {
		c, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{at}, Username: "user", Password: "word"})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		r := register(t, c, func(c *etcd.RegistrarConfig) {
			c.TTL, c.RetryMax = 0, 0
			c.Hooks = etcd.RegistrarHooks{Registered: func(worker.ID) { in.Add(1) }, Lost: func(string) { lost.Add(1) }}
		})
		r.Announce(workerAt(t, worker.Decode, fmt.Sprintf("10.0.0.1:%d", 8000+i)), 1)
	}
	for in.Load() < crowd && used()-before < minute && time.Since(begun) < 5*time.Minute {
		<-time.After(time.Second)
	}
	t.Logf("%d in after %s, of which etcd ran %s", in.Load(), time.Since(begun).Round(time.Second), used()-before)
	require.EqualValues(t, crowd, in.Load())
	rested(t, 20*time.Second) // twice the TTL
	require.Zero(t, lost.Load())
}
