package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestOnlyAWorkersOwnFaultHasItSetAside(t *testing.T) {
	me, mate := target{"m", worker.Prefill, 0}, target{"m", worker.Prefill, 1}
	at := func(k kind, on target, from, to time.Duration) history {
		return history{{Fault: fault{Kind: k, On: on}, From: from, To: to}}
	}
	const now = 20 * time.Second
	for name, h := range map[string]history{
		"it lasts":                      at(hang, me, 19*time.Second, 0),
		"it is over, and not for long":  at(refuse, me, 10*time.Second, now-workerReach),
		"the machine did not run us":    at(machineStall, target{}, 15*time.Second, 16*time.Second),
		"one of several was on me, too": append(at(slow, mate, 0, 0), at(slow, me, 0, 0)...),
	} {
		require.True(t, h.deserves(me, now), name)
	}
	for name, h := range map[string]history{
		"nothing was wrong":       nil,
		"it came later":           at(hang, me, now+1, 0),
		"it is over long ago":     at(hang, me, time.Second, now-workerReach-1),
		"its mate's":              at(hang, mate, 19*time.Second, 0),
		"its decode's":            at(hang, target{"m", worker.Decode, 0}, 19*time.Second, 0),
		"another model's":         at(hang, target{"n", worker.Prefill, 0}, 19*time.Second, 0),
		"the plugin's or Envoy's": at(killEnvoy, target{}, 19*time.Second, 0),
		"etcd's":                  at(killEtcd, target{}, 19*time.Second, 0),
	} {
		require.False(t, h.deserves(me, now), name)
	}
}
