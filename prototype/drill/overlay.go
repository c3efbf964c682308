package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed speak.go
var speak string

// The repository's simulator answers by position: an answer cannot go on from tokens. Here it is
// built with these lines changed, so that the next token follows from those before it, and events
// have token ids, as vLLM's with return_token_ids, and the time at which they were written.
var changes = []struct{ file, from, to string }{
	{"answer.go", "text      [][]byte // what each item has said so far", "text      [][]byte\n\tsaid      [][]uint32\n\tfrom      int"},
	{"answer.go", "a.text[i] = appendAnswerPiece(a.text[i], it.digest, t)", "_, _ = it, t\n\t\t\ta.speak(i)"},
	{"answer.go", "a.text[i] = appendAnswerPiece(a.text[i], a.c.items[i].digest, t)", "a.speak(i)"},
	{"answer.go", "before := len(a.text[i])", "before := len(a.text[i])\n\ta.from = from"},
	{"answer.go", "b = append(append(append(b, choice...), `}]`...), chunk...)", "b = append(append(append(b, a.ids(i, choice)...), `}]`...), chunk...)"},
	{"answer.go", "a.appendEnd()\n\tif !a.first", "if p := a.c.items[0].prompt; p[0] == 7 && c.leg != legPrefill && c.transfer != nil { // hold the end back\n\t\t_ = a.send(true)\n\t\t_ = pause(c.ctx, time.Minute)\n\t}\n\ta.appendEnd()\n\tif !a.first"},
	{"call.go", "answerTokens(it.digest, 0, out-1)", "spoken(it.prompt, out-1)"},
}

const more = `
func (a *answer) speak(i int) {
	for len(a.said) <= i {
		a.said = append(a.said, nil)
	}
	id := nextID(a.c.items[i].prompt, a.said[i])
	a.said[i] = append(a.said[i], id)
	a.text[i] = append(a.text[i], piece(id)...)
}

func spoken(prompt []uint32, n int) (out []uint32) {
	for range n {
		out = append(out, nextID(prompt, out))
	}
	return out
}

func idList(ids []uint32) string { b, _ := json.Marshal(ids); return string(b) }

func (a *answer) ids(i int, choice string) string {
	if i >= len(a.said) || a.from > len(a.said[i]) {
		return choice
	}
	if a.shape == &sglangShape && a.c.q.api == apiCompletion { // without what nobody asked for, they are not there
		choice += ",\"token_ids\":null,\"prompt_token_ids\":null"
	}
	choice = strings.Replace(choice, ",\"token_ids\":null", ",\"token_ids\":"+idList(a.said[i][a.from:])+fmt.Sprintf(",\"sim_ns\":%d", time.Now().UnixNano()), 1)
	if a.from == 0 {
		choice = strings.Replace(choice, "\"prompt_token_ids\":null", "\"prompt_token_ids\":"+idList(a.c.items[i].prompt), 1)
	}
	return choice
}
`

// overlay writes the changed files into dir and returns the file for go build -overlay.
func overlay(root, dir string) (string, error) {
	replace := map[string]string{}
	texts := map[string]string{}
	for _, c := range changes {
		text, ok := texts[c.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, "internal/enginesim", c.file))
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if strings.Count(text, c.from) != 1 {
			return "", fmt.Errorf("%s: %q is there %d times", c.file, c.from, strings.Count(text, c.from))
		}
		texts[c.file] = strings.Replace(text, c.from, c.to, 1)
	}
	texts["zz_speak.go"] = strings.NewReplacer("package main\n", "package enginesim\n", `import "strconv"`,
		"import (\n\"encoding/json\"\n\"fmt\"\n\"strconv\"\n\"strings\"\n\"time\"\n)").Replace(speak) + more
	for name, text := range texts {
		to := filepath.Join(dir, name)
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, "internal/enginesim", name)] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o600)
}
