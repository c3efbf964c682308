package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/test/bench/python"
)

// published is a tokenizer and a chat template as a model's makers have published them, with
// which the live workers and the plugin take prompts.
type published struct {
	family string
	folder string   // with tokenizer.json and tokenizer_config.json
	words  []string // each one token of the tokenizer, with the blank before it
}

// fewestWords is how many words the text of prompts is drawn from, at least.
const fewestWords = 2000

// openPublished reads the tokenizer of a family from .tools/tokenizers.
func openPublished(root, family string) (*published, error) {
	p := &published{family: family, folder: filepath.Join(root, ".tools", "tokenizers", family)}
	b, err := os.ReadFile(filepath.Join(p.folder, "tokenizer.json"))
	if err != nil {
		return nil, fmt.Errorf("-tokenizer %s: %w: make tokenizers fetches it", family, err)
	}
	var t struct {
		Model struct{ Vocab map[string]int }
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return nil, fmt.Errorf("-tokenizer %s: %w", family, err)
	}
	word := regexp.MustCompile(`^Ġ[a-z]{2,5}$`) // Ġ is a blank, in byte-level vocabularies
	for v := range t.Model.Vocab {
		if word.MatchString(v) {
			p.words = append(p.words, " "+strings.TrimPrefix(v, "Ġ"))
		}
	}
	if len(p.words) < fewestWords {
		return nil, fmt.Errorf("-tokenizer %s: %d words of 2 to 5 letters are one token: expected %d", family, len(p.words), fewestWords)
	}
	slices.Sort(p.words) // a map has no order, and equal flags are to give equal prompts
	return p, nil
}

// line is one request of the table from which the simulated workers take tokens.
type line struct {
	Request json.RawMessage `json:"request"`
	Tokens  []uint32        `json:"tokens"`
	Asked   bool            `json:"asked"`
}

// tables writes the tokens of all requests that the workers will see, twice: into asked for
// workers whose /tokenize tells all of them; into refused for those whose /tokenize answers
// 503 to all but the first requests and the trial by which the plugin tries files. The
// tokens are Python's: what SGLang's own code renders, by Hugging Face's tokenizers. words has
// how many words each of the rest has.
func (p *published) tables(root string, first, rest [][]byte, words []int, asked, refused string) error {
	var trials [][]byte
	for _, t := range local.Trials() {
		trials = append(trials, t.Body)
	}
	open := len(first) + len(trials) // as many are always told
	bodies := slices.Concat(first, trials, rest)
	ids, err := p.tokens(root, bodies)
	if err != nil {
		return err
	}
	for i, n := range words {
		if more := len(ids[open+i]) - n; more != len(ids[open])-words[0] {
			return fmt.Errorf("request %d has %d tokens beside its %d words: expected as many as the first: each word is one token", i, more, n)
		}
	}
	for _, file := range []struct {
		name string
		all  bool
	}{{asked, true}, {refused, false}} {
		var out strings.Builder
		to := json.NewEncoder(&out)
		for i, body := range bodies {
			if len(ids[i]) == 0 {
				continue // SGLang's code refuses it, and so does a worker that does not know it
			}
			if err := to.Encode(line{Request: body, Tokens: ids[i], Asked: file.all || i < open}); err != nil {
				return fmt.Errorf("tokens of request %d: %w", i, err)
			}
		}
		if err := os.WriteFile(file.name, []byte(out.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// tokens asks Python for the ids of each request; none: SGLang's code refuses it.
func (p *published) tokens(root string, bodies [][]byte) ([][]uint32, error) {
	var config struct {
		Template string `json:"chat_template"`
	}
	b, err := os.ReadFile(filepath.Join(p.folder, "tokenizer_config.json"))
	if err == nil {
		err = json.Unmarshal(b, &config)
	}
	if err != nil {
		return nil, fmt.Errorf("-tokenizer %s: %w", p.family, err)
	}
	render, err := python.Start(root, "sglang", "chat", nil)
	if err != nil {
		return nil, err
	}
	defer render.Stop()
	encode, err := python.Start(root, "vllm", "bpe", nil, "serve")
	if err != nil {
		return nil, err
	}
	defer encode.Stop()
	out := make([][]uint32, len(bodies))
	for i, body := range bodies {
		text, ok, err := textOf(render, config.Template, body)
		if err != nil || !ok {
			if err != nil {
				return nil, err
			}
			continue
		}
		var answer struct {
			Answer [][]uint32
			Error  string
		}
		err = encode.Ask(map[string]any{"do": "ids", "path": filepath.Join(p.folder, "tokenizer.json"), "texts": []string{text}}, &answer)
		if err != nil || len(answer.Answer) != 1 {
			return nil, fmt.Errorf("tokens by Python: %s: %w", answer.Error, err)
		}
		out[i] = answer.Answer[0]
	}
	return out, nil
}

// textOf returns the text of a request: its prompt, or its messages in the template.
func textOf(render *python.Judge, template string, body []byte) (text string, ok bool, err error) {
	var q struct{ Prompt *string }
	if err := json.Unmarshal(body, &q); err != nil {
		return "", false, fmt.Errorf("a request: %w", err)
	}
	if q.Prompt != nil {
		return *q.Prompt, true, nil
	}
	var answer struct {
		Text   string
		Raises bool
	}
	err = render.Ask(map[string]any{"caller": "sglang", "template": template, "specials": map[string]string{}, "request": json.RawMessage(body)}, &answer)
	return answer.Text, !answer.Raises, err
}
