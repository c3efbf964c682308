package apikey

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// shown returns the header that a request gets.
func shown(f *File) string {
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://e/", nil)
	f.Show(r)
	return r.Header.Get("Authorization")
}

// TestAKeyIsReadAgainForEachRequest, and where that fails, what was read last is shown.
func TestAKeyIsReadAgainForEachRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write(t, path, "first\n")
	f, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, "Bearer first", shown(f))
	write(t, path, "  second \r\n")
	require.Equal(t, "Bearer second", shown(f))
	require.NoError(t, os.Remove(path))
	require.Equal(t, "Bearer second", shown(f))
	require.ErrorIs(t, f.Err(), os.ErrNotExist)
	write(t, path, "third")
	require.Equal(t, "Bearer third", shown(f))
	require.NoError(t, f.Err())

	none, err := Open("")
	require.NoError(t, err)
	require.Empty(t, shown(none))
	require.NoError(t, none.Err())
	require.Empty(t, none.Path())
}

func TestWhatIsNoKeyIsSaidAndNotShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	_, err := Open(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	for text, why := range map[string]string{
		"": "is empty", " \n": "is empty", strings.Repeat("k", 5000): "longer than 4096 bytes",
		"sec ret": "a blank", "secret\nX-Header: 1": "a line break", "secrét": "not ASCII", "secret\x00": "not ASCII",
	} {
		write(t, path, text)
		_, err := Open(path)
		require.ErrorContains(t, err, why, "%q", text)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "sec")
	}
}

// engine is a transport that answers with a status and remembers the header.
type engine struct {
	status int
	got    []string
}

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.got = append(e.got, r.Header.Get("Authorization"))
	return &http.Response{StatusCode: e.status, Body: http.NoBody}, nil
}

// TestARefusalIsSaidOnceInAWhile: without a key, with a wrong one, and where the file is
// gone. The key is in none of it.
func TestARefusalIsSaidOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "key")
		write(t, path, "secret")
		f, err := Open(path)
		require.NoError(t, err)
		var said bytes.Buffer
		e := &engine{status: http.StatusUnauthorized}
		base := &Transport{Setting: "engines.api_key_file", Log: slog.New(slog.NewTextHandler(&said, nil))}
		without := base.Around(e)
		base.Key = f
		with := base.Around(e)
		ask := func(rt http.RoundTripper) {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://10.0.0.1:80/tokenize", nil)
			res, err := rt.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Empty(t, r.Header, "the caller's request is not changed")
		}
		for range 3 {
			ask(without)
			ask(with)
		}
		require.Equal(t, []string{"", "Bearer secret"}, e.got[:2])
		require.Equal(t, 1, strings.Count(said.String(), "an engine asks for an API key, and engines.api_key_file names none"))
		require.Equal(t, 1, strings.Count(said.String(), "an engine refuses the API key"))
		require.Contains(t, said.String(), "endpoint=10.0.0.1:80 path=/tokenize status=401 engines.api_key_file="+path)

		e.status = http.StatusOK
		require.NoError(t, os.Remove(path))
		<-time.After(tellEvery)
		ask(with)
		require.Contains(t, said.String(), "an engine is shown the key that was read last")
		require.NotContains(t, said.String(), "secret")

		e.status = http.StatusForbidden
		ask(with)
		require.Equal(t, 2, strings.Count(said.String(), "an engine refuses the API key"))

		base.Trusts = func(host string) bool { return host != "10.0.0.1:80" }
		ask(base.Around(e))
		require.Empty(t, e.got[len(e.got)-1])
		require.Contains(t, said.String(), "an engine asks for an API key, and is not shown that of engines.api_key_file: it is not known who has registered the worker")
		base.Trusts = func(host string) bool { return host == "10.0.0.1:80" }
		ask(base.Around(e))
		require.Equal(t, "Bearer secret", e.got[len(e.got)-1])
	})
}
