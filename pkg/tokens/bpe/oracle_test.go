//go:build real

package bpe

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

var (
	cases = flag.Int("cases", 2000, "random texts for each tokenizer")
	seed  = flag.Uint64("seed", 1, "of the random texts")
	write = flag.Bool("write", false, "write testdata/golden")
)

// oracle is Hugging Face's tokenizers, in a Python process.
type oracle struct {
	in  io.Writer
	out *bufio.Reader
}

func newOracle(t *testing.T) *oracle {
	t.Helper()
	python, err := filepath.Abs(filepath.Join(tools, "real", "vllm", "bin", "python"))
	require.NoError(t, err)
	require.FileExists(t, python, "make real-tools installs it")
	cmd := exec.CommandContext(t.Context(), python, "testdata/oracle.py", "serve")
	cmd.Env = append(os.Environ(), "TOKENIZERS_PARALLELISM=false", "RAYON_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &oracle{in, bufio.NewReaderSize(out, 1<<20)}
}

func ask[A any](t *testing.T, o *oracle, question map[string]any) A {
	t.Helper()
	q, err := json.Marshal(question)
	require.NoError(t, err)
	_, err = o.in.Write(append(q, '\n'))
	require.NoError(t, err)
	line, err := o.out.ReadBytes('\n')
	require.NoError(t, err)
	var a struct {
		Answer A
		Error  string
	}
	require.NoError(t, json.Unmarshal(line, &a))
	require.Empty(t, a.Error)
	return a.Answer
}

func (o *oracle) ids(t *testing.T, do, path string, special bool, texts []string) [][]uint32 {
	t.Helper()
	return ask[[][]uint32](t, o, map[string]any{"do": do, "path": path, "special": special, "texts": texts})
}

// TestIDsAreThoseOfTokenizers compares the tokens of random texts with the oracle's.
func TestIDsAreThoseOfTokenizers(t *testing.T) {
	o := newOracle(t)
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			e := loadFamily(t, family).NewEncoder()
			path, err := filepath.Abs(filepath.Join(tools, "tokenizers", family, "tokenizer.json"))
			require.NoError(t, err)
			r := rand.New(rand.NewPCG(*seed, 0))
			for done := 0; done < *cases; {
				var texts []string
				for range min(500, *cases-done) {
					texts = append(texts, randomText(r, 1+r.IntN(40)))
				}
				done += len(texts)
				special := r.IntN(2) == 0
				compare(t, e, special, texts, o.ids(t, "ids", path, special, texts))
			}
		})
	}
}

// TestGoldenFilesAreWhatTokenizersSay writes them with -write.
func TestGoldenFilesAreWhatTokenizersSay(t *testing.T) {
	o := newOracle(t)
	texts := goldenTexts()
	check := func(name, head string, lines [][]uint32) {
		text := goldenText(head, lines)
		if *write {
			require.NoError(t, os.MkdirAll(filepath.Dir(goldenFile(name)), 0o750))
			require.NoError(t, os.WriteFile(goldenFile(name), []byte(text), 0o600))
		}
		is, err := os.ReadFile(goldenFile(name))
		require.NoError(t, err)
		require.Equal(t, xxh3.HashString(text), xxh3.Hash(is), "%s is another: make tokenizers-golden", name)
	}
	for _, family := range families {
		path, err := filepath.Abs(filepath.Join(tools, "tokenizers", family, "tokenizer.json"))
		require.NoError(t, err)
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		ids := o.ids(t, "ids", path, false, texts)
		for i, with := range o.ids(t, "ids", path, true, texts) {
			if i%2 == 0 {
				ids[i] = with
			}
		}
		check(family, goldenHead(file), ids)
	}
	var lines [][]uint32
	for _, text := range slices.Sorted(maps.Keys(patterns())) {
		lines = append(lines, ask[[][]uint32](t, o, map[string]any{"do": "pieces", "pattern": text, "texts": texts})...)
	}
	check("patterns", goldenHead(nil), lines)
}

func compare(t *testing.T, e *Encoder, special bool, texts []string, want [][]uint32) {
	t.Helper()
	wrong := 0
	for i, text := range texts {
		got, err := e.Append(nil, []byte(text), special)
		require.NoError(t, err, "%+q", text)
		if fmt.Sprint(got) != fmt.Sprint(want[i]) {
			t.Errorf("%+q\n got %v\nwant %v", text, got, want[i])
			wrong++
			if wrong == 5 {
				t.FailNow()
			}
		}
	}
}

