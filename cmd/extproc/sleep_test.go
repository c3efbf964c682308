package main

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheImagesSleepWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.Equal(t, exitOK, run(t.Context(), []string{"sleep", "15"}, io.Discard, io.Discard))
		require.Equal(t, 15*time.Second, time.Since(began))
	})
	for _, args := range [][]string{nil, {"x"}, {"-1"}, {"NaN"}, {"1e9"}, {"1", "2"}} {
		require.Equal(t, exitUsage, run(t.Context(), append([]string{"sleep"}, args...), io.Discard, io.Discard), args)
	}
}
