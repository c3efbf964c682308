package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Files are the files of a model that say how its prompts become tokens.
type Files struct {
	Tokenizer []byte // tokenizer.json
	Config    []byte // tokenizer_config.json; nil: the model has none
	Template  []byte // chat_template.jinja; nil: the template is in Config
}

// The longest files that are read.
const (
	maxTokenizer = 64 << 20
	maxConfig    = 8 << 20
	maxTemplate  = 1 << 20
)

// Read reads the files from a model's folder. Only tokenizer.json must be there.
func Read(dir fs.FS) (Files, error) {
	var f Files
	var errs []error
	for i, n := range f.named() {
		text, err := read(dir, n.name, n.most)
		if i == 0 && text == nil && err == nil {
			err = errors.New("tokenizer.json is not there: expected the folder of a published model")
		}
		*n.text = text
		errs = append(errs, err)
	}
	return f, errors.Join(errs...)
}

// read returns a file, or nil if it is not there.
func read(dir fs.FS, name string, most int64) ([]byte, error) {
	file, err := dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("%s: expected at most %d bytes", name, most)
	}
	return b, nil
}

// addedElsewhere returns an error if tokenizer_config.json adds tokens that tokenizer.json
// does not have: transformers adds them when it loads a model.
func addedElsewhere(tokenizer, config []byte) error {
	var t struct {
		Added []struct {
			ID      uint32 `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	var c struct {
		Added map[uint32]struct {
			Content string `json:"content"`
		} `json:"added_tokens_decoder"`
	}
	err := errors.Join(json.Unmarshal(tokenizer, &t), json.Unmarshal(config, &c))
	if err != nil {
		return fmt.Errorf("read the added tokens: %w", err)
	}
	known := make(map[uint32]string, len(t.Added))
	for _, a := range t.Added {
		known[a.ID] = a.Content
	}
	for id, a := range c.Added {
		if known[id] != a.Content {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder %d: expected a token that tokenizer.json has, too", id)
		}
	}
	return nil
}
