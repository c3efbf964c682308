package leg

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/wire"
)

// TestTheErrorThatEndsAStreamIsAnEventOfItsOwn, wherever the stream is cut.
func TestTheErrorThatEndsAStreamIsAnEventOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses"} {
		alone := string(new(Answer).cutWith(&failDeadline, path))
		for pieces, whole := range map[string]int{
			"": 0, "data: 1\n\n": 1, "data: 1\r\n\r\n": 1, "data: 1\n|\n": 1,
			"data: 1\n": 1, "event: a\n|data: 1\n": 1, "data: 1": 1, "data: 1\n\n|event: a\n": 2, "data: 1\n\n|event: a\ndata: 2\r\n": 2,
		} {
			var a Answer
			stream := ""
			for _, p := range strings.Split(pieces, "|") {
				stream += string(a.pass(piece{of: wire.ResponseBody, body: []byte(p)}).Body)
			}
			stream += string(a.cutWith(&failDeadline, path))
			var events []string
			for _, e := range strings.Split(strings.ReplaceAll(stream, "\r\n", "\n"), "\n\n") {
				if strings.Trim(e, "\n") != "" {
					events = append(events, strings.Trim(e, "\n"))
				}
			}
			require.Len(t, events, whole+1, "%q", stream)
			require.Equal(t, strings.TrimSuffix(alone, "\n\n"), events[whole], "%q", stream)
		}
	}
}
