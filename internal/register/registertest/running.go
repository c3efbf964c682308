package registertest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/engine"
)

// T is what this package needs of a *testing.T.
type T interface {
	Helper()
	Cleanup(f func())
	Fatal(args ...any)
}

// Running is something with a Run that was started.
type Running struct {
	Stop context.CancelFunc // ends the context of Run
	done chan error
}

// Start runs run until the test ends.
func Start(t T, run func(context.Context) error) *Running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{cancel, make(chan error, 1)}
	go func() {
		r.done <- run(ctx)
		close(r.done)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// Wait returns what run returned. It must be called from the test's goroutine, once.
func (r *Running) Wait(t T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
		return nil
	}
}

// Quick is a configuration for tests: a connection that breaks tells more than
// frequent questions, so that intervals may stay long.
func Quick(url string) register.Config {
	return register.Config{
		Engine: engine.Config{URL: url, HealthTimeout: 25 * time.Second}, HealthInterval: 20 * time.Millisecond, UnhealthyAfter: 3,
		Refresh: 50 * time.Millisecond, DrainSettle: 10 * time.Millisecond, DrainTimeout: 2 * time.Minute,
	}
}

// StartRunner runs a register until the test ends.
func StartRunner(t T, c register.Config, to register.Registry) (*register.Runner, *Running) {
	t.Helper()
	r, err := register.New(c, to)
	if err != nil {
		t.Fatal(err)
	}
	run := Start(t, r.Run)
	t.Cleanup(r.Hurry) // before the wait of Start's own clean-up
	return r, run
}

// Page asks for one of the operators' pages.
func Page(r *register.Runner, path string) (code int, body string) {
	rec := httptest.NewRecorder()
	r.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}
