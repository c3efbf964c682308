//go:build real

package real

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/pagepart"
	"github.com/seed-60ae5743/baton/test/stack"
)

// wish is a request of testdata/alone, and what of its answer may differ apart.
type wish struct {
	line          int
	name, path    string
	header        http.Header
	body          string
	differs       []string // members of the answer, as facts name them without an index
	may           bool     // or do not differ
	reason        string
	alone, apart  *reply
	by            string   // who has served it of the pair
	unlike        []string // what differs
	unlikeMembers []string
}

// wishes reads the requests of a file. Each is a paragraph of lines: its name; its path, behind
// which may be headers as name=value; its body; and where the answers differ, "differs in
// MEMBERS: REASON", the members separated by commas, or "may differ in" if that depends on which
// half is the first to answer. A body that is a text of Go is what that
// text means. In a body, $words(N) is a text of N words. Lines that begin with # are comments.
func wishes(text string) ([]*wish, error) {
	var out []*wish
	at := 0
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		first := at + 1
		at += strings.Count(paragraph, "\n") + 2
		var lines []string
		for line := range strings.SplitSeq(strings.Trim(paragraph, "\n"), "\n") {
			if !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) == 0 || len(lines) == 1 && lines[0] == "" {
			continue
		}
		w, err := wishOf(lines)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", first, err)
		}
		w.line = first
		out = append(out, w)
	}
	return out, nil
}

func wishOf(lines []string) (*wish, error) {
	if len(lines) < 3 || len(lines) > 4 {
		return nil, fmt.Errorf("%d lines, want name, path, body and perhaps what differs", len(lines))
	}
	where := strings.Fields(lines[1])
	w := &wish{name: lines[0], path: where[0], header: http.Header{"Content-Type": {"application/json"}}, body: lines[2]}
	for _, h := range where[1:] {
		name, value, _ := strings.Cut(h, "=")
		w.header.Set(name, value)
	}
	if strings.HasPrefix(w.body, `"`) {
		var err error
		w.body, err = strconv.Unquote(w.body)
		if err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
	}
	w.body = someWords.ReplaceAllStringFunc(w.body, func(s string) string {
		n, _ := strconv.Atoi(strings.Trim(s, "$words()"))
		return strings.TrimSpace(words(1, n))
	})
	if len(lines) == 4 {
		said, may := strings.CutPrefix(lines[3], "may differ in ")
		said, must := strings.CutPrefix(said, "differs in ")
		members, reason, found := strings.Cut(said, ": ")
		if !found || may == must || reason == "" {
			return nil, fmt.Errorf("%q, want: differs in MEMBERS: REASON", lines[3])
		}
		w.differs, w.may, w.reason = strings.Split(members, ", "), may, reason
	}
	return w, nil
}

var someWords = regexp.MustCompile(`\$words\(\d+\)`)

// answerTime is how long an answer is waited for. One that does not come is an answer, too.
const answerTime = time.Minute

// send sends the request and reads its answer.
func (w *wish) send(ctx context.Context, url string) *reply {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+w.path, strings.NewReader(w.body))
	if err != nil {
		return faulty(err.Error())
	}
	req.Header = w.header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return faulty(fault(ctx, err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return faulty(fault(ctx, err))
	}
	return replyOf(resp.StatusCode, resp.Header.Get("content-type"), string(b), w.path == "/generate")
}

func fault(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "no answer in " + answerTime.String()
	}
	return err.Error()
}

// judge compares the two answers and tells what is wrong with the reason given.
func (w *wish) judge() string {
	w.unlike, w.unlikeMembers = unlike(w.alone, w.apart)
	extra := slices.DeleteFunc(slices.Clone(w.unlikeMembers), func(m string) bool { return slices.Contains(w.differs, m) })
	spare := slices.DeleteFunc(slices.Clone(w.differs), func(m string) bool { return slices.Contains(w.unlikeMembers, m) })
	switch {
	case len(extra) > 0 && w.reason == "":
		return "differs without a reason"
	case len(extra) > 0:
		return "differs in " + strings.Join(extra, ", ") + " as well"
	case len(spare) > 0 && !w.may:
		return "does not differ in " + strings.Join(spare, ", ")
	}
	return ""
}

