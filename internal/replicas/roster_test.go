package replicas

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var begin = time.Unix(1000, 0)

func after(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }

func begun() *Roster {
	r := NewRoster("self:1")
	r.Begin(begin)
	return r
}

// tick is Tick at a time up to which the process has run.
func tick(r *Roster, now time.Time) []Action {
	r.ticked = now.Add(-PulseEvery)
	return r.Tick(now)
}

func only(t *testing.T, r *Roster) Mate {
	t.Helper()
	all := r.Mates()
	require.Len(t, all, 1)
	return all[0]
}

func TestAReplicaIsHeardFadesAndComesBack(t *testing.T) {
	r := begun()
	r.List([]string{"self:1", "b:1"}, begin)
	require.Equal(t, Unmet, only(t, r).Hearing)
	do, ok := r.Opened("b:1", "b", 7, after(1))
	require.True(t, ok)
	require.Empty(t, do)
	known, back := r.Took("b:1", 7, true, false, after(1))
	require.True(t, known)
	require.False(t, back)
	require.Equal(t, Sharing, only(t, r).Hearing)
	require.Empty(t, tick(r, after(2.9)))

	require.Equal(t, []Action{{Fade, "b:1", 7, 0, true}}, tick(r, after(3)), "its stream is open, and nothing comes")
	require.Equal(t, []Action{{Fade, "b:1", 7, 7 * time.Second, false}}, tick(r, after(10)))
	require.Equal(t, Silent, only(t, r).Hearing)
	known, back = r.Took("b:1", 7, false, false, after(11))
	require.True(t, known)
	require.True(t, back)
	require.Empty(t, tick(r, after(12)))

	require.NotEmpty(t, tick(r, after(14)))
	_, ok = r.Opened("b:1", "b", 7, after(15)) // it has given its old connection up
	require.True(t, ok)
	_, back = r.Took("b:1", 7, true, false, after(15))
	require.True(t, back)
}

func TestAReplicaIsDeadOnceItsAddressRefuses(t *testing.T) {
	r := begun()
	_, _ = r.Opened("b:1", "b", 7, begin)
	require.Empty(t, r.Closed("b:1", 7, false, begin))
	check := []Action{{Do: Check, Address: "b:1", Life: 7}}
	require.Empty(t, tick(r, after(0.4)), "it may come back at once")
	require.Equal(t, check, tick(r, after(0.5)))
	require.Empty(t, r.Checked("b:1", 7, Refused, after(0.6)))
	require.Equal(t, check, tick(r, after(1)))
	require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 7}}, r.Checked("b:1", 7, Refused, after(1.1)), "within three seconds")
	require.Equal(t, Away, only(t, r).Hearing)
	require.Empty(t, tick(r, after(20)))

	do, ok := r.Opened("b:1", "b", 7, after(21))
	require.True(t, ok, "it was cut off, and is the same process")
	require.Empty(t, do)
}

func TestAReplicaThatMayLiveIsDoubtedAlone(t *testing.T) {
	for _, found := range []Found{Nothing, Same} {
		r := begun()
		r.List([]string{"b:1"}, begin)
		_, _ = r.Opened("b:1", "b", 7, begin)
		_ = r.Closed("b:1", 7, false, begin)
		for s := range 60 {
			require.NotContains(t, fmt.Sprint(tick(r, after(float64(s)))), fmt.Sprint(Action{Do: Forget, Address: "b:1", Life: 7}))
			require.Empty(t, r.Checked("b:1", 7, Refused, after(float64(s))))
			require.Empty(t, r.Checked("b:1", 7, found, after(float64(s))))
		}
		require.Equal(t, Silent, only(t, r).Hearing)
		r.List(nil, after(61)) // its pod is gone
		require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 7}}, tick(r, after(61)))
	}
}

func TestOneLifeOfAnAddressCounts(t *testing.T) {
	r := begun()
	_, _ = r.Opened("b:1", "b", 7, begin)
	do, ok := r.Opened("b:1", "b", 8, begin)
	require.True(t, ok)
	require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 7}}, do)
	known, _ := r.Took("b:1", 7, false, false, begin)
	require.False(t, known)
	_, ok = r.Opened("b:1", "b", 7, begin)
	require.False(t, ok, "the life before does not come back")
	require.Empty(t, r.Closed("b:1", 7, true, begin))
	require.Empty(t, r.Checked("b:1", 7, Another, begin))
	require.Equal(t, uint64(8), only(t, r).Life)

	require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 8}}, r.Closed("b:1", 8, true, begin), "it says that it leaves")
	_, _ = r.Opened("b:1", "b", 9, begin)
	_ = r.Closed("b:1", 9, false, begin)
	require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 9}}, r.Checked("b:1", 9, Another, begin))
	_, ok = r.Opened("b:1", "b", 9, begin)
	require.False(t, ok)
}

