package picker

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// keyOf has the key of each parameter in a configuration.
var keyOf = map[string]string{
	"OverlapScoreCredit": "overlap_score_credit",
	"PrefillLoadScale":   "prefill_load_scale", "DecodeActiveRequestWeight": "decode_active_request_weight",
	"HostHitWeight": "host_cache_hit_weight", "DiskHitWeight": "disk_cache_hit_weight",
	"SharedCacheMultiplier": "shared_cache_multiplier", "EstimatedOverlapWeight": "estimated_overlap_weight",
	"DegradedOverlapWeight": "degraded_overlap_weight", "FetchCost": "fetch_cost", "Temperature": "temperature",
	"TrackPrefillTokens":     "track_prefill_tokens",
	"PrefillTokensThreshold": "active_prefill_tokens_threshold", "DecodeBlocksThreshold": "active_decode_blocks_threshold",
	"ServeOverloaded": "serve_overloaded", "Mode": "mode", "InSeconds": "cost",
}

// TestNoParameterDoesNothing: for each role, a parameter either changes which candidate
// is picked or its cost, or it is refused.
func TestNoParameterDoesNothing(t *testing.T) {
	t.Parallel()
	for _, role := range []worker.Role{worker.Prefill, worker.Decode, worker.Aggregated} {
		fields := reflect.TypeFor[Params]()
		for i := range fields.NumField() {
			name := fields.Field(i).Name
			if name == "BlockSize" {
				continue // the workers determine it
			}
			key, known := keyOf[name]
			require.True(t, known, "%s: which key is it?", name)
			t.Run(role.String()+", "+key, func(t *testing.T) {
				t.Parallel()
				set := BlockParamsFor(role)
				change(reflect.ValueOf(&set).Elem().Field(i))
				set.BlockSize = 16
				err := set.ValidateFor(role)
				refused := err != nil
				if refused {
					require.ErrorContains(t, err, key)
				}
				moves := slices.ContainsFunc(seeds(400), func(seed uint64) bool {
					return outcome(role, &set, i, true, seed) != outcome(role, &set, i, false, seed)
				})
				require.Equal(t, !moves, refused)
			})
		}
	}
}

func seeds(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i)
	}
	return out
}

// change sets a parameter to another value than its default.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Float64:
		v.SetFloat(v.Float()/2 + 0.4)
	case reflect.Int64:
		v.SetInt(v.Int() + 1500)
	default:
		v.SetUint(v.Uint() + 1)
	}
}

// outcome returns the result of a pick among random candidates. One parameter is as in
// set or at its default; some others are random.
func outcome(role worker.Role, set *Params, field int, changed bool, seed uint64) string {
	rng := newRand(seed)
	cands := randomCandidates(1+rng.IntN(12), rng)
	for i := range cands {
		c := &cands[i]
		c.HostBlocks, c.DiskBlocks = uint32(rng.IntN(9)), uint32(rng.IntN(9)) //nolint:gosec // small
		c.Estimated, c.Degraded, c.Starved = rng.IntN(4) == 0, rng.IntN(4) == 0, rng.IntN(6) == 0
		if c.CapacityBlocks = 2500; role == worker.Prefill {
			c.ActiveDecodeBlocks = 0
		}
	}
	p := DefaultParams()
	p.BlockSize = 16
	p.PrefillTokensThreshold = []int64{0, 500}[rng.IntN(2)]
	if changed {
		reflect.ValueOf(&p).Elem().Field(field).Set(reflect.ValueOf(set).Elem().Field(field))
	} else {
		d := DefaultParams()
		reflect.ValueOf(&p).Elem().Field(field).Set(reflect.ValueOf(d).Field(field))
	}
	req := &Request{Role: role, ISLTokens: rng.IntN(2000), RequestBlocks: rng.IntN(50), NewBlocks: rng.IntN(50), SharedBlocks: rng.IntN(40),
		FetchesLacking: role == worker.Decode && rng.IntN(2) == 0, Estimated: rng.IntN(4) == 0}
	if role == worker.Decode {
		p = DecodeOverride(p)
	}
	d, err := Pick(req, NewCandidates(cands...), &p, 0, rng)
	if err != nil {
		var o *OverloadedError
		if errors.As(err, &o) {
			return "overloaded"
		}
		return strings.ToLower(err.Error())
	}
	uncached := d.UncachedTokens
	if role == worker.Decode {
		uncached = 0 // decode bookings have no prompt tokens
	}
	return fmt.Sprint(d.Rank, d.Cost, uncached)
}
