package whatif

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Options say what a record does not have, and what is to be otherwise.
type Options struct {
	Fleet string  // as 6P2D, or 4A; "": that of the record
	Warm  float64 // share of the requests, from the first on, that fill caches and count in no figure
	Rate  float64 // how many times as fast requests arrive; 0 counts as 1
	Fresh bool    // the plugin begins without the speeds that were learned
	Seeds int     // runs, of which medians are taken; 0 counts as 1

	// Between, if set, is called after each request; its error ends the run.
	Between func() error

	// Where the input does not tell.
	Speed     float64       // prompt tokens a second of a rank
	PerPrompt time.Duration // beside its tokens
	Step      time.Duration // of a token of running answers
	Transfer  time.Duration // of a hand-off
	Cache     int           // tokens of a rank's cache
}

// Defaults returns the options of `extproc replay` without flags.
func Defaults() Options {
	return Options{
		Seeds: 3, Rate: 1,
		Speed: 8000, PerPrompt: 20 * time.Millisecond, Step: 20 * time.Millisecond, Transfer: 5 * time.Millisecond, Cache: 2_000_000,
	}
}

const (
	chunk       = 2048 // prompt tokens of a step, as engines have it by default
	eventDelay  = 10 * time.Millisecond
	reportEvery = 2 * time.Second // the default of engines.report_interval
)

// countsOf reads a fleet's name.
func countsOf(name string) (counts [replay.Whole + 1]int, err error) {
	parts := regexp.MustCompile(`^(?:([0-9]{1,4})P)?(?:([0-9]{1,4})D)?(?:([0-9]{1,4})A)?$`).FindStringSubmatch(strings.ToUpper(name))
	if parts == nil || name == "" {
		return counts, fmt.Errorf("fleet %q: expected counts of ranks by role, as 6P2D or 4A", name)
	}
	for i, text := range parts[1:] {
		if text != "" {
			counts[i], _ = strconv.Atoi(text) // four digits
		}
	}
	return counts, nil
}

// nameOf is the fleet's name.
func nameOf(f *replay.Fleet) (name string) {
	for role, letter := range "PDA" {
		if n := len(f.Of(replay.Role(role))); n > 0 { //nolint:gosec // 0 to 2
			name += strconv.Itoa(n) + string(letter)
		}
	}
	return name
}

// Fleet returns the simulated fleet, and in sentences where its numbers are from.
func (in *Input) Fleet(o *Options) (*replay.Fleet, []string, error) {
	speeds := map[worker.Rank]record.Speed{}
	handOff, from := record.Speed{PerRequest: o.Transfer.Seconds()}, "as stated"
	for _, s := range in.Speeds {
		if s.Rank.ID != 0 {
			speeds[s.Rank] = s
		} else if s.Model == in.Model {
			handOff, from = s, "learned"
		}
	}
	f := &replay.Fleet{EventDelay: eventDelay}
	f.Near = replay.Transfer{Base: handOff.PerRequest, PerBlock: handOff.PerToken * float64(in.Load.BlockTokens)}
	f.Far = f.Near
	var usual [replay.Whole + 1]replay.Rank
	var says [replay.Whole + 1]string
	for i, role := range roles {
		usual[i], says[i] = in.usual(role, speeds, o)
		usual[i].Role = replay.Role(i) //nolint:gosec // 0 to 2
	}
	if err := in.ranks(f, o.Fleet, &usual, speeds); err != nil {
		return nil, nil, err
	}
	var told []string
	for role, text := range says {
		if len(f.Of(replay.Role(role))) > 0 { //nolint:gosec // 0 to 2
			told = append(told, text)
		}
	}
	if len(f.Of(replay.Decode)) > 0 {
		told = append(told, fmt.Sprintf("a hand-off: %s and %s a thousand tokens, %s", seconds(f.Near.Base), seconds(handOff.PerToken*1000), from))
	}
	return f, told, nil
}

// usual is a rank of a role with median speeds, and a sentence that says where they are from.
func (in *Input) usual(role worker.Role, speeds map[worker.Rank]record.Speed, o *Options) (replay.Rank, string) {
	capacity, cache := o.Cache/in.Load.BlockTokens, fmt.Sprintf("a cache of %d tokens, as stated", o.Cache)
	var tokens, requests []float64
	for i := range in.Ranks {
		r := &in.Ranks[i]
		if r.Role != role {
			continue
		}
		if s, learned := speeds[r.Rank]; learned {
			tokens, requests = append(tokens, s.PerToken), append(requests, s.PerRequest)
		}
		if r.Capacity > 0 {
			capacity, cache = r.Capacity, "caches as the workers say"
		}
	}
	step := o.Step
	if in.Between > 0 {
		step = in.Between
	} else if in.Seen != nil && in.longest() < 2 {
		step = 0 // no answer tells, and none needs it
	}
	out := replay.Rank{PerToken: 1 / o.Speed, PerPrompt: o.PerPrompt.Seconds(), Chunk: chunk, CacheBlocks: capacity, Step: replay.Step{Base: step.Seconds()}}
	if role != worker.Prefill {
		out.Room = capacity
	}
	how := fmt.Sprintf("speeds as stated: %g tokens/s and %v a prompt", o.Speed, o.PerPrompt)
	if role == worker.Decode {
		how = seconds(step.Seconds()) + " a token, as stated or as answers took"
	}
	if len(tokens) > 0 {
		take(&out, role, record.Speed{PerToken: stats.Median(tokens), PerRequest: stats.Median(requests)})
		how = fmt.Sprintf("speeds as learned, of %d ranks", len(tokens))
	}
	return out, fmt.Sprintf("%s: %s; %s", role, how, cache)
}

func (in *Input) longest() (n int) {
	for i := range in.Load.Requests {
		n = max(n, in.Load.Requests[i].Answer)
	}
	return n
}

// ranks adds the ranks: so many as the name says, or those of the record.
func (in *Input) ranks(f *replay.Fleet, name string, usual *[replay.Whole + 1]replay.Rank, speeds map[worker.Rank]record.Speed) error {
	if name == "" && len(in.Ranks) == 0 {
		return errors.New("expected --fleet, as 6P2D or 4A: the input names no workers")
	}
	if name != "" {
		counts, err := countsOf(name)
		for role, n := range counts {
			for range n {
				f.Ranks = append(f.Ranks, usual[role])
			}
		}
		return err
	}
	for i := range in.Ranks {
		x := &in.Ranks[i]
		r := usual[slices.Index(roles[:], x.Role)]
		if x.Capacity > 0 {
			r.CacheBlocks, r.Room = x.Capacity, min(r.Room, 1)*x.Capacity
		}
		if s, learned := speeds[x.Rank]; learned {
			take(&r, x.Role, s)
		}
		f.Ranks = append(f.Ranks, r)
	}
	return nil
}

// take gives a rank a learned speed: of decode that of a token over the blocks that answers hold.
func take(r *replay.Rank, role worker.Role, s record.Speed) {
	if role == worker.Decode {
		r.Step = replay.Step{Base: s.PerRequest, PerBlock: s.PerToken}
		return
	}
	r.PerToken, r.PerPrompt = s.PerToken, s.PerRequest
}
