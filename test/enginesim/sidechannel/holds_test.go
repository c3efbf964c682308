package sidechannel

import (
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func TestALeaseEndsAtItsTimeAndFreesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHolds(30 * time.Second)
		var mu sync.Mutex // two leases may end at the same time
		freed := map[string]int{}
		put := func(id string) {
			l.put(&held{id: id, digest: 7, blocks: 2, free: func() {
				mu.Lock()
				defer mu.Unlock()
				freed[id]++
			}})
		}
		match := func(*held) *refusal { return nil }
		put("early")
		put("late")
		put("refused")
		<-time.After(30*time.Second - 1)
		require.Nil(t, l.take("early", -1, "", match))
		require.Equal(t, "other", l.take("refused", 0, "", func(*held) *refusal { return &refusal{Kind: "other"} }).Kind)
		require.Equal(t, "unknown_handoff", l.take("late", 1, "", match).Kind, "it is of rank 0")
		require.Equal(t, core.HandoffState{Held: 2, HeldBlocks: 4, Given: 3, Taken: 1}, l.counts())
		<-time.After(1)
		synctest.Wait()
		require.Equal(t, map[string]int{"early": 1, "late": 1, "refused": 1}, freed)
		require.Equal(t, core.HandoffState{Given: 3, Taken: 1, Expired: 2}, l.counts())
		no := l.take("late", 0, "", match)
		require.Equal(t, "expired", no.Kind)
		require.False(t, no.Violation)
		require.True(t, l.take("early", 0, "another", match).Violation)
		require.False(t, l.take("early", 0, "", match).Violation, "it is the one that took it")
		require.False(t, l.end("late", goneReleased, ""))

		put("last")
		l.reset()
		require.Equal(t, core.HandoffState{Held: 1, HeldBlocks: 2, Given: 1}, l.counts())
		l.close()
		put("after")
		require.Equal(t, 1, freed["last"])
		require.Equal(t, 1, freed["after"])
		require.Zero(t, l.counts().Held)
	})
}

func TestIdsThatAreGoneAreForgottenInTheEnd(t *testing.T) {
	l := newHolds(time.Hour)
	for i := range goneKept + 1 {
		l.put(&held{id: strconv.Itoa(i), free: func() {}})
		require.True(t, l.end(strconv.Itoa(i), goneTaken, ""))
	}
	require.Len(t, l.past, goneKept)
	require.Len(t, l.order, goneKept)
}

func FuzzChangedFieldNeverPanics(f *testing.F) {
	f.Add(`{"a":1}`)
	f.Add(`{"a":`)
	f.Add(`[`)
	f.Fuzz(func(t *testing.T, got string) {
		same := changedField(map[string]string{"a": "1"}, got) == ""
		var have map[string]json.RawMessage
		require.False(t, same && json.Unmarshal([]byte(got), &have) != nil, "what is no object has not come back")
	})
}
