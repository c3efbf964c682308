//go:build e2e && long

package standalone

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/test/stack"
)

// before is the commit of 0.1.0.
const before = "fa0c25b0"

// buildBefore builds the program of 0.1.0 from the clone's history, and returns its folder and its tree's.
func buildBefore(t *testing.T) (bin, tree string) {
	t.Helper()
	bin, tree = t.TempDir(), t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", "-c",
		`git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C "$2" && cd "$2" && go build -trimpath -o "$3/" ./cmd/extproc`, "sh", before, tree, bin).CombinedOutput()
	require.NoError(t, err, "the history of this clone is needed: %s", out)
	return bin, tree
}

// site is an Envoy with a configuration, and where its plugins listen.
type site struct {
	envoy           *stack.Envoy
	dir, list, legs string // legs is the socket of legs that plugins send
	listen          []string
	admin           []string
	served, refused atomic.Int64
}

// newSite starts an Envoy for n plugins, as the file says; of one for a plugin at a socket two addresses are made.
func newSite(t *testing.T, list, name string, n int) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), list: list, legs: "prefill.sock"}
	ports, err := stack.FreePorts(t.Context(), 1+2*n)
	require.NoError(t, err)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	config := string(text)
	if strings.Contains(config, "/legs.sock") {
		s.legs = "legs.sock"
	}
	var both []string
	for i := range n {
		s.admin = append(s.admin, fmt.Sprintf("127.0.0.1:%d", ports[1+i]))
		s.listen = append(s.listen, fmt.Sprintf("127.0.0.1:%d", ports[1+n+i]))
		both = append(both, fmt.Sprintf("{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}", ports[1+n+i]))
		config = strings.ReplaceAll(config, fmt.Sprintf("port_value: %d}", 9002+10*i), fmt.Sprintf("port_value: %d}", ports[1+n+i]))
	}
	if n == 1 {
		s.listen[0] = "unix://" + s.dir + "/extproc.sock"
	} else {
		config = strings.ReplaceAll(config, `{endpoint: {address: {pipe: {path: "/run/baton/extproc.sock"}}}}`, strings.Join(both, ", "))
	}
	config = strings.ReplaceAll(config, "/run/baton/", s.dir+"/")
	config = strings.Replace(config, "port_value: 10000}", fmt.Sprintf("port_value: %d}", ports[0]), 1)
	path, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	s.envoy, err = stack.StartEnvoy(t.Context(), stack.EnvoyOptions{Path: path, Dir: s.dir, Config: []byte(config)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.envoy.Kill()) })
	require.NoError(t, os.WriteFile(s.dir+"/leg.key", []byte("a key that both have, and nobody else"), 0o600))
	return s
}

// plugin starts a program as the i-th plugin, and waits until it is ready and 3 s more, as docs/install.md says.
func (s *site) plugin(t *testing.T, bin string, i int) *stack.Process {
	t.Helper()
	text := fmt.Sprintf("listen: %q\nadmin: {listen: %q}\ndiscovery: {file: %q}\nprefill: {listener: \"unix://%s/%s\"}\n", s.listen[i], s.admin[i], s.list, s.dir, s.legs)
	if len(s.listen) > 1 {
		text += fmt.Sprintf("leg: {key_file: %q, advertise: %q}\n", s.dir+"/leg.key", s.listen[i])
	}
	config := fmt.Sprintf("%s/%d.yaml", s.dir, i)
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	p, err := stack.StartProgram(t.Context(), stack.ProgramOptions{Name: "extproc", Path: filepath.Join(bin, "extproc"), Args: []string{"serve", "--config", config}})
	require.NoError(t, err)
	t.Cleanup(func() {
		if p.Alive() {
			require.NoError(t, p.Kill())
		}
	})
	for end := time.Now().Add(30 * time.Second); ; <-time.After(50 * time.Millisecond) {
		if resp, err := http.Get("http://" + s.admin[i] + "/readyz"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		require.True(t, time.Now().Before(end) && p.Alive(), "%s", p.Log())
	}
	if len(s.listen) > 1 {
		<-time.After(3 * time.Second)
	}
	return p
}

// load asks six times a second until stop is called, which returns how many were served and lost.
func (s *site) load(t *testing.T) (stop func() (served, lost int64)) {
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second / 6)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			wg.Go(func() {
				if err := complete(s.envoy.URL); err != nil {
					t.Logf("%.300s", err)
					s.refused.Add(1)
					return
				}
				s.served.Add(1)
			})
		}
	})
	return func() (int64, int64) {
		close(ended)
		wg.Wait()
		return s.served.Load(), s.refused.Load()
	}
}

// TestTwoPluginsAreUpgradedAndRolledBack is docs/install.md#from-0-1: from 0.1.0 and back to it, one plugin after the
// other, with Envoy's configuration of then, and with that of now.
func TestTwoPluginsAreUpgradedAndRolledBack(t *testing.T) {
	_, now := build(t)
	then, tree := buildBefore(t)
	list := filepath.Join(t.TempDir(), "workers.yaml")
	require.NoError(t, file.Write(list, startWorkers(t, now)))
	for name, config := range map[string]string{"Envoy as of 0.1.0": filepath.Join(tree, "envoy", "standalone.yaml"), "Envoy as of now": filepath.Join(twoFiles, "envoy.yaml")} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, list, config, 2)
			plugins := []*stack.Process{s.plugin(t, then, 0), s.plugin(t, then, 1)}
			stop := s.load(t)
			for _, bin := range []string{now, then} {
				for i := range plugins {
					require.NoError(t, plugins[i].Stop(40*time.Second))
					plugins[i] = s.plugin(t, bin, i)
				}
			}
			served, lost := stop()
			t.Logf("%d served, %d lost", served, lost)
			require.Zero(t, lost)
			require.Greater(t, served, int64(60))
		})
	}
}

// TestWhichProgramServesWithWhichEnvoy: at a socket the program comes before Envoy's file, and goes back after it.
func TestWhichProgramServesWithWhichEnvoy(t *testing.T) {
	_, now := build(t)
	then, tree := buildBefore(t)
	list := filepath.Join(t.TempDir(), "workers.yaml")
	require.NoError(t, file.Write(list, startWorkers(t, now)))
	older, newer := filepath.Join(tree, "envoy", "standalone.yaml"), filepath.Join("..", "..", "..", "envoy", "standalone.yaml")
	for _, c := range []struct {
		name, bin, envoy string
		serves           bool
	}{
		{"0.1.0 with its own", then, older, true},
		{"now with that of 0.1.0", now, older, true},
		{"now with its own", now, newer, true},
		{"0.1.0 with that of now", then, newer, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, list, c.envoy, 1)
			p := s.plugin(t, c.bin, 0)
			err := complete(s.envoy.URL)
			if c.serves {
				require.NoError(t, err)
			} else {
				t.Log(err)
				require.Error(t, err)
			}
			require.NoError(t, p.Stop(40*time.Second))
		})
	}
}
