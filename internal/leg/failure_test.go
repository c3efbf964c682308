package leg

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// TestEveryFailureIsARowOfTheTable checks that ARCHITECTURE.md's failure table and failure.go
// agree.
func TestEveryFailureIsARowOfTheTable(t *testing.T) {
	doc, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(doc), "## Failure table")
	require.True(t, found)
	listed := make(map[string]string)
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.Contains(cells[1], "`") {
			continue
		}
		for code := range strings.FieldsSeq(strings.ReplaceAll(strings.ReplaceAll(cells[1], "`", " "), "↻", " ")) {
			listed[code] = strings.TrimSpace(cells[2])
			require.NotEmpty(t, strings.TrimSpace(cells[5]), "%s names a test", code)
		}
		retry := strings.Contains(cells[1], "↻")
		for _, f := range failures {
			if strings.Contains(cells[1], "`"+f.Code+"`") {
				require.Equal(t, f.RetryAfter > 0, retry, "%s: retry-after", f.Code)
			}
		}
	}
	for _, f := range failures {
		status, ok := listed[f.Code]
		require.True(t, ok, "%s is missing in ARCHITECTURE.md", f.Code)
		if !strings.Contains(status, "engine") {
			require.Contains(t, status, strconv.Itoa(f.Status), f.Code)
		}
		delete(listed, f.Code)
	}
	for _, k := range []openai.Kind{openai.NotJSON, openai.MissingField, openai.WrongType, openai.DuplicateField, openai.ForbiddenField} {
		require.Equal(t, "400", listed[k.String()], k.String())
		delete(listed, k.String())
	}
	require.Empty(t, listed, "rows of ARCHITECTURE.md that no code has")
}

func TestEveryFailureHasAnOpenAIShapedBody(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range failures {
		require.False(t, seen[f.Code], "%s is there twice", f.Code)
		seen[f.Code] = true
		im := ImmediateOf(f, "", false)
		var body struct {
			Error struct {
				Message, Type, Code string
				Param               *string
			}
		}
		require.NoError(t, json.Unmarshal(im.Body, &body), f.Code)
		require.Equal(t, f.Code, body.Error.Code)
		require.NotEmpty(t, body.Error.Message)
		require.NotEmpty(t, body.Error.Type)
		require.GreaterOrEqual(t, im.Status, 400)
	}
}

// TestARefusalThatStaysIsNotAskedForAgain: clients' libraries send a request again after any 5xx.
func TestARefusalThatStaysIsNotAskedForAgain(t *testing.T) {
	for _, f := range failures {
		im := ImmediateOf(f, "", false)
		stays := slices.Contains(im.Headers, wire.Header{Name: "x-should-retry", Value: "false"})
		require.Equal(t, f.Status == 501 || f.Header.Name == "x-should-retry", stays, f.Code)
		require.False(t, stays && f.RetryAfter > 0, "%s says both", f.Code)
	}
}
