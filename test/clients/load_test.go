//go:build clients

package clients

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/real"
	"github.com/seed-60ae5743/baton/test/stack"
)

// load is a tool that sends load and writes a report of its own.
type load struct {
	name, site, dist string // in the report; where it is installed, as what
	path             string
	command          func(url, dir string) []string
	report           func(t *testing.T, dir string) (served, failed int)
}

// loads are the tools. Their runs are short: what is asked for is whether they work, not how fast.
func loads() []load {
	tokenizer := filepath.Join(realHome, "models", model)
	var all []load
	for _, api := range []struct{ path, backend string }{
		{"/v1/chat/completions", "openai-chat"}, {"/v1/completions", "openai"},
	} {
		all = append(all, load{
			name: "vllm bench serve", site: filepath.Join(realHome, "vllm"), dist: "vllm", path: api.path, report: benchReport,
			command: func(url, dir string) []string {
				return []string{
					filepath.Join(realHome, "vllm", "bin", "vllm"), "bench", "serve", "--backend", api.backend, "--base-url", url, "--endpoint", api.path,
					"--model", model, "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "8",
					"--num-prompts", "30", "--max-concurrency", "5", "--disable-tqdm", "--save-result", "--result-dir", dir, "--result-filename", "report.json",
				}
			},
		}, load{
			name: "guidellm", site: filepath.Join(home, "load"), dist: "guidellm", path: api.path, report: guideReport,
			command: func(url, dir string) []string {
				return []string{
					filepath.Join(home, "load", "bin", "guidellm"), "run", "--disable-progress",
					"--backend", "kind=openai_http,target=" + url + ",model=" + model + ",request_format=" + api.path,
					"--profile", "kind=concurrent,streams=5", "--constraint", "kind=max_requests,count=30",
					"--tokenizer", "kind=huggingface_auto,model=" + tokenizer, "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=8",
					"--output", "kind=json,path=" + filepath.Join(dir, "report.json"),
				}
			},
		})
	}
	return append(all, load{
		name: "locust", site: filepath.Join(home, "load"), dist: "locust", path: "/v1/chat/completions", report: locustReport,
		command: func(url, dir string) []string {
			return []string{
				filepath.Join(home, "load", "bin", "locust"), "--headless", "--locustfile", filepath.Join(root, "test", "clients", "python", "locustfile.py"),
				"--host", url, "--users", "5", "--spawn-rate", "5", "--run-time", "4s", "--stop-timeout", "20", "--json-file", filepath.Join(dir, "report"),
			}
		},
	})
}

// TestLoad: no request of a load tool fails, by its own report, and Baton has none that failed.
func TestLoad(t *testing.T) {
	onEach(t, func(t *testing.T, col column) {
		s := newSite(t, col)
		for _, l := range loads() {
			t.Run(l.name+l.path, func(t *testing.T) { s.bear(t, col, l) })
		}
	})
}

func (s *site) bear(t *testing.T, col column, l load) {
	defer func(before *testing.T) { s.t = before }(s.t)
	s.t = t
	failures, prefills := s.failures(), s.prefills()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	command := l.command(s.envoy.URL, dir)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	stack.EndWithParent(cmd, syscall.SIGKILL)
	cmd.Env = append(append(os.Environ(), offline...), "MODEL="+model, "VLLM_LOGGING_LEVEL=ERROR")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	served, failed := l.report(t, dir)
	t.Logf("%s%s: %d requests served, %d failed", l.name, l.path, served, failed)
	require.Zero(t, failed, "%s", out)
	require.GreaterOrEqual(t, served, 20, "%s", out)
	s.settle()
	require.Equal(t, failures, s.failures(), "requests that Baton did not answer well")
	if col.apart {
		require.GreaterOrEqual(t, s.prefills()-prefills, uint64(served))
	}
	seen.loaded(row{l.name, distVersion(t, l), l.path}, col)
}

// distVersion is the version of the package that is installed.
func distVersion(t *testing.T, l load) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(real.SitePackages(l.site), l.dist+"-*.dist-info"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), l.dist+"-"), ".dist-info")
}

func readReport(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into), "%.300s", b)
}

func benchReport(t *testing.T, dir string) (served, failed int) {
	var r struct {
		Completed, Failed int
		Tokens            int `json:"total_output_tokens"`
	}
	readReport(t, filepath.Join(dir, "report.json"), &r)
	require.Positive(t, r.Tokens)
	return r.Completed, r.Failed
}

func guideReport(t *testing.T, dir string) (served, failed int) {
	var r struct {
		Benchmarks []struct {
			Metrics struct {
				Totals struct{ Successful, Errored, Incomplete int } `json:"request_totals"`
			}
		}
	}
	readReport(t, filepath.Join(dir, "report.json"), &r)
	require.Len(t, r.Benchmarks, 1)
	totals := r.Benchmarks[0].Metrics.Totals
	return totals.Successful, totals.Errored + totals.Incomplete
}

func locustReport(t *testing.T, dir string) (served, failed int) {
	var r []struct {
		Name     string
		Requests int `json:"num_requests"`
		Failures int `json:"num_failures"`
	}
	readReport(t, filepath.Join(dir, "report.json"), &r)
	require.NotEmpty(t, r)
	for _, kind := range r {
		served, failed = served+kind.Requests-kind.Failures, failed+kind.Failures
	}
	return served, failed
}

// failures counts the requests that failed, or were refused for want of something. The tools ask for pages,
// too, that Baton or the engine does not have, such as /metrics and /detokenize, and go on without.
func (s *site) failures() float64 {
	const requests = "baton_requests_total"
	return s.count(requests, `outcome="failed"`) + s.count(requests, `outcome="cut"`) +
		s.count(requests, `outcome="refused"`) - s.count(requests, `code="unknown_path"`)
}
