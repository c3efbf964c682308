package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnePoolOfSeveralIsEnough(t *testing.T) {
	var absent bool
	p := pools{all: 2, told: func(a bool) { absent = a }}
	require.Empty(t, p.why())
	p.note("a", false, "does not exist")
	require.False(t, absent)
	p.note("b", false, "was deleted")
	require.True(t, absent)
	require.Equal(t, "pool a does not exist; pool b was deleted", p.why())
	p.note("a", true, "")
	require.False(t, absent)
	beside := pools{all: 1, beside: true, told: func(a bool) { absent = a }}
	beside.note("a", false, "does not exist")
	require.False(t, absent, "the workers of a file are served")
}
