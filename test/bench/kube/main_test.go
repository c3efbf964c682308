//go:build kube

package kube

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/kubetest"
)

var (
	length = flag.Duration("for", 30*time.Second, "how long an idle picker is measured, and one with requests")
	settle = flag.Duration("settle", 10*time.Second, "how long a picker is left alone before its memory is read")
	rate   = flag.Int("rate", 20, "`requests` a second")
	sizes  = flag.String("pods", "100,1000", "numbers of `pods`, separated by commas, none less than the one before")
	which  = flag.String("picker", "", "the `name` of the only picker to measure")
)

var clusters kubetest.Clusters

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(kubetest.Main{M: m, Clusters: &clusters}.Run())
}

// TestBench measures each picker at each number of pods.
func TestBench(t *testing.T) {
	l := newLab(t)
	out := report{cpu: host.CPU(), cores: runtime.NumCPU(), rate: *rate}
	for _, size := range strings.Split(*sizes, ",") {
		n, err := strconv.Atoi(size)
		require.NoError(t, err)
		l.fleet(n)
		for _, c := range contenders() {
			if *which == "" || *which == c.name {
				out.rows = append(out.rows, l.measure(c))
			}
		}
	}
	text := out.String()
	fmt.Println(text)
	require.NoError(t, os.WriteFile(filepath.Join(l.root, ".run", "bench", "kube.md"), []byte(text), 0o600))
}

// pause lets a measured span pass.
func pause(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
