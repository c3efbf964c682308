package replaytest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// The numbers of fleets and traffic by name; blocks are of replay.TraceBlock tokens.
const (
	decodeRanks   = 3
	chunk         = 2048 // prompt tokens of a step
	room          = 1200 // blocks of running answers
	slower        = 0.5  // how fast slow ranks are
	slowRanks     = 2
	throttleEvery = time.Minute // slow in the first half of it
	atOnce        = 4
	burstLoad     = 65.0 // percent
	burstEvery    = 20 * time.Second
	burstWithin   = 10 * time.Second
	reportEvery   = time.Second

	stepBase, stepPerAnswer, stepPerBlock = 0.020, 0.0001, 0.00003 // seconds
	transferBase, transferPerBlock        = 0.005, 0.003
	farther                               = 10 // times as long, between domains
)

// Scenarios makes fleets and traffic by name.
type Scenarios struct {
	Ranks       int           // that prefill
	PerToken    float64       // seconds, of each
	PerPrompt   float64       // seconds, of each
	CacheBlocks int           // of replay.TraceBlock tokens, of each
	EventDelay  time.Duration // of KV events
	Seed        uint64        // of generated traffic
	// Trace are the requests that loads are made of, as they were published.
	Trace []replay.Request
}

// The parts of a fleet's name.
var (
	fleetBases = []string{"whole", "apart"}
	fleetParts = []string{"two-slow", "halved", "throttled", "four", "slow-decode", "far"}
)

// String tells the numbers in sentences.
func (s *Scenarios) String() string {
	return fmt.Sprintf("%d ranks that prefill, %g ms a token and %g ms a prompt, with caches of %d blocks of %d tokens; apart: %d decode ranks, a transfer of %g ms and %g ms a block. "+
		"A step takes %g ms if answers run, %g ms for each and %g ms for each of their blocks, and computes at most %d tokens of prompts; answers hold at most %d blocks. "+
		"two-slow: %d ranks at %g of their speed; halved: from mid-run on; throttled: in the first half of every %v; four: %d prompts at once; slow-decode: one decode rank at that part of its speed; far: the ranks are in %d places, and transfers between these take %d times as long. "+
		"bursts: a load of %g %%, each %v in its first %v. agents: %+v.",
		s.Ranks, 1e3*s.PerToken, 1e3*s.PerPrompt, s.CacheBlocks, replay.TraceBlock, decodeRanks, 1e3*transferBase, 1e3*transferPerBlock,
		1e3*stepBase, 1e3*stepPerAnswer, 1e3*stepPerBlock, chunk, room, slowRanks, slower, throttleEvery, atOnce, decodeRanks, farther, burstLoad, burstEvery, burstWithin, s.agents())
}

func (s *Scenarios) agents() Agents {
	a := DefaultAgents()
	a.Seed = s.Seed
	return a
}

// Fleet returns the fleet of a name such as whole+two-slow, for blocks of so many tokens. Ranks
// that become slower in mid-run do so at half of span.
func (s *Scenarios) Fleet(name string, blockTokens int, span time.Duration) (*replay.Fleet, error) {
	parts := strings.Split(name, "+")
	if !slices.Contains(fleetBases, parts[0]) || slices.ContainsFunc(parts[1:], func(p string) bool { return !slices.Contains(fleetParts, p) }) {
		return nil, fmt.Errorf("fleet %q: expected %s, and any of +%s", name, strings.Join(fleetBases, " or "), strings.Join(fleetParts, " +"))
	}
	per := replay.TraceBlock / blockTokens
	f := &replay.Fleet{
		Near: replay.Transfer{Base: transferBase, PerBlock: transferPerBlock / float64(per)}, EventDelay: s.EventDelay, ReportEvery: reportEvery,
	}
	rank := replay.Rank{
		Role: replay.Whole, PerToken: s.PerToken, PerPrompt: s.PerPrompt, Chunk: chunk, CacheBlocks: s.CacheBlocks * per, Room: room * per,
		Step: replay.Step{Base: stepBase, PerAnswer: stepPerAnswer, PerBlock: stepPerBlock / float64(per)},
	}
	decode := rank
	if apart := parts[0] == "apart"; !apart && (slices.Contains(parts, "slow-decode") || slices.Contains(parts, "far")) {
		return nil, fmt.Errorf("fleet %q: expected slow-decode and far with apart only", name)
	} else if apart {
		rank.Role, rank.Room, decode.Role = replay.Prefill, 0, replay.Decode
	}
	if slices.Contains(parts, "four") {
		rank.Prompts = atOnce
	}
	for i := range s.Ranks {
		r := rank
		if i < slowRanks {
			r.Speeds = speeds(parts[1:], span)
		}
		f.Ranks = append(f.Ranks, r)
	}
	if parts[0] == "apart" {
		f.Ranks = append(f.Ranks, slices.Repeat([]replay.Rank{decode}, decodeRanks)...)
	}
	if slices.Contains(parts, "slow-decode") {
		f.Ranks[len(f.Ranks)-1].Speeds = []replay.Speed{{Factor: slower}}
	}
	if slices.Contains(parts, "far") {
		f.Far = replay.Transfer{Base: farther * f.Near.Base, PerBlock: farther * f.Near.PerBlock}
		for i := range f.Ranks {
			f.Ranks[i].Domain = i % decodeRanks
		}
	}
	return f, nil
}

// speeds are those of the ranks that the parts of a name make slow.
func speeds(parts []string, span time.Duration) (out []replay.Speed) {
	for _, p := range parts {
		switch p {
		case "two-slow":
			out = append(out, replay.Speed{Factor: slower})
		case "halved":
			out = append(out, replay.Speed{From: span / 2, Factor: slower})
		case "throttled":
			for at := time.Duration(0); at < span; at += throttleEvery {
				out = append(out, replay.Speed{From: at, Factor: slower}, replay.Speed{From: at + throttleEvery/2, Factor: 1})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b replay.Speed) int { return int(a.From - b.From) })
	return out
}

// Play returns a fleet and its traffic by their names. Traffic is a load of the fleet in percent
// of its time if nothing were cached, bursts, or agents.
func (s *Scenarios) Play(fleet, traffic string) (*replay.Fleet, *replay.Workload, error) {
	w := &replay.Workload{BlockTokens: replay.TraceBlock, Requests: slices.Clone(s.Trace)}
	load, err := burstLoad, error(nil)
	switch traffic {
	case "agents":
		a := s.agents()
		w = a.Workload()
	case "bursts":
	default:
		load, err = strconv.ParseFloat(traffic, 64)
		if err != nil || !(load > 0 && load < 1000) {
			return nil, nil, fmt.Errorf("traffic %q: expected a load in percent, bursts or agents", traffic)
		}
	}
	f, err := s.Fleet(fleet, w.BlockTokens, 0)
	if err != nil {
		return nil, nil, err
	}
	if demand := Demand(w, f); demand > 0 {
		replay.Scale(w.Requests, load/100/demand)
	}
	if traffic == "bursts" {
		Bunch(w.Requests, burstEvery, burstWithin)
	}
	last := time.Duration(0)
	for i := range w.Requests {
		if w.Requests[i].Follows == 0 {
			last = w.Requests[i].At
		}
	}
	f, err = s.Fleet(fleet, w.BlockTokens, last)
	return f, w, err
}