func TestAStartWaitsForWholeBooksOfThoseWhoAreThere(t *testing.T) {
	r := begun()
	require.True(t, r.Ready(), "alone")
	r.List([]string{"self:1", "b:1", "c:1"}, begin)
	require.False(t, r.Ready())
	r.Sent("c:1", "connection refused", false, begin)
	_, _ = r.Opened("b:1", "b", 7, begin)
	_, _ = r.Took("b:1", 7, false, false, begin)
	require.False(t, r.Ready(), "b has not told all")
	_, _ = r.Took("b:1", 7, true, false, begin)
	require.True(t, r.Ready(), "c cannot be reached")
	require.False(t, r.Late(after(1.9)))
	require.True(t, r.Late(after(2)))
}

func TestWhoDiffersIsShown(t *testing.T) {
	r := begun()
	_, _ = r.Opened("b:1", "b", 7, begin)
	_, _ = r.Took("b:1", 7, true, true, after(1))
	_, _ = r.Took("b:1", 7, false, true, after(2))
	require.Equal(t, after(1), only(t, r).Differs)
	_, _ = r.Took("b:1", 7, true, false, after(3))
	require.Zero(t, only(t, r).Differs)
}

func TestAVersionThatDoesNotShareIsSaid(t *testing.T) {
	r := begun()
	r.List([]string{"b:1"}, begin)
	r.Sent("b:1", "unknown", true, after(1))
	require.Equal(t, Unshared, only(t, r).Hearing)
	require.True(t, r.Ready())
	_, _ = r.Opened("b:1", "b", 7, after(2)) // it was updated
	require.Equal(t, Sharing, only(t, r).Hearing)
}

func TestReplicasAreBoundedAndForgotten(t *testing.T) {
	r := begun()
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255))
	}
	r.List(many, begin)
	require.Len(t, r.Mates(), MostMates)
	_, ok := r.Opened("one more:1", "", 7, begin)
	require.False(t, ok)
	r.List(nil, begin)
	_, ok = r.Opened("one more:1", "", 7, begin)
	require.True(t, ok, "in the place of one that nobody has heard")
	_ = r.Closed("one more:1", 7, true, begin)
	require.Empty(t, tick(r, after(601)))
	require.Empty(t, r.Mates())
	r.Meet("other name of self:1", begin)
	r.Alias("other name of self:1", begin)
	r.List([]string{"other name of self:1"}, after(1))
	require.Empty(t, r.Mates())
	r.List([]string{"other name of self:1"}, after(601))
	require.Len(t, r.Mates(), 1, "it may be another's meanwhile")
}

func TestAProcessWithTwoAddressesIsOneReplica(t *testing.T) {
	r := begun()
	r.List([]string{"b:1", "10.0.0.2:1"}, begin)
	require.False(t, r.Known("b:1", 7), "nothing of it has come")
	_, _ = r.Opened("10.0.0.2:1", "b", 7, begin)
	_, _ = r.Took("10.0.0.2:1", 7, true, false, begin)
	require.True(t, r.Known("b:1", 7))
	require.False(t, r.Known("10.0.0.2:1", 7))
	r.Alias("b:1", begin)
	require.Equal(t, "10.0.0.2:1", only(t, r).Address)
	require.True(t, r.Ready())
}

func TestWhoWasNeverListedIsForgottenInTheEnd(t *testing.T) {
	r := begun()
	_, _ = r.Opened("b:1", "b", 7, begin)
	_ = r.Closed("b:1", 7, false, begin)
	_ = tick(r, after(500))
	require.Equal(t, Silent, only(t, r).Hearing)
	require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 7}}, tick(r, after(601)))
	_ = tick(r, after(1300))
	require.Empty(t, r.Mates())
}

func TestAProcessThatStoodStillDoubtsNobody(t *testing.T) {
	r := begun()
	_, _ = r.Opened("b:1", "b", 7, begin)
	require.Empty(t, r.Tick(after(0.5)))
	require.Empty(t, r.Tick(after(20)), "this one was stopped")
	require.Empty(t, r.Tick(after(20.5)))
	require.Equal(t, Sharing, only(t, r).Hearing)
	require.NotEmpty(t, tick(r, after(23)))
}
