package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/stats"
)

const (
	ours  = "ours"
	radix = "RadixTree"
	crtc  = "CRTC"
)

// peersOptions are the flags of `peers`.
type peersOptions struct {
	src, dir string
	repeats  int
	traces   string
	modes    string
	limit    time.Duration
	noGo     bool
}

func parsePeers(args []string, stderr io.Writer) (*peersOptions, error) {
	o := &peersOptions{}
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.src, "src", "../shared/peers/kvindex", "`folder` of the rivals' sources")
	fs.StringVar(&o.dir, "dir", ".run/kvindex", "`folder` for builds and traces")
	fs.IntVar(&o.repeats, "repeats", 5, "interleaved repeats")
	fs.StringVar(&o.traces, "traces", "chat64,chat16,large,chat64x9", "traces to run")
	fs.StringVar(&o.modes, "modes", "replay,writes,reads,both", "modes to run; of chat64x9 only replay")
	fs.DurationVar(&o.limit, "limit", 4*time.Minute, "time a run may take")
	fs.BoolVar(&o.noGo, "no-go", false, "leave out the rivals written in Go")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if o.repeats < 1 {
		return nil, fmt.Errorf("repeats %d: expected 1 or more", o.repeats)
	}
	return o, nil
}

// figures are all that was measured, by trace, row and peer.
type figures map[string]map[string]map[string][]float64

func (f figures) add(trace, row, peer string, v float64) {
	if f[trace] == nil {
		f[trace] = map[string]map[string][]float64{}
	}
	if f[trace][row] == nil {
		f[trace][row] = map[string][]float64{}
	}
	f[trace][row][peer] = append(f[trace][row][peer], v)
}

// contest is a whole run of `peers`.
type contest struct {
	o    *peersOptions
	lab  *lab
	self string
	out  io.Writer
	f    figures
	sums map[string]map[string]string // checksums by trace and peer
	fail []string
}

// peers builds the rivals, runs everything and prints the tables.
func peers(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parsePeers(args, stderr)
	if err != nil {
		return err
	}
	c := &contest{o: o, out: stdout, f: figures{}, sums: map[string]map[string]string{}}
	c.self, err = os.Executable()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	c.lab = &lab{src: o.src, dir: dir, log: stderr}
	if err := c.lab.build(ctx, !o.noGo); err != nil {
		return err
	}
	for _, trace := range strings.Split(o.traces, ",") {
		if err := c.lab.ensureTrace(ctx, trace); err != nil {
			return err
		}
		c.trace(ctx, trace)
		c.print(trace)
	}
	for _, text := range c.fail {
		fmt.Fprintln(stdout, "failed:", text)
	}
	return ctx.Err()
}

// trace runs all modes of one trace, the peers one after the other in each
// repeat.
func (c *contest) trace(ctx context.Context, trace string) {
	modes := strings.Split(c.o.modes, ",")
	if trace == "chat64x9" {
		modes = []string{"replay"}
	}
	path := c.lab.trace(trace)
	dynamo := filepath.Join(c.lab.dir, "target", "release", "peer-dynamo")
	for _, mode := range modes {
		for range c.o.repeats {
			c.run(ctx, trace, mode, ours, c.self, mode, path)
			c.run(ctx, trace, mode, crtc, dynamo, "crtc", mode, path)
			if mode != "both" { // RadixTree has no reader beside its writer
				c.run(ctx, trace, mode, radix, dynamo, "radix", mode, path)
			}
		}
	}
	if c.o.noGo || trace == "chat64x9" {
		return
	}
	for _, p := range goRivals {
		c.run(ctx, trace, "replay", p.peer, c.lab.bin(p.dir), p.peer, "replay", path)
	}
}

