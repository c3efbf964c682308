package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var paths = Paths{
	Read:   []string{"/v1/chat/completions", "/v1/completions", "/generate", "/v1/models", "/health"},
	Passed: []string{"/models", "/v1/responses", "/v1/embeddings", "/v1/responses/{id}", "/v1/responses/{id}/cancel"},
}

func TestThePathThatAClientMayHaveMeant(t *testing.T) {
	for _, c := range []struct {
		path     string
		near     string
		readOnly string // the same where no path is passed on
	}{
		{"/chat/completions", "/v1/chat/completions", "/v1/chat/completions"},
		{"/completions?stream=true", "/v1/completions", "/v1/completions"},
		{"/v1/chat/completions/", "/v1/chat/completions", "/v1/chat/completions"},
		{"//v1//chat/completions", "/v1/chat/completions", "/v1/chat/completions"},
		{"/V1/Chat/Completions", "/v1/chat/completions", "/v1/chat/completions"},
		{"/v1/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions"},
		{"/api/openai/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions"},
		{"/openai/completions", "/v1/completions", "/v1/completions"},
		{"/v1/chat/completion", "/v1/chat/completions", "/v1/chat/completions"},
		{"/chat/completion", "/v1/chat/completions", "/v1/chat/completions"},
		{"/v1/chat/competions", "/v1/chat/completions", "/v1/chat/completions"},
		{"/v1/generate", "/generate", "/generate"},
		{"/v1/model", "/v1/models", "/v1/models"},
		{"/models", "", "/v1/models"},
		{"/embeddings", "/v1/embeddings", ""},
		{"/v1/embedding", "/v1/embeddings", ""},
		{"/responses/r1/cancel", "/v1/responses/r1/cancel", ""},
		{"/v1/embeddings", "", ""},
		{"/v1/responses/r1", "", ""},
		{"/v1/responses/r1/other", "", ""},
		{"/anything", "", ""},
		{"/", "", ""},
		{"", "", ""},
		{"*", "", ""},
		{"/sleep", "", ""},
		{"/a/b/c/d/e/f/v1/completions", "", ""},
		{"/" + strings.Repeat("x", 1<<20), "", ""},
	} {
		require.Equal(t, c.near, paths.Nearest(c.path, true), c.path)
		require.Equal(t, c.readOnly, paths.Nearest(c.path, false), c.path)
	}
}

func FuzzNearest(f *testing.F) {
	f.Add("/chat/completions")
	f.Add("//v1/responses/{id}//")
	f.Fuzz(func(t *testing.T, path string) {
		for _, passed := range []bool{false, true} {
			near := paths.Nearest(path, passed)
			require.True(t, near == "" || paths.Serves(near), near)
			require.False(t, near != "" && near == path, near)
		}
	})
}
