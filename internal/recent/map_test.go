package recent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

var start = time.Unix(1_800_000_000, 0)

// The verbs of testdata; at counts from the start:
//
//	map [keep=10s] [most=3]   begins anew
//	put k=v at=1s
//	get k at=1s
//	delete k
//	drop-oldest
//	expire at=1s
//
// Each answers with what it returns; all but get also with the entries that take memory, from
// the oldest to the newest.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var m Map[string, string]
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var k, v string
			now := start
			if d.Cmd == "map" {
				m = Map[string, string]{}
			}
			for _, arg := range d.CmdArgs {
				var err error
				switch {
				case arg.Key == "at":
					var after time.Duration
					after, err = time.ParseDuration(arg.Vals[0])
					now = start.Add(after)
				case d.Cmd == "map" && arg.Key == "keep":
					m.Keep, err = time.ParseDuration(arg.Vals[0])
				case d.Cmd == "map":
					_, err = fmt.Sscan(arg.Vals[0], &m.Most)
				default:
					k, v = arg.Key, strings.Join(arg.Vals, "")
				}
				require.NoError(t, err, d.Pos)
			}
			switch d.Cmd {
			case "map":
				return ""
			case "put":
				return fmt.Sprintln(m.Put(k, v, now), listed(&m))
			case "get":
				v, held := m.Get(k, now)
				return strings.TrimSpace(fmt.Sprintln(held, v)) + "\n"
			case "expire":
				m.Expire(now)
				return fmt.Sprintln(listed(&m))
			case "delete":
				return fmt.Sprintln(m.Delete(k), listed(&m))
			case "drop-oldest":
				k, v, ok := m.DropOldest()
				return fmt.Sprintln(ok, k+"="+v, listed(&m))
			}
			require.Fail(t, "unknown verb", d.Cmd)
			return ""
		})
	})
}

// listed returns the entries in order, and a fault if the map has others.
func listed[K comparable, V any](m *Map[K, V]) (all []string) {
	for at := m.order.Front(); at != nil; at = at.Next() {
		e := m.of(at)
		if m.entries[e.key] != at {
			return append(all, "a wrong entry")
		}
		all = append(all, fmt.Sprintf("%v=%v", e.key, e.value))
	}
	if len(all) != len(m.entries) {
		return append(all, "too many entries")
	}
	return all
}

// slow does what Map says, in the plainest way.
type slow struct {
	keep time.Duration
	most int
	all  []slowEntry
}

type slowEntry struct {
	k, v int
	put  time.Time
}

func (s *slow) at(k int) int {
	return slices.IndexFunc(s.all, func(e slowEntry) bool { return e.k == k })
}

func (s *slow) overdue(e slowEntry, now time.Time) bool {
	return s.keep != 0 && e.put.Add(s.keep).Before(now)
}

func (s *slow) expire(now time.Time) {
	for len(s.all) > 0 && s.overdue(s.all[0], now) {
		s.all = s.all[1:]
	}
}

func (s *slow) put(k, v int, now time.Time) bool {
	s.expire(now)
	if !s.delete(k) && s.most != 0 && len(s.all) == s.most {
		return false
	}
	s.all = append(s.all, slowEntry{k, v, now})
	return true
}

func (s *slow) get(k int, now time.Time) (int, bool) {
	i := s.at(k)
	if i < 0 || s.overdue(s.all[i], now) {
		return 0, false
	}
	return s.all[i].v, true
}

func (s *slow) delete(k int) bool {
	i := s.at(k)
	if i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
	return i >= 0
}

func (s *slow) listed() (all []string) {
	for _, e := range s.all {
		all = append(all, fmt.Sprintf("%v=%v", e.k, e.v))
	}
	return all
}

// Random calls, now and then at a time that is a little earlier, do to a Map what they do
// to its slow twin.
func TestAMapDoesWhatAPlainListDoes(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := slow{keep: time.Duration(r.IntN(4)) * 8 * time.Second, most: r.IntN(3) * 4}
		m := Map[int, int]{Keep: s.keep, Most: s.most}
		now := start
		var story []string
		for range 300 {
			now = now.Add(time.Duration(r.IntN(8)-2) * time.Second)
			k, v := r.IntN(12), r.IntN(1000)
			var got, want []any
			did := "get"
			switch r.IntN(9) {
			case 0, 1, 2:
				did = "put"
				got, want = []any{m.Put(k, v, now)}, []any{s.put(k, v, now)}
			case 3:
				did = "delete"
				got, want = []any{m.Delete(k)}, []any{s.delete(k)}
			case 4:
				did = "expire"
				m.Expire(now)
				s.expire(now)
			case 5:
				did = "drop"
				k, v, ok := m.DropOldest()
				got = []any{k, v, ok}
				want = []any{0, 0, false}
				if len(s.all) > 0 {
					want = []any{s.all[0].k, s.all[0].v, true}
					s.all = s.all[1:]
				}
			default:
				v, held := m.Get(k, now)
				wv, wheld := s.get(k, now)
				got, want = []any{v, held}, []any{wv, wheld}
			}
			story = append(story, fmt.Sprintf("%s %d=%d at %v", did, k, v, now.Sub(start)))
			require.Equal(t, want, got, "seed %d: %v", seed, story)
			require.Equal(t, s.listed(), listed(&m), "seed %d: %v", seed, story)
			require.Equal(t, len(s.all), m.Len())
		}
	}
}

func TestAKeyThatIsHeldIsPutWithoutAllocating(t *testing.T) {
	var m Map[int, int]
	m.Put(1, 1, start)
	m.Put(2, 2, start)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		m.Put(1, 3, start)
		m.Put(2, 4, start)
		m.Get(1, start)
	}))
}
