package config

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Every setting but the mode reaches a parameter of its own.
func TestEveryKnobOfAPickTurnsOneParameter(t *testing.T) {
	fields := reflect.TypeFor[PickConfig]().NumField()
	const role = worker.Aggregated
	defaults := picker.DefaultParamsFor(role)
	changed := map[int]string{}
	for i := range fields {
		name := reflect.TypeFor[PickConfig]().Field(i).Name
		if name == "Mode" || name == "Cost" {
			continue
		}
		var c PickConfig
		v := reflect.New(reflect.TypeFor[PickConfig]().Field(i).Type.Elem())
		switch v.Elem().Kind() {
		case reflect.Float64:
			v.Elem().SetFloat(0.125)
		case reflect.Int64:
			v.Elem().SetInt(7)
		case reflect.Bool: // the other way round
			full := c.filled(role)
			v.Elem().SetBool(!reflect.ValueOf(full).Field(i).Elem().Bool())
		}
		reflect.ValueOf(&c).Elem().Field(i).Set(v)
		p, err := c.Params(role)
		require.NoError(t, err, name)
		was, is := reflect.ValueOf(defaults), reflect.ValueOf(p)
		n := 0
		for k := range is.NumField() {
			if !is.Field(k).Equal(was.Field(k)) {
				require.NotContains(t, changed, k, "%s and %s turn the same parameter", name, changed[k])
				changed[k] = name
				n++
			}
		}
		require.Equal(t, 1, n, name)
		require.Equal(t, p, mustParams(t, c.filled(role)), "what is filled in reads back")
	}
	require.Len(t, changed, fields-2)
}

// TestWhatIsSetForWholeRequestsWins over their own defaults, which a pair's picks do not have.
func TestWhatIsSetForWholeRequestsWins(t *testing.T) {
	params := func(c PickConfig, role worker.Role) []float64 {
		p, err := c.Params(role)
		require.NoError(t, err)
		return []float64{p.PrefillLoadScale, p.OverlapScoreCredit}
	}
	require.Equal(t, []float64{10, 2}, params(PickConfig{}, worker.Aggregated))
	for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
		require.Equal(t, []float64{1, 1}, params(PickConfig{}, role))
	}
	one, none := 1.0, 0.0
	require.Equal(t, []float64{1, 2}, params(PickConfig{PrefillLoadScale: &one}, worker.Aggregated))
	require.Equal(t, []float64{10, 0}, params(PickConfig{OverlapScoreCredit: &none}, worker.Aggregated))
}

func mustParams(t *testing.T, c PickConfig) picker.Params {
	p, err := c.Params(worker.Aggregated)
	require.NoError(t, err)
	return p
}