// run runs one peer once in a mode and notes its figures.
func (c *contest) run(ctx context.Context, trace, mode, peer, bin string, args ...string) {
	ctx, cancel := context.WithTimeout(ctx, c.o.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), "AIBRIX_PREFIX_CACHE_BLOCK_SIZE=8")
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no end within %s", c.o.limit)
	}
	var got map[string]any
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &got)
	}
	if err != nil {
		c.fail = append(c.fail, fmt.Sprintf("%s %s of %s: %v", peer, mode, trace, err))
		return
	}
	for k, v := range got {
		if n, ok := v.(float64); ok {
			c.f.add(trace, mode+" "+k, peer, n)
		}
	}
	if sum, ok := got["checksum"].(string); ok {
		if c.sums[trace] == nil {
			c.sums[trace] = map[string]string{}
		}
		c.sums[trace][peer] = sum
	}
}

// row is a line of the table.
type row struct {
	key, text string
	unit      float64
	less      bool // the smaller the better
}

func rows() []row {
	return []row{
		{"reads q_p50", "warm read p50, µs", 1e3, true},
		{"reads q_p99", "warm read p99, µs", 1e3, true},
		{"replay q_p50", "replay p50, µs", 1e3, true},
		{"replay q_p99", "replay p99, µs", 1e3, true},
		{"both q_p50", "reader beside a writer p50, µs", 1e3, true},
		{"both q_p99", "reader beside a writer p99, µs", 1e3, true},
		{"both write_blocks_per_s", "writer beside a reader, M blocks/s", 1e6, false},
		{"writes write_blocks_per_s", "writes alone, M blocks/s", 1e6, false},
		{"replay fill_blocks_per_s", "fill, M blocks/s", 1e6, false},
		{"replay store_blocks_per_s", "steady store, M blocks/s", 1e6, false},
		{"replay remove_blocks_per_s", "steady remove, M blocks/s", 1e6, false},
		{"replay rss_bytes_per_entry", "resident bytes an entry", 1, true},
		{"replay clear_us", "clear one worker, ms", 1e3, true},
	}
}

// print writes the table of a trace: medians, and how many times better ours is.
func (c *contest) print(trace string) {
	fmt.Fprintf(c.out, "\n%s (medians of %d interleaved runs)\n\n", trace, c.o.repeats)
	fmt.Fprintf(c.out, "| | %s | %s | %s | × %s | × %s |\n|---|---|---|---|---|---|\n", ours, radix, crtc, radix, crtc)
	for _, r := range rows() {
		got := c.f[trace][r.key]
		if len(got[ours]) == 0 {
			continue
		}
		mine := stats.Median(got[ours])
		cells, ratios := []string{r.text, fmt.Sprintf("%.3g", mine/r.unit)}, []string{}
		for _, p := range []string{radix, crtc} {
			if len(got[p]) == 0 {
				cells, ratios = append(cells, "–"), append(ratios, "–")
				continue
			}
			theirs := stats.Median(got[p])
			ratio := mine / theirs
			if r.less {
				ratio = theirs / mine
			}
			cells, ratios = append(cells, fmt.Sprintf("%.3g", theirs/r.unit)), append(ratios, fmt.Sprintf("%.2f", ratio))
		}
		fmt.Fprintf(c.out, "| %s |\n", strings.Join(append(cells, ratios...), " | "))
	}
	c.printOthers(trace)
}

// printOthers writes the checksums and the rivals that were run once.
func (c *contest) printOthers(trace string) {
	want := c.sums[trace][ours]
	fmt.Fprintf(c.out, "\nchecksums: ours %s", want)
	for _, p := range []string{radix, crtc} {
		fmt.Fprintf(c.out, ", %s %s", p, c.sums[trace][p])
	}
	fmt.Fprintln(c.out)
	if got := c.sums[trace][radix]; got != "" && got != want {
		c.fail = append(c.fail, trace+": our checksum is not that of the exact rivals")
	}
	mine := c.f[trace]["replay q_p50"][ours]
	for _, p := range goRivals {
		if got := c.f[trace]["replay q_p50"][p.peer]; len(got) > 0 && len(mine) > 0 {
			fmt.Fprintf(c.out, "%s: replay p50 %.3g µs, %.0f × ours; checksum %s\n", p.peer, got[0]/1e3, got[0]/stats.Median(mine), c.sums[trace][p.peer])
		}
	}
}
