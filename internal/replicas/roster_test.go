package replicas

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var begin = time.Unix(1000, 0)

func after(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }

func only(t *testing.T, r *Roster) Mate {
	t.Helper()
	all := r.Mates()
	require.Len(t, all, 1)
	return all[0]
}

func TestAReplicaIsHeardFadesAndComesBack(t *testing.T) {
	r := NewRoster("self:1", begin)
	r.List([]string{"self:1", "b:1"}, begin)
	require.Equal(t, Unmet, only(t, r).Hearing)
	do, ok := r.Opened("b:1", "b", 7, after(1))
	require.True(t, ok)
	require.Empty(t, do)
	known, back := r.Took("b:1", 7, true, false, after(1))
	require.True(t, known)
	require.False(t, back)
	require.Equal(t, Sharing, only(t, r).Hearing)
	require.Empty(t, r.Tick(after(2.9)))

	require.Equal(t, []Action{{Fade, "b:1", 7, 0, true}}, r.Tick(after(3)), "its stream is open, and nothing comes")
	require.Equal(t, []Action{{Fade, "b:1", 7, 7 * time.Second, false}}, r.Tick(after(10)))
	require.Equal(t, Silent, only(t, r).Hearing)
	known, back = r.Took("b:1", 7, false, false, after(11))
	require.True(t, known)
	require.True(t, back)
	require.Empty(t, r.Tick(after(12)))

	require.NotEmpty(t, r.Tick(after(14)))
	_, ok = r.Opened("b:1", "b", 7, after(15)) // it has given its old connection up
	require.True(t, ok)
	_, back = r.Took("b:1", 7, true, false, after(15))
	require.True(t, back)
}

func TestAReplicaIsDeadOnceItsAddressRefuses(t *testing.T) {
	r := NewRoster("self:1", begin)
	_, _ = r.Opened("b:1", "b", 7, begin)
	require.Empty(t, r.Closed("b:1", 7, false, begin))
	check := []Action{{Do: Check, Address: "b:1", Life: 7}}
	require.Empty(t, r.Tick(after(0.4)), "it may come back at once")
	require.Equal(t, check, r.Tick(after(0.5)))
	require.Empty(t, r.Checked("b:1", 7, Refused, after(0.6)))
	require.Equal(t, check, r.Tick(after(1)))
	require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 7}}, r.Checked("b:1", 7, Refused, after(1.1)), "within three seconds")
	require.Equal(t, Away, only(t, r).Hearing)
	require.Empty(t, r.Tick(after(20)))

	do, ok := r.Opened("b:1", "b", 7, after(21))
	require.True(t, ok, "it was cut off, and is the same process")
	require.Empty(t, do)
}

func TestAReplicaThatMayLiveIsDoubtedAlone(t *testing.T) {
	for _, found := range []Found{Nothing, Same} {
		r := NewRoster("self:1", begin)
		r.List([]string{"b:1"}, begin)
		_, _ = r.Opened("b:1", "b", 7, begin)
		_ = r.Closed("b:1", 7, false, begin)
		for s := range 60 {
			require.NotContains(t, fmt.Sprint(r.Tick(after(float64(s)))), fmt.Sprint(Action{Do: Forget, Address: "b:1", Life: 7}))
			require.Empty(t, r.Checked("b:1", 7, Refused, after(float64(s))))
			require.Empty(t, r.Checked("b:1", 7, found, after(float64(s))))
		}
		require.Equal(t, Silent, only(t, r).Hearing)
		r.List(nil, after(61)) // its pod is gone
		require.Equal(t, []Action{{Do: Forget, Address: "b:1", Life: 7}}, r.Tick(after(61)))
	}
}

func TestOneLifeOfAnAddressCounts(t *testing.T) {
	r := NewRoster("self:1", begin)
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
	r := NewRoster("self:1", begin)
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
	r := NewRoster("self:1", begin)
	_, _ = r.Opened("b:1", "b", 7, begin)
	_, _ = r.Took("b:1", 7, true, true, after(1))
	_, _ = r.Took("b:1", 7, false, true, after(2))
	require.Equal(t, after(1), only(t, r).Differs)
	_, _ = r.Took("b:1", 7, true, false, after(3))
	require.Zero(t, only(t, r).Differs)
}

func TestAVersionThatDoesNotShareIsSaid(t *testing.T) {
	r := NewRoster("self:1", begin)
	r.List([]string{"b:1"}, begin)
	r.Sent("b:1", "unknown", true, after(1))
	require.Equal(t, Unshared, only(t, r).Hearing)
	require.True(t, r.Ready())
	_, _ = r.Opened("b:1", "b", 7, after(2)) // it was updated
	require.Equal(t, Sharing, only(t, r).Hearing)
}

func TestReplicasAreBoundedAndForgotten(t *testing.T) {
	r := NewRoster("self:1", begin)
	for i := range 1000 {
		r.Meet(fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255), begin)
	}
	require.Len(t, r.Mates(), MostMates)
	_, ok := r.Opened("one more:1", "", 7, begin)
	require.False(t, ok)
	require.Empty(t, r.Tick(after(601)))
	require.Empty(t, r.Mates())
	r.Meet("other name of self:1", begin)
	r.Self("other name of self:1")
	r.List([]string{"other name of self:1"}, begin)
	require.Empty(t, r.Mates())
}
