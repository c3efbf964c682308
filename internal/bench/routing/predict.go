package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

// predictedRuns is how often the predicted mode is played live.
const predictedRuns = 3

// How far a prediction may be off: points of the hit rate, and relative times beside the spread of the live runs.
const (
	hitWithin  = 0.02
	timeWithin = 0.10
)

// predict records one mode live, predicts another one from the record, plays that live, and compares.
func (o *options) predict(ctx context.Context, p parts, stdout, stderr io.Writer) error {
	modes, err := chosenLive(o.predicts, o.tokenizer != "", o.played.whole)
	if err != nil {
		return err
	}
	if len(modes) != 2 || modes[0].rival != nil || modes[1].rival != nil {
		return fmt.Errorf("-replay %q: expected two modes of the plugin", o.predicts)
	}
	modes[0].tokens, modes[0].events = "auto", true // a record without blocks tells nothing of caches
	trace, err := o.sliceOf()
	if err != nil {
		return err
	}
	trace = o.played.scale.shrink(trace)
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	one := o.played
	one.record = dir
	fmt.Fprintf(stderr, "live, %s, recorded: %d requests\n", modes[0].name, len(trace))
	was, err := runLive(ctx, p, &one, &modes[0], trace, stderr)
	if err != nil {
		return err
	}
	rep, err := o.predicted(dir, &modes[1])
	if err != nil {
		return err
	}
	var runs []replay.Figures
	for range predictedRuns {
		fmt.Fprintf(stderr, "live, %s: %d requests\n", modes[1].name, len(trace))
		r, err := runLive(ctx, p, &o.played, &modes[1], trace, stderr)
		if err != nil {
			return err
		}
		runs = append(runs, r.Figures)
	}
	fmt.Fprintf(stdout, "%s\n", rep.Text())
	return o.verdict(stdout, modes, &was.Figures, rep, runs)
}

// predicted plays the record with the mode's own configuration.
func (o *options) predicted(dir string, m *liveMode) (*whatif.Report, error) {
	file := filepath.Join(dir, "other.yaml")
	if err := os.WriteFile(file, []byte(o.played.pluginConfig(m)), 0o600); err != nil {
		return nil, err
	}
	c, err := config.Read(file)
	if err != nil {
		return nil, err
	}
	policy, err := c.Simulated(c.Routing)
	if err != nil {
		return nil, err
	}
	names, err := record.Files(dir)
	if err != nil {
		return nil, err
	}
	var files []io.Reader
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		files = append(files, f)
	}
	in, err := whatif.Read(files, "")
	if err != nil {
		return nil, err
	}
	if len(in.Seen) <= warmUps {
		return nil, errors.New("the record lacks requests")
	}
	in.Load.Requests, in.Seen = in.Load.Requests[warmUps:], in.Seen[warmUps:]
	policy.Estimated = !m.events || m.tokens == "estimate"
	options := whatif.Defaults()
	options.Seeds, options.Fresh = sliceSeeds, true
	return whatif.Play(in, &options, policy)
}

// verdict prints the comparison in the trace's time, as a table of docs/routing-quality.md. What is off is an error.
func (o *options) verdict(out io.Writer, modes []liveMode, was *replay.Figures, rep *whatif.Report, runs []replay.Figures) error {
	line := func(name string, f *replay.Figures) {
		fmt.Fprintf(out, "| %s | %.1f %% | %s | %s | %s |\n", name, 100*f.Hit, seconds(f.First.P50), seconds(f.First.P90), seconds(f.First.P99))
	}
	said := rep.Played
	said.First = said.First.Times(o.played.scale.Speedup)
	fmt.Fprintln(out, "| | hit rate | first token p50 | p90 | p99 |\n| --- | --- | --- | --- | --- |")
	line(modes[0].name+", live and recorded", was)
	line(modes[1].name+", predicted from that", &said)
	for i := range runs {
		line(fmt.Sprintf("%s, live, run %d", modes[1].name, i+1), &runs[i])
	}
	var off []string
	within := func(what string, said float64, of func(*replay.Figures) float64, absolute, relative float64) {
		var all []float64
		for i := range runs {
			all = append(all, of(&runs[i]))
		}
		slices.Sort(all)
		middle, low, high := all[len(all)/2], all[0], all[len(all)-1]
		fmt.Fprintf(out, "- %s: predicted %.3f, live %.3f (%.3f to %.3f)\n", what, said, middle, low, high)
		if d := max(said-middle, middle-said); d > max(absolute, relative*middle) && (said < low || said > high) {
			off = append(off, what)
		}
	}
	within("hit rate", said.Hit, func(f *replay.Figures) float64 { return f.Hit }, hitWithin, 0)
	within("first token p50, s", said.First.P50.Seconds(), func(f *replay.Figures) float64 { return f.First.P50.Seconds() }, 0, timeWithin)
	within("first token p99, s", said.First.P99.Seconds(), func(f *replay.Figures) float64 { return f.First.P99.Seconds() }, 0, timeWithin)
	if len(off) > 0 {
		return fmt.Errorf("predictions are off by more than is stated: %s", strings.Join(off, ", "))
	}
	fmt.Fprintln(out, "All within 2 points, and 10 % or the spread of the live runs.")
	return nil
}
