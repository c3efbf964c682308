package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

// replayCommand plays requests that were recorded as this configuration would route them.
func replayCommand(args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("replay", "Plays recorded requests in a simulation, as a plugin of this configuration would route them, and says what\n"+
		"users would have got: extproc replay --config other.yaml FILE…\n"+
		"FILE is a file of record.dir or that folder, a trace in Mooncake's form, or Dynamo's request trace.\n"+
		"The configuration's routing and prefill.max_queued_isl_tokens count. docs/replay.md says how far it is off.", stderr)
	o := whatif.Defaults()
	file := fs.String("config", "", "configuration `file`; without it, the defaults")
	model := fs.String("model", "", "`name` of the model whose requests are played; default: the one that has most")
	fs.StringVar(&o.Fleet, "fleet", "", "play over so many `ranks`, as 6P2D (prefill, decode) or 4A, with their role's median speeds; default: those of the record")
	fs.Float64Var(&o.Rate, "rate", o.Rate, "how many times as fast requests arrive")
	fs.Float64Var(&o.Warm, "warm", 0, "`share` of the requests, from the first on, that fill caches and count in no figure")
	fs.BoolVar(&o.Fresh, "fresh", false, "begin without the speeds that the plugin had learned, as one that has just been started")
	fs.IntVar(&o.Seeds, "seeds", o.Seeds, "runs that draw between equal costs; medians are printed")
	fs.Float64Var(&o.Speed, "speed", o.Speed, "prompt `tokens` a second of a rank, where the input does not tell")
	fs.DurationVar(&o.PerPrompt, "per-prompt", o.PerPrompt, "what a prompt takes beside its tokens, where the input does not tell")
	fs.DurationVar(&o.Step, "step", o.Step, "what a token of running answers takes, where the input does not tell")
	fs.DurationVar(&o.Transfer, "transfer", o.Transfer, "what a hand-off takes, where the input does not tell")
	fs.IntVar(&o.Cache, "cache", o.Cache, "`tokens` that a rank's cache holds, where the input does not tell")
	raw := fs.Bool("json", false, "print the report as JSON")
	svg := fs.String("svg", "", "write a picture into this `file`")
	if err := config.ParseFlags(fs, args, math.MaxInt); err != nil {
		return err
	}
	if err := replayable(&o, fs.NArg()); err != nil {
		return config.Usage(err)
	}
	c, err := config.Read(*file)
	if err != nil {
		return config.Usage(err)
	}
	policy, err := c.Simulated(c.Routing)
	if err != nil {
		return config.Usage(fmt.Errorf("replay: %w", err))
	}
	in, err := readInput(fs.Args(), *model)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	rep, err := whatif.Play(in, &o, policy)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if *svg != "" {
		err = os.WriteFile(*svg, []byte(rep.SVG()), 0o644)
	}
	text := []byte(rep.Text())
	if *raw && err == nil {
		text, err = rep.JSON()
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	_, err = stdout.Write(text)
	return err
}

func replayable(o *whatif.Options, files int) error {
	switch {
	case files == 0:
		return errors.New("replay: expected files of a record or of a trace: extproc replay --config other.yaml FILE…")
	case !(o.Rate > 0) || !(o.Speed > 0) || o.Cache < 1 || o.Seeds < 1 || o.Seeds > 100:
		return errors.New("replay: --rate, --speed, --cache and --seeds: expected numbers above 0 (--seeds: at most 100)")
	case !(o.Warm >= 0 && o.Warm < 1), min(o.PerPrompt, o.Step, o.Transfer) < 0:
		return errors.New("replay: --warm: expected a number from 0 to below 1; --per-prompt, --step and --transfer: expected none below 0")
	}
	return nil
}

// readInput reads the files; a folder stands for the record in it.
func readInput(names []string, model string) (*whatif.Input, error) {
	var files []io.Reader
	for _, name := range names {
		all := []string{name}
		info, err := os.Stat(name)
		if err == nil && info.IsDir() {
			all, err = record.Files(name)
		}
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%s: expected a folder with a record", name)
		}
		for _, n := range all {
			f, err := os.Open(n)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			files = append(files, f)
		}
	}
	return whatif.Read(files, model)
}
