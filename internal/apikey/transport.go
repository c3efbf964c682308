package apikey

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// tellEvery is how often the log says that engines refuse: they do with each request.
const tellEvery = time.Minute

// Transport shows engines the key of a file, and tells where one refuses it. Its fields are
// read-only once it is used. Safe for concurrent use.
type Transport struct {
	Key     *File  // nil: none is shown
	Setting string // what names the file, for the log
	// Trusts reports whether the engine at a host:port may be shown the key. Default: each
	// may.
	Trusts func(host string) bool
	Next   http.RoundTripper
	Log    *slog.Logger

	mu   sync.Mutex           // guards told
	told map[string]time.Time // when it was last, by what
}

// Around returns a Transport like t with another one within.
func (t *Transport) Around(next http.RoundTripper) http.RoundTripper {
	return &Transport{Key: t.Key, Trusts: t.Trusts, Setting: t.Setting, Next: next, Log: t.Log}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	shown := t.Key != nil && (t.Trusts == nil || t.Trusts(r.URL.Host))
	if shown {
		r = r.Clone(r.Context()) // a request is its caller's
		t.Key.Show(r)
		if err := t.Key.Err(); err != nil {
			t.tell("file", "an engine is shown the key that was read last", slog.Any(logkey.Err, err))
		}
	}
	res, err := t.Next.RoundTrip(r)
	if err == nil && Refused(res.StatusCode) {
		at := []any{slog.String(logkey.Endpoint, r.URL.Host), slog.String(logkey.Path, r.URL.Path), slog.Int(logkey.Status, res.StatusCode)}
		switch {
		case t.Key == nil:
			t.tell("none", "an engine asks for an API key, and "+t.Setting+" names none", at...)
		case !shown:
			t.tell("kept", "an engine asks for an API key, and is not shown that of "+t.Setting+": it is not known who has registered the worker", at...)
		default:
			t.tell("wrong", "an engine refuses the API key", append(at, slog.String(logkey.APIKeyFile, t.Key.Path()))...)
		}
	}
	return res, err
}

// CloseIdleConnections lets a client close those of the Transport within.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.Next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Refused reports whether a status says that the key is missing or wrong.
func Refused(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// tell warns, of one matter once in a while.
func (t *Transport) tell(matter, what string, attrs ...any) {
	t.mu.Lock()
	now := time.Now()
	again := now.Sub(t.told[matter]) >= tellEvery
	if again {
		if t.told == nil {
			t.told = make(map[string]time.Time)
		}
		t.told[matter] = now
	}
	t.mu.Unlock()
	if again {
		t.Log.Warn(what, attrs...)
	}
}
