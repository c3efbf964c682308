package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// IndexQuery asks how much of a prompt each rank holds. It has either Tokens or Hashes.
type IndexQuery struct {
	Tokens    []uint32
	BlockSize int // of Tokens; 0: as the model's workers have it
	LoRA      string
	CacheSalt string

	Hashes []uint64 // one for the tokens of each block, in the prompt's order

	Model string // only ranks of workers that serve this model; "": all
}

// IndexAnswer says what the index knows about a prompt.
type IndexAnswer struct {
	PromptBlocks int            `json:"prompt_blocks"`        // whole blocks
	BlockSize    int            `json:"block_size,omitempty"` // by which tokens were cut
	Ranks        []IndexOverlap `json:"ranks"`                // the ranks that hold most first
}

// IndexOverlap is how many leading blocks of the prompt one rank holds.
type IndexOverlap struct {
	WorkerID     worker.ID     `json:"worker_id,string"`
	DPRank       worker.DPRank `json:"dp_rank"`
	Role         string        `json:"role"`
	BlockSize    int           `json:"block_size"`    // the worker's own; blocks of another size are never found
	TreeBlocks   uint32        `json:"tree_blocks"`   // on the device, by its KV events
	HostBlocks   uint32        `json:"host_blocks"`   // in host memory, beyond TreeBlocks
	DiskBlocks   uint32        `json:"disk_blocks"`   // on disk, beyond both
	RoutedBlocks uint32        `json:"routed_blocks"` // that were lately routed to it
}

const indexForm = `expected {"tokens": [ids], "block_size": n} or {"hashes": ["decimal or 0x…"]}, ` +
	`and of "model", "lora" and "cache_salt" what matters`

// parseIndexQuery reads the body of /debug/index.
func parseIndexQuery(body []byte) (IndexQuery, error) {
	var in struct {
		Tokens    []uint32 `json:"tokens"`
		BlockSize *int     `json:"block_size"`
		Hashes    []string `json:"hashes"`
		Model     string   `json:"model"`
		LoRA      string   `json:"lora"`
		CacheSalt string   `json:"cache_salt"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return IndexQuery{}, indexBodyError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return IndexQuery{}, errors.New("body: expected one JSON object and nothing after it")
	}
	q := IndexQuery{Tokens: in.Tokens, Model: in.Model, LoRA: in.LoRA, CacheSalt: in.CacheSalt}
	switch {
	case len(in.Tokens) > 0 == (len(in.Hashes) > 0):
		return q, fmt.Errorf("body: has %d tokens and %d hashes: %s", len(in.Tokens), len(in.Hashes), indexForm)
	case len(in.Hashes) > 0 && (in.BlockSize != nil || in.LoRA != "" || in.CacheSalt != ""):
		return q, errors.New("body: block_size, lora and cache_salt are in the hashes already: expected them with tokens only")
	case in.BlockSize != nil && *in.BlockSize < 1:
		return q, fmt.Errorf("block_size %d: expected at least 1", *in.BlockSize)
	case in.BlockSize != nil:
		q.BlockSize = *in.BlockSize
	case len(in.Tokens) > 0 && in.Model == "":
		return q, errors.New("block_size is missing: expected it, or the model whose workers have it")
	}
	for i, s := range in.Hashes {
		h, err := parseHash(s)
		if err != nil {
			return q, fmt.Errorf("hashes[%d] %w", i, err)
		}
		q.Hashes = append(q.Hashes, h)
	}
	return q, nil
}

// indexBodyError says what was expected, in words of JSON and not of Go.
func indexBodyError(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Field == "" {
		return fmt.Errorf("body: %w: %s", err, indexForm)
	}
	want := map[string]string{
		"tokens":     "a list of token ids, 0 to 4294967295",
		"block_size": "a number",
		"hashes":     "a list of strings, decimal or 0x…, since a JSON number does not hold 64 bits everywhere",
	}[strings.SplitN(wrong.Field, ".", 2)[0]]
	want = cmp.Or(want, "a string")
	return fmt.Errorf("%s: it is or holds a %s: expected %s", wrong.Field, wrong.Value, want)
}

func parseHash(s string) (uint64, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	}
	h, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q: expected 64 bits without sign, decimal or 0x and hexadecimal", s)
	}
	return h, nil
}

func (s *Server) serveIndex(w http.ResponseWriter, r *http.Request) {
	body, ok := s.readBody(w, r)
	if !ok {
		return
	}
	q, err := parseIndexQuery(body)
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	a, err := s.cfg.Index(q)
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	if a.Ranks == nil {
		a.Ranks = []IndexOverlap{}
	}
	s.json(w, http.StatusOK, a)
}

// serveIndexDump streams a dump. If it fails in the middle, the stream is cut off; the
// reader finds that out by the dump's checksum.
func (s *Server) serveIndexDump(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="index.dump"`)
	if err := s.cfg.IndexDump(w); err != nil {
		s.cfg.Logger.Warn("the index could not be dumped to whoever asked", slog.Any(logkey.Err, err))
		panic(http.ErrAbortHandler)
	}
}
