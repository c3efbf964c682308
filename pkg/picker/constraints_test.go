package picker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestConstraintsAreReadByDynamosNames(t *testing.T) {
	c, err := ParseConstraints([]byte(`{"required_taints":["a","b","a"],"preferred_taints":{"z":-0.5,"y":2},"more":1}`))
	require.NoError(t, err)
	require.Equal(t, Constraints{Required: []string{"a", "b"}, Preferred: []Preference{{"y", 2}, {"z", -0.5}}}, c)
	for _, none := range []string{`null`, `{}`, `{"required_taints":null,"preferred_taints":null}`, `{"required_taints":[],"preferred_taints":{}}`} {
		c, err := ParseConstraints([]byte(none))
		require.NoError(t, err)
		require.True(t, c.None(), none)
	}
	require.True(t, (*Constraints)(nil).None())
}

func TestConstraintsOutOfBoundsAreRefused(t *testing.T) {
	long := strings.Repeat("x", worker.MaxTaintBytes+1)
	var nine []string
	weights := map[string]string{}
	for i := range MaxConstraints + 1 {
		nine = append(nine, fmt.Sprintf("%q", fmt.Sprint(i)))
		weights[fmt.Sprint(i)] = fmt.Sprintf("%q:1", fmt.Sprint(i))
	}
	var pairs []string
	for _, p := range weights {
		pairs = append(pairs, p)
	}
	for _, bad := range []string{
		`1`, `[]`, `{`, `{"required_taints":"a"}`, `{"required_taints":[1]}`, `{"required_taints":[""]}`, `{"required_taints":["` + long + `"]}`,
		`{"required_taints":[` + strings.Join(nine, ",") + `]}`, `{"preferred_taints":{` + strings.Join(pairs, ",") + `}}`,
		`{"preferred_taints":["a"]}`, `{"preferred_taints":{"a":"1"}}`, `{"preferred_taints":{"a":null}}`, `{"preferred_taints":{"":1}}`,
		`{"preferred_taints":{"a":101}}`, `{"preferred_taints":{"a":-1e300}}`, `{"preferred_taints":{"a":1e999}}`, `{"preferred_taints":{"` + long + `":1}}`,
		`{"more":"` + strings.Repeat("x", maxConstraintsIn) + `"}`,
	} {
		_, err := ParseConstraints([]byte(bad))
		require.Error(t, err, "%.80s", bad)
	}
}

func TestConstraintsOfSeveralAddUp(t *testing.T) {
	var c, d Constraints
	c.Require("a")
	c.Prefer("p", 1)
	d.Copy(&c)
	d.Require("a")
	d.Require("b")
	d.Prefer("p", -0.5)
	d.Prefer("q", 2)
	require.Equal(t, Constraints{Required: []string{"a", "b"}, Preferred: []Preference{{"p", 0.5}, {"q", 2}}}, d)
	require.Equal(t, Constraints{Required: []string{"a"}, Preferred: []Preference{{"p", 1}}}, c, "a copy is its own")

	w := &worker.Worker{Taints: []string{"a"}}
	require.Empty(t, c.Lacks(w))
	require.Equal(t, "b", d.Lacks(w))
	require.Empty(t, (*Constraints)(nil).Lacks(w))
}

func TestATaintThatNobodyCarriesLeavesNoCandidate(t *testing.T) {
	require.ErrorIs(t, error(&TaintError{Taint: "a"}), ErrNoCandidate)
	var te *TaintError
	require.ErrorAs(t, error(&TaintError{Taint: "a"}), &te)
}

func FuzzConstraints(f *testing.F) {
	f.Add([]byte(`{"required_taints":["a"],"preferred_taints":{"z":-0.5}}`))
	f.Add([]byte(`{"required_taints":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConstraints(data)
		if err != nil {
			require.Zero(t, c)
			return
		}
		require.LessOrEqual(t, len(c.Required), MaxConstraints)
		require.LessOrEqual(t, len(c.Preferred), MaxConstraints)
		for _, p := range c.Preferred {
			require.NotEmpty(t, p.Taint)
			require.LessOrEqual(t, p.Weight, 100.0)
		}
	})
}
