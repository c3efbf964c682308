package jinja_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

var small = jinja.Limits{SourceBytes: 1 << 14, Steps: 20_000, Bytes: 1 << 18}

// FuzzCompile compiles and renders anything: it ends, and in one of the known ways.
func FuzzCompile(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(template(seed))
	}
	f.Fuzz(func(t *testing.T, source string) {
		tpl, err := jinja.Compile(source, small)
		if err == nil {
			_, err = tpl.Render(jinja.Env{Vars: varsOf(t, randomVars)})
		}
		if err != nil {
			require.NotZero(t, jinja.KindOf(err), "%v", err)
		}
	})
}

// FuzzDecode compares with encoding/json: what is decoded is JSON, and of the same value.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(randomVars))
	f.Add([]byte(`[1, -0, 1.5e3, "a\u00e9\ud83d\ude00\n", {"a": {}, "a": []}, true, null]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := jinja.Decode(raw)
		if err != nil {
			return
		}
		require.True(t, json.Valid(raw), "%q", raw)
		tpl, err := jinja.Compile("{{ v | tojson }}", jinja.Limits{})
		require.NoError(t, err)
		out, err := tpl.Render(jinja.Env{Vars: []jinja.Var{{Name: "v", Value: v}}})
		if jinja.KindOf(err) == jinja.Limited {
			return
		}
		require.NoError(t, err)
		var want, got any
		require.NoError(t, json.Unmarshal(raw, &want))
		require.NoError(t, json.Unmarshal([]byte(out.Text()), &got))
		require.Equal(t, want, got)
	})
}
