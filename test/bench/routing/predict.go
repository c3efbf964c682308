package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
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
	said, err := o.predicted(ctx, p, dir, &modes[1])
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
	fmt.Fprintf(stdout, "%s\n", said.text)
	return verdict(stdout, modes, &was.Figures, &said.Figures, runs)
}

// prediction is what `extproc replay` says.
type prediction struct {
	text string
	replay.Figures
}

// predicted plays the record with the mode's own configuration. The warm-ups count in no figure, and the plugin
// of the live runs has just been started.
func (o *options) predicted(ctx context.Context, p parts, dir string, m *liveMode) (*prediction, error) {
	file := filepath.Join(dir, "other.yaml")
	if err := os.WriteFile(file, []byte(o.played.pluginConfig(m)), 0o600); err != nil {
		return nil, err
	}
	run := func(more ...string) ([]byte, error) {
		args := append([]string{"replay", "--config", file, "--fresh", "--seeds", strconv.Itoa(sliceSeeds),
			"--warm", number(warmUps / float64(o.played.requests+warmUps))}, more...)
		out, err := exec.CommandContext(ctx, filepath.Join(p.bin, "extproc"), append(args, dir)...).Output()
		if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return out, err
	}
	text, err := run()
	if err != nil {
		return nil, err
	}
	raw, err := run("--json")
	if err != nil {
		return nil, err
	}
	var said struct {
		Figures map[string]struct {
			Hit   float64            `json:"hit_rate"`
			First map[string]float64 `json:"first_token_seconds"`
		} `json:"figures"`
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return nil, err
	}
	played := said.Figures["played"]
	at := func(q string) time.Duration {
		return time.Duration(played.First[q] * o.played.scale.Speedup * float64(time.Second))
	}
	return &prediction{string(text), replay.Figures{Hit: played.Hit, First: replay.Times{P50: at("p50"), P90: at("p90"), P99: at("p99")}}}, nil
}

// verdict prints the comparison in the trace's time, as a table of docs/routing-quality.md. What is off is an error.
func verdict(out io.Writer, modes []liveMode, was, said *replay.Figures, runs []replay.Figures) error {
	line := func(name string, f *replay.Figures) {
		fmt.Fprintf(out, "| %s | %.1f %% | %s | %s | %s |\n", name, 100*f.Hit, seconds(f.First.P50), seconds(f.First.P90), seconds(f.First.P99))
	}
	fmt.Fprintln(out, "| | hit rate | first token p50 | p90 | p99 |\n| --- | --- | --- | --- | --- |")
	line(modes[0].name+", live and recorded", was)
	line(modes[1].name+", predicted from that", said)
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
