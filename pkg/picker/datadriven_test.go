package picker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/picktable"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The one verb of testdata/cost:
//
//	pick role=prefill mode=kv isl=64 blocks=4 new=3 estimated
//	     block-size=16 credit=1 scale=1 request-weight=0 host-weight=.75
//	     disk-weight=.25 estimate-weight=.5 temperature=0 track=true shared=0 shared-multiplier=.5
//	     fetches fetch-cost=1
//	     degraded-weight=.5 override=("name":value,…) decode-override cursor=0
//	     prefill-threshold=0 decode-threshold=0 serve-overloaded
//	7/0 overlap=4 host=0 disk=0 prefill_tokens=0 decode_blocks=0
//	     requests=0 capacity=0 taint=0 estimated degraded starved load-unknown out
//
// Arguments that are not given have their defaults; blocks is isl / block-size by
// default. Each line is one candidate. The verb prints the table and the picked
// candidate; if the pick is random, it prints all candidates that were picked in 1,000
// draws.
func TestCostTables(t *testing.T) {
	datadriven.Walk(t, "testdata/cost", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			require.Equal(t, "pick", d.Cmd, d.Pos)
			req, p, cursor := parsePick(t, d)
			var cands []picker.Candidate
			var out []int
			for line := range strings.Lines(d.Input) {
				fields := strings.Fields(line)
				if i := slices.Index(fields, "out"); i > 0 {
					fields, out = slices.Delete(fields, i, i+1), append(out, len(cands))
				}
				cands = append(cands, parseCandidate(t, fields))
			}
			columns := picker.NewCandidates(cands...)
			columns.Out = picker.NewBits(len(cands))
			for _, i := range out {
				columns.Out.Set(i)
			}
			return describe(req, columns, p, cursor)
		})
	})
}

func describe(req *picker.Request, cands *picker.Candidates, p *picker.Params, cursor uint64) string {
	rng := rand.New(rand.NewPCG(1, 2))
	var last picker.Decision
	var picked []string
	for range 1000 {
		d, err := picker.Pick(req, cands, p, cursor, rng)
		if err != nil {
			return err.Error() + "\n"
		}
		last = d
		if s := d.Rank.String(); !slices.Contains(picked, s) {
			picked = append(picked, s)
		}
	}
	slices.Sort(picked)
	star, who := worker.Rank{}, "one of "+strings.Join(picked, " ")
	if len(picked) == 1 {
		star, who = last.Rank, picked[0]
	}
	out := picktable.Format(picker.AppendTable(nil, req, cands, p), star)
	out += fmt.Sprintf("picked: %s (%s)\n", who, last.Reason)
	if last.Cursor != cursor {
		out += fmt.Sprintf("cursor: %d\n", last.Cursor)
	}
	return out
}

func parsePick(t *testing.T, d *datadriven.TestData) (*picker.Request, *picker.Params, uint64) {
	req, p := &picker.Request{Role: worker.Prefill, RequestBlocks: -1}, picker.DefaultParams()
	var cursor uint64
	override := false
	for _, a := range d.CmdArgs {
		v := ""
		if len(a.Vals) > 0 {
			v = a.Vals[0]
		}
		var err error
		num := func(dst *int) { *dst, err = strconv.Atoi(v) }
		float := func(dst *float64) { *dst, err = strconv.ParseFloat(v, 64) }
		flag := func(dst *bool) { *dst, err = strconv.ParseBool(v) }
		switch a.Key {
		case "role":
			req.Role, err = worker.ParseRole(v)
		case "mode":
			p.Mode, err = picker.ParseMode(v)
		case "isl":
			num(&req.ISLTokens)
		case "blocks":
			num(&req.RequestBlocks)
		case "new":
			num(&req.NewBlocks)
		case "estimated":
			req.Estimated = true
		case "block-size":
			num(&p.BlockSize)
		case "credit":
			float(&p.OverlapScoreCredit)
		case "scale":
			float(&p.PrefillLoadScale)
		case "request-weight":
			float(&p.DecodeActiveRequestWeight)
		case "host-weight":
			float(&p.HostHitWeight)
		case "disk-weight":
			float(&p.DiskHitWeight)
		case "degraded-weight":
			float(&p.DegradedOverlapWeight)
		case "prefill-threshold":
			p.PrefillTokensThreshold, err = strconv.ParseInt(v, 10, 64)
		case "decode-threshold":
			float(&p.DecodeBlocksThreshold)
		case "serve-overloaded":
			p.ServeOverloaded = true
		case "override":
			var o picker.Override
			o, err = picker.ParseOverride([]byte("{" + strings.Join(a.Vals, ",") + "}"))
			p = o.Apply(p)
		case "estimate-weight":
			float(&p.EstimatedOverlapWeight)
		case "temperature":
			float(&p.Temperature)
		case "shared":
			num(&req.SharedBlocks)
		case "fetches":
			req.FetchesLacking = true
		case "fetch-cost":
			float(&p.FetchCost)
		case "shared-multiplier":
			float(&p.SharedCacheMultiplier)
		case "track":
			flag(&p.TrackPrefillTokens)
		case "decode-override":
			override = true
		case "cursor":
			cursor, err = strconv.ParseUint(v, 10, 64)
		default:
			err = errors.New("unknown argument")
		}
		require.NoErrorf(t, err, "%s: %s", d.Pos, a.Key)
	}
	if override {
		p = picker.DecodeOverride(p)
	}
	if req.RequestBlocks < 0 {
		req.RequestBlocks = req.ISLTokens / p.BlockSize
	}
	require.NoError(t, p.Validate(), d.Pos)
	return req, &p, cursor
}

func parseCandidate(t *testing.T, f []string) picker.Candidate {
	id, dp, ok := strings.Cut(f[0], "/")
	require.True(t, ok, f[0])
	i, err := worker.ParseID(id)
	require.NoError(t, err)
	r, err := strconv.ParseUint(dp, 10, 32)
	require.NoError(t, err)
	c := picker.Candidate{Rank: worker.Rank{ID: i, DPRank: worker.DPRank(r)}}
	for _, s := range f[1:] {
		k, v, _ := strings.Cut(s, "=")
		n, _ := strconv.ParseInt(v, 10, 64)
		switch k {
		case "overlap":
			c.OverlapBlocks = uint32(n)
		case "host":
			c.HostBlocks = uint32(n)
		case "disk":
			c.DiskBlocks = uint32(n)
		case "prefill_tokens":
			c.ActivePrefillTokens = n
		case "decode_blocks":
			c.ActiveDecodeBlocks = n
		case "requests":
			c.ActiveRequests = int32(n)
		case "taint":
			w, err := strconv.ParseFloat(v, 32)
			require.NoError(t, err)
			c.TaintWeight = float32(w)
		case "capacity":
			c.CapacityBlocks = n
		case "starved":
			c.Starved = true
		case "degraded":
			c.Degraded = true
		case "estimated":
			c.Estimated = true
		case "load-unknown":
			c.LoadUnknown = true
		default:
			require.Failf(t, "unknown field", "%q", s)
		}
	}
	return c
}
