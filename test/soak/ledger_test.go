package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func TestALeaseThatEndsWhereNothingIsWrongIsALeak(t *testing.T) {
	one, other := target{Model: "m", Role: worker.Prefill}, target{Model: "m", Role: worker.Prefill, Index: 1}
	before := ledger{one: {Given: 10, Taken: 7, Expired: 3}, other: {Given: 1, Released: 1}}
	given, leaks := compare(before, ledger{one: {Given: 14, Taken: 11, Expired: 3}, other: {Given: 2, Released: 2}})
	require.EqualValues(t, 5, given)
	require.Empty(t, leaks)
	_, leaks = compare(before, ledger{one: {Given: 14, Taken: 9, Expired: 5}, other: {Given: 1, Released: 1}})
	require.Len(t, leaks, 1)
	require.Contains(t, leaks[0], one.String()+": the KV of 2 hand-offs")
	for _, gone := range []ledger{{one: before[one]}, {one: before[one], other: enginesim.HandoffState{}}} {
		_, leaks = compare(before, gone)
		require.Len(t, leaks, 1, "what cannot be compared is not passed over")
	}
}