// TestTransformersSaysTheSame: an engine loads a model's folder by AutoTokenizer, which
// goes by the model's type and does not always read tokenizer.json alone.
func TestTransformersSaysTheSame(t *testing.T) {
	o := newOracle(t)
	for family, model := range map[string]string{
		"qwen3": "qwen3", "llama3_1": "llama", "deepseek_v3": "deepseek_v3", "gemma3": "gemma3_text", "gptoss": "gpt_oss", "mistral_nemo": "mistral",
	} {
		t.Run(family, func(t *testing.T) {
			e := loadFamily(t, family).NewEncoder()
			texts := transformersTexts()
			compare(t, e, false, texts, o.ids(t, "transformers", modelFolder(t, family, model), false, texts))
		})
	}
	t.Run("llama2 is another", func(t *testing.T) {
		// transformers 5 makes a tokenizer of its own for LlamaTokenizer: it puts no space before
		// the text after an added token, and none before a space.
		e := loadFamily(t, "llama2").NewEncoder()
		want := o.ids(t, "transformers", modelFolder(t, "llama2", "llama"), false, []string{" some"})
		got, err := e.Append(nil, []byte(" some"), false)
		require.NoError(t, err)
		require.NotEqual(t, want[0], got)
	})
}

func transformersTexts() []string {
	r := rand.New(rand.NewPCG(*seed, 1))
	texts := make([]string, min(*cases, 1000))
	for i := range texts {
		texts[i] = randomText(r, 1+r.IntN(40))
	}
	return texts
}

// modelFolder is a folder with a family's tokenizer and the type of a model.
func modelFolder(t *testing.T, family, model string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		from, err := filepath.Abs(filepath.Join(tools, "tokenizers", family, name))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(from, filepath.Join(dir, name)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"`+model+`"}`), 0o600))
	return dir
}

// TestPatternsMatchAsTheirTextSays compares each pattern's pieces of random texts with
// those of the regular expression.
func TestPatternsMatchAsTheirTextSays(t *testing.T) {
	o := newOracle(t)
	c := newClasses()
	for text, p := range patterns() {
		r := rand.New(rand.NewPCG(*seed, 2))
		texts := make([]string, *cases)
		for i := range texts {
			texts[i] = randomText(r, 1+r.IntN(20))
		}
		for i, c := range assigned() {
			if i%64 == 0 {
				texts = append(texts, "")
			}
			texts[len(texts)-1] += fmt.Sprintf(" '%cB%c9%c.%c\n%ca%c", c, c, c, c, c, c)
		}
		want := ask[[][]int](t, o, map[string]any{"do": "pieces", "pattern": text, "texts": texts})
		for i, s := range texts {
			got := pieces(c, stage{pattern: p}, s)
			require.Equal(t, want[i], got, "%s: %+q", text, s)
		}
	}
}

// assigned returns the characters of all planes that have some, and a few of the others.
func assigned() []rune {
	var out []rune
	for r := range rune(0x110000) {
		if r < 0xD800 || r > 0xDFFF && r < 0x33500 || r >= 0xE0000 && r < 0xE0200 || r%4096 == 7 {
			out = append(out, r)
		}
	}
	return out
}

// TestFormCIsThatOfTokenizers compares each character alone and among marks, and random
// texts.
func TestFormCIsThatOfTokenizers(t *testing.T) {
	o := newOracle(t)
	n := newNFC()
	var texts []string
	for i, c := range assigned() {
		if i%64 == 0 {
			texts = append(texts, "")
		}
		texts[len(texts)-1] += fmt.Sprintf("%c\u0301a%c\u0327a\u0301%c\u0334%c\u1100%c\u11a8%c\u0345x", c, c, c, c, c, c)
	}
	r := rand.New(rand.NewPCG(*seed, 3))
	for range 20 * *cases {
		s := ""
		for range 1 + r.IntN(12) {
			s += string(randomRune(r))
		}
		texts = append(texts, s)
	}
	want := ask[[]string](t, o, map[string]any{"do": "nfc", "texts": texts})
	var runes []rune
	for i, s := range texts {
		var got []byte
		got, runes = n.append(nil, []byte(s), runes)
		require.Equal(t, want[i], string(got), "%+q", s)
		if n.is([]byte(s)) {
			require.Equal(t, want[i], s, "%+q", s)
		}
	}
}

// TestNumbersOfDigitsAreThoseOfTokenizers: Digits asks Rust's standard library, and our
// table is that of the regular expressions. Spaces beside added tokens are asked of yet
// another library.
func TestNumbersOfDigitsAreThoseOfTokenizers(t *testing.T) {
	o := newOracle(t)
	c := newClasses()
	want := ask[[]rune](t, o, map[string]any{"do": "digits"})
	blank := ask[[]rune](t, o, map[string]any{"do": "members", "pattern": `\s`})
	var got, spaces []rune
	for r := range rune(0x110000) {
		if r >= 0xD800 && r <= 0xDFFF {
			continue
		}
		if is, _ := c.numeric([]byte(string(r)), 0); is {
			got = append(got, r)
		}
		if c.of(r)&space != 0 {
			spaces = append(spaces, r)
		}
		require.Equal(t, unicode.Is(unicode.White_Space, r), c.of(r)&space != 0, "%U", r)
	}
	require.Equal(t, want, got)
	require.Equal(t, blank, spaces)
}