// asAlone sends all requests of a file to an engine that serves alone, then to Envoy before a
// pair, and compares what comes.
func asAlone(t *testing.T, engine, file string, pair ...string) {
	root, err := stack.Root()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "test", "real", "testdata", "alone", file))
	require.NoError(t, err)
	all, err := wishes(string(text))
	require.NoError(t, err)
	alone, pair := pair[0], pair[1:]
	require.True(t, t.Run("alone", func(t *testing.T) {
		es := engines.use(t, alone)
		for _, w := range all {
			w.alone = w.send(t.Context(), es[0].URL)
			w.alone.survive(t, w, es)
		}
	}))
	require.True(t, t.Run("apart", func(t *testing.T) {
		s := newScene(t, "", pair...)
		for _, w := range all {
			before, pairs := s.picks()
			w.apart = w.send(t.Context(), s.envoy.URL)
			switch now, nowPairs := s.picks(); {
			case nowPairs > pairs:
				w.by = "both"
			case now > before:
				w.by = "one worker"
			default:
				w.by = "Baton"
			}
			if w.apart.survive(t, w, s.engines) {
				s.await("the pair to serve again", func() bool {
					return s.ask("/v1/completions", fields{"model": "tiny", "prompt": "Are you there?", "max_tokens": 2}).status == http.StatusOK
				})
			}
		}
		s.settled()
	}))
	differ, apart := 0, 0
	for _, w := range all {
		if w.by == "both" {
			apart++
		}
		if wrong := w.judge(); wrong != "" {
			t.Errorf("line %d: %s: %s\nalone: %s\napart: %s\n%s", w.line, w.name, wrong, w.alone, w.apart, strings.Join(w.unlike, "\n"))
		}
		if len(w.unlike) > 0 {
			differ++
		}
	}
	tellf(t, engine, "apart: requests of all kinds, beside the engine alone", "%d requests, of which %d reach both halves: %d as the engine alone, %d differ with a [reason](apart-as-alone.md)",
		len(all), apart, len(all)-differ, differ)
	if *page {
		require.NoError(t, writeAlone(root, engine, all))
	}
}

// picks returns how many workers have been picked, and how many of them for prefill.
func (s *scene) picks() (all, prefill float64) {
	return s.metric("baton_decisions_total"), s.metric("baton_decisions_total", `role="prefill"`)
}

// survive sees whether the engines live on after a request. One that has ended is a fact of the
// answer, and is started again.
func (r *reply) survive(t *testing.T, w *wish, es []*Engine) (ended bool) {
	t.Helper()
	for _, e := range es {
		if r.fault != "" || r.status >= http.StatusInternalServerError {
			// One whose core has ended answers with an error before it ends itself.
			ctx, cancel := context.WithTimeout(t.Context(), answerTime)
			require.NoError(t, stack.Await(ctx, e.Name+" to be well or to end", func() bool { return !e.Alive() || well(e) }))
			cancel()
		}
		if e.Alive() {
			continue
		}
		ended = true
		r.facts[anEnd] = e.Role.String()
		t.Logf("line %d: %s: %s has ended:\n%s", w.line, w.name, e.Name, e.Log())
		require.NoError(t, e.Restart(t.Context()))
	}
	return ended
}

func well(e *Engine) bool {
	resp, err := http.Get(e.URL + "/health")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// TestVLLMApartIsAsAlone: what clients get from a pair is what its decode worker's like says
// alone. Each difference has its reason beside the request.
func TestVLLMApartIsAsAlone(t *testing.T) {
	asAlone(t, vllm, "vllm.txt", "vllm-d2", "vllm-p1", "vllm-d1")
}

// TestSGLangApartIsAsAlone: the same of SGLang, whose decode worker does not serve alone.
func TestSGLangApartIsAsAlone(t *testing.T) {
	asAlone(t, sglang, "sglang.txt", "sglang-1", "sglang-p1", "sglang-d1")
}

// writeAlone writes an engine's section of docs/apart-as-alone.md.
func writeAlone(root, engine string, all []*wish) error {
	name := filepath.Join(root, "docs", "apart-as-alone.md")
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("real: the page: %w", err)
	}
	begins, ends := fmt.Sprintf("<!-- %s begins; make real writes it -->\n", engine), fmt.Sprintf("<!-- %s ends -->\n", engine)
	page, err := pagepart.Replace(string(b), begins, ends, func(string) string { return aloneTable(all) })
	if err != nil {
		return fmt.Errorf("real: %s: %w", name, err)
	}
	return os.WriteFile(name, []byte(page), 0o600)
}

// aloneTable is what one engine answered alone and apart.
func aloneTable(all []*wish) string {
	var out strings.Builder
	out.WriteString("| request | alone | apart | by | reason |\n| --- | --- | --- | --- | --- |\n")
	for _, w := range all {
		apart, reason := "the same", ""
		if len(w.unlike) > 0 {
			apart, reason = w.apart.String(), w.reason
			if alone := w.alone.String(); apart == alone {
				apart = "all else the same; " + strings.Join(w.unlike, "; ")
			}
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", cell(w.name), cell(w.alone.String()), cell(apart), w.by, cell(reason))
	}
	return out.String()
}

// cell makes text fit a cell of a table.
func cell(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(strings.NewReplacer("|", `\|`, "<", "&lt;", "`", "'").Replace(s)), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
