package openai_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/seed-60ae5743/baton/internal/openai"
)

func TestFindUsage(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Usage
		ok   bool
	}{
		"an answer":              {`{"id":"1","usage":{"prompt_tokens":142,"total_tokens":144,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":128}}}`, Usage{142, 2, true, 128, true}, true},
		"no details":             {`{"usage": {"prompt_tokens":142,"completion_tokens":2,"prompt_tokens_details":null}}`, Usage{Prompt: 142, Output: 2, HasOutput: true}, true},
		"the last event":         {roleEvent + usageEvent + doneEvent, Usage{Prompt: 142}, true},
		"a count in each event":  {usageEvent + strings.Replace(usageEvent, "142", "143", 1), Usage{Prompt: 143}, true},
		"generate":               {`{"text":"a","meta_info":{"prompt_tokens":9,"completion_tokens":4,"cached_tokens":8}}`, Usage{9, 4, true, 8, true}, true},
		"null":                   {`{"usage":null}`, Usage{}, false},
		"none":                   {tokenEvent, Usage{}, false},
		"it breaks off":          {`{"usage":{"prompt_tokens":142,`, Usage{}, false},
		"in a text":              {`{"text":"{\"usage\":{\"prompt_tokens\":1}}"}`, Usage{}, false},
		"a key that is a value":  {`{"a":"usage"}`, Usage{}, false},
		"negative, or no number": {`{"usage":{"prompt_tokens":-1,"completion_tokens":"2"}}`, Usage{}, false},
		"nothing":                {"", Usage{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := FindUsage([]byte(c.text))
			require.Equal(t, c.ok, ok)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzFindUsage(f *testing.F) {
	f.Add([]byte(usageEvent))
	f.Add([]byte(`"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if u, ok := FindUsage(b); ok {
			require.GreaterOrEqual(t, min(u.Prompt, u.Output, u.Cached), int64(0))
		}
	})
}
