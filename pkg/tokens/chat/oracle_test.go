//go:build real

package chat_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

var (
	cases = flag.Uint64("cases", 300, "requests for each template and caller")
	from  = flag.Uint64("from", 0, "the first seed")
	write = flag.Bool("write", false, "write testdata/families")
	more  = flag.String("more", "", "a folder with further templates, *.jinja")
)

// python is a running oracle.py.
type python struct {
	in  io.Writer
	out *bufio.Scanner
}

// pythons are the oracle in the environment of each caller.
type pythons map[*chat.Caller]*python

func startPythons(t testing.TB) pythons {
	engine := startPython(t, "vllm")
	return pythons{chat.Transformers: engine, vllm: engine, sglang: startPython(t, "sglang")}
}

func startPython(t testing.TB, engine string) *python {
	exe, err := filepath.Abs(filepath.Join(tools, "real", engine, "bin", "python"))
	require.NoError(t, err)
	require.FileExists(t, exe, "make real-tools installs it")
	cmd := exec.CommandContext(t.Context(), exe, "testdata/oracle.py")
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_LOGGING_LEVEL=CRITICAL", "CUDA_VISIBLE_DEVICES=")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	p := &python{in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<26)
	return p
}

type answer struct {
	Text   string
	Raises bool
	Why    string
}

func (p *python) ask(t *testing.T, c *chat.Caller, source string, specials map[string]string, q *chat.Request) answer {
	r := map[string]any{"messages": memberOf(q.Messages)}
	if q.Tools != nil {
		r["tools"] = memberOf(q.Tools)
	}
	if q.Kwargs != nil {
		r["chat_template_kwargs"] = memberOf(q.Kwargs)
	}
	if q.Documents != nil {
		r["documents"] = memberOf(q.Documents)
	}
	if q.AddGenerationPrompt != nil {
		r["add_generation_prompt"] = *q.AddGenerationPrompt
	}
	if q.ContinueFinalMessage {
		r["continue_final_message"] = true
	}
	if q.ReasoningEffort != "" {
		r["reasoning_effort"] = q.ReasoningEffort
	}
	b, err := json.Marshal(map[string]any{"caller": c.Name, "template": source, "specials": specials, "request": r})
	require.NoError(t, err)
	_, err = p.in.Write(append(b, '\n'))
	require.NoError(t, err)
	for p.out.Scan() {
		line, ok := strings.CutPrefix(p.out.Text(), "=")
		if !ok {
			continue
		}
		var a answer
		require.NoError(t, json.Unmarshal([]byte(line), &a))
		return a
	}
	require.Fail(t, "the oracle has ended", "%v", p.out.Err())
	return answer{}
}

// sourceOf reads a family's template and special tokens, for Python.
func sourceOf(t *testing.T, family string) (string, map[string]string) {
	var c map[string]any
	require.NoError(t, json.Unmarshal(configOf(t, family), &c))
	specials := map[string]string{}
	for _, n := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		v := c[n]
		m, ok := v.(map[string]any)
		if ok {
			v = m["content"]
		}
		s, ok := v.(string)
		if ok {
			specials[n] = s
		}
	}
	return c["chat_template"].(string), specials
}

// TestFamiliesArePythons renders random requests here and in Python (-args -cases 10000 is
// the long form). With -write it writes the digests for TestFamiliesRenderAsInPython.
func TestFamiliesArePythons(t *testing.T) {
	p := startPythons(t)
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			source, specials := sourceOf(t, family)
			tpl := loadFamily(t, family)
			out := p.compare(t, family, tpl, source, specials)
			if *write {
				require.NoError(t, os.MkdirAll("testdata/families", 0o755))
				require.NoError(t, os.WriteFile(filepath.Join("testdata", "families", family), []byte(out), 0o644))
			}
		})
	}
}

// TestMoreTemplatesArePythons does the same with the templates of a folder. One that is
// refused is reported.
func TestMoreTemplatesArePythons(t *testing.T) {
	if *more == "" {
		t.Skip("no folder given")
	}
	files, err := filepath.Glob(filepath.Join(*more, "*.jinja"))
	require.NoError(t, err)
	p := startPythons(t)
	specials := map[string]string{"bos_token": "<s>", "eos_token": "</s>"}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			tpl, err := chat.Compile(string(b), []chat.Special{{Name: "bos_token", Text: "<s>"}, {Name: "eos_token", Text: "</s>"}}, jinja.Limits{})
			if err != nil {
				t.Skip(err)
			}
			p.compare(t, file, tpl, string(b), specials)
		})
	}
}

// compare renders each case in both, and returns Python's digests.
func (p pythons) compare(t *testing.T, name string, tpl *chat.Template, source string, specials map[string]string) string {
	var b strings.Builder
	counts := map[string]int{}
	store := chat.NewStore(4 << 20)
	bad := 0
	for seed := *from; seed < *from+*cases; seed++ {
		for i, c := range callers {
			q := caseOf(seed, c)
			a := p[c].ask(t, c, source, specials, q)
			want := "raises"
			if !a.Raises {
				want = digest(t, a.Text, nil)
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(want)
			out, err := tpl.Render(c, q, store)
			text := ""
			if err == nil {
				text = out.Text()
			}
			got := digest(t, text, err)
			switch {
			case got == want && got == "raises":
				counts[c.Name+" raises"]++
			case got == want:
				counts[c.Name+" equal"]++
			case strings.Contains(got, "refused"):
				counts[c.Name+" "+got]++
			default:
				bad++
				if bad <= 3 {
					t.Errorf("%s as %s, seed %d:\n%s\nours   %s %v\npython %s %s", name, c.Name, seed, q.Messages, quote(text), err, quote(a.Text), a.Why)
				}
			}
		}
		b.WriteByte('\n')
	}
	if bad > 0 {
		t.Errorf("%d differ", bad)
	}
	for k, n := range counts {
		t.Logf("%6d %s", n, k)
	}
	return b.String()
}

func quote(s string) string { return fmt.Sprintf("%q", s) }
