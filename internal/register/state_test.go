package register

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestEveryMetricIsDocumented: docs/register.md lists each, and no other.
func TestEveryMetricIsDocumented(t *testing.T) {
	r, err := New(Config{Engine: engine.Config{URL: "http://127.0.0.1:1"}}, unasked{})
	require.NoError(t, err)
	metrics := httptest.NewRecorder()
	r.Handler().ServeHTTP(metrics, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var want, got []string
	for line := range strings.Lines(metrics.Body.String()) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			want = append(want, name)
		}
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "register.md"))
	require.NoError(t, err)
	for line := range strings.Lines(string(doc)) {
		if rest, ok := strings.CutPrefix(line, "| `"+metricPrefix); ok {
			name, _, _ := strings.Cut(rest, "`")
			name, _, _ = strings.Cut(name, "{")
			got = append(got, metricPrefix+name)
		}
	}
	require.ElementsMatch(t, want, got)
	for _, c := range causes {
		require.Contains(t, string(doc), "`"+string(c)+"`")
	}
}

func TestStateIsWrittenInOneStyle(t *testing.T) {
	w := worker.Worker{
		Role: worker.Prefill, Bootstrap: worker.Bootstrap{Host: "b", Port: 1},
		KVEvents: worker.KVEvents{Host: "k", Port: 2, ReplayPort: 3, Topic: "t"},
	}
	text, err := json.Marshal(recordOf(w))
	require.NoError(t, err)
	require.Contains(t, string(text), `"bootstrap":{"host":"b","port":1},"kv_events":{"host":"k","port":2,"replay_port":3,"topic":"t"}`)
	text, err = json.Marshal(recordOf(worker.Worker{}))
	require.NoError(t, err)
	require.NotContains(t, string(text), "bootstrap")
	require.NotContains(t, string(text), "kv_events")
}
