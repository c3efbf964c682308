package picker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnOverrideThatAsksForNothingChangesNothing(t *testing.T) {
	for _, text := range []string{`{}`, `null`, `{"overlap_score_credit":null,"something_new":[1]}`, `{"assume_kv_reuse":false}`} {
		o, err := ParseOverride([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, DefaultParams(), o.Apply(DefaultParams()), text)
	}
}

func TestEveryMemberOfAnOverrideIsApplied(t *testing.T) {
	o, err := ParseOverride([]byte(`{"overlap_score_credit":2,"prefill_load_scale":3,"router_temperature":0.5,
		"shared_cache_multiplier":0.25,"track_prefill_tokens":false}`))
	require.NoError(t, err)
	want := DefaultParams()
	want.OverlapScoreCredit, want.PrefillLoadScale, want.Temperature = 2, 3, 0.5
	want.SharedCacheMultiplier, want.TrackPrefillTokens = 0.25, false
	require.Equal(t, want, o.Apply(DefaultParams()))
}

func TestAnOverrideThatIsNoneIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`[1]`:                            "expected an object",
		`"x"`:                            "expected an object",
		`{"overlap_score_credit":"1"}`:   "overlap_score_credit",
		`{"assume_kv_reuse":1}`:          "assume_kv_reuse",
		`{"assume_kv_reuse":true}`:       "assume_kv_reuse true: expected false",
		`{"router_temperature":-0.1}`:    "router_temperature -0.1: expected a number from 0",
		`{"prefill_load_scale":1e300}`:   "prefill_load_scale",
		`{"overlap_score_weight":-1}`:    "overlap_score_weight",
		`{"shared_cache_multiplier":-1}`: "shared_cache_multiplier",
		`{`:                              "expected an object",
	} {
		o, err := ParseOverride([]byte(text))
		require.ErrorContains(t, err, want, text)
		require.Equal(t, Override{}, o, text)
	}
}

// Whatever a request sets, the parameters must stay valid for a pick.
func FuzzParseOverride(f *testing.F) {
	for _, s := range []string{
		`{"overlap_score_credit":0.5,"router_temperature":1}`, `{"overlap_score_weight":0}`,
		`{"assume_kv_reuse":true,"track_prefill_tokens":null}`, `{"prefill_load_scale":-1}`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := ParseOverride(data)
		if err != nil {
			return
		}
		p := o.Apply(DefaultParams())
		require.NoError(t, p.Validate())
		d := DecodeOverride(p)
		require.Equal(t, p.Temperature, d.Temperature)
		require.Zero(t, d.OverlapScoreCredit)
	})
}
