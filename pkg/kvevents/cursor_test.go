package kvevents

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// The verbs of testdata/cursor. An event is written id@publisher, where id may be a
// range. A ! at the end says that messages of the publisher were missed.
//
//	cursor
//	event 0-3@A 9@B!
//	cleared
//	foreign A
//	restart
//	abandon
func TestCursorScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/cursor", func(t *testing.T, path string) {
		var c Cursor
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "cursor":
				c = Cursor{}
			case "cleared":
				c.Cleared()
			case "restart": // of the process: later verbs are for the next one
				publisher, p, seen := c.Position()
				retired := c.Retired()
				if c = (Cursor{}); seen {
					c.Resume(publisher, p, retired)
				}
			case "abandon":
				fmt.Fprintf(&out, "%v\n", c.Abandon())
			case "foreign":
				fmt.Fprintf(&out, "%v\n", c.Foreign(uint64(d.CmdArgs[0].Key[0])))
			case "event":
				for _, a := range d.CmdArgs {
					cursorEvents(t, &c, a.Key, &out)
				}
			default:
				t.Fatalf("unknown verb %q", d.Cmd)
			}
			last, seen := c.Last()
			fmt.Fprintf(&out, "last=%d", last)
			if !seen {
				out.WriteString(" (none)")
			}
			if c.Degraded() {
				out.WriteString(" degraded")
			}
			return out.String() + "\n"
		})
	})
}

func cursorEvents(t *testing.T, c *Cursor, a string, out *strings.Builder) {
	a, missed := strings.CutSuffix(a, "!")
	ids, publisher, ok := strings.Cut(a, "@")
	require.True(t, ok && len(publisher) == 1, a)
	from, to, ranged := strings.Cut(ids, "-")
	if !ranged {
		to = from
	}
	lo, err := strconv.ParseUint(from, 10, 64)
	require.NoError(t, err)
	hi, err := strconv.ParseUint(to, 10, 64)
	require.NoError(t, err)
	for id := lo; id <= hi; id++ {
		v, why := c.Judge(uint64(publisher[0]), !missed, id)
		text := verdict(v)
		if !v.Apply {
			text = why.String()
		}
		fmt.Fprintf(out, "%d@%s: %s\n", id, publisher, text)
	}
}

func TestBeforeAnythingWasSeenEveryPublisherIsForeign(t *testing.T) {
	var c Cursor
	require.True(t, c.Foreign(0), "an id like any other")
}
