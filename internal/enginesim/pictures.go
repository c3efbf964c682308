package enginesim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The template's marks around a picture, and the token that is repeated in its place.
const (
	tokenPictureStart uint32 = 3
	tokenPictureEnd   uint32 = 4
	tokenPicture      uint32 = 5
)

// picture is one picture of a prompt, from token offset on.
type picture struct {
	id             string // vLLM's name of it
	sum            uint64 // SGLang's hash of it
	offset, length int
}

// gallery is the pictures of a prompt, in order. Read-only.
type gallery []picture

// within returns the pictures that have a token in [from, to).
func (g *gallery) within(from, to int) []picture {
	if g == nil {
		return nil
	}
	var out []picture
	for _, p := range *g {
		if p.offset < to && p.offset+p.length > from {
			out = append(out, p)
		}
	}
	return out
}

// pictureTokens is the number of tokens of a picture whose content has so many bytes.
// Pictures with contents of one length are different pictures of the same size.
func pictureTokens(content string) int { return min(4+len(content)/4, 1024) }

// load returns the content of the picture at an address: the data of a data: URL, the
// answer of a server on this machine, or for any other address its text. Errors are
// vLLM's (docs/engines.md#render).
func load(address string) (string, error) {
	if spec, ok := strings.CutPrefix(address, "data:"); ok {
		_, data, _ := strings.Cut(spec, ",")
		return data, nil
	}
	if !strings.HasPrefix(address, "http://127.0.0.1:") {
		return address, nil
	}
	failed := &apiError{status: http.StatusInternalServerError, reason: "media", msg: "Internal server error"}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(address)
	if err != nil {
		return "", failed
	}
	defer func() { _ = res.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	switch {
	case err != nil || res.StatusCode >= 500:
		return "", failed
	case res.StatusCode != http.StatusOK:
		return "", &apiError{status: http.StatusUnprocessableEntity, reason: "media",
			msg: fmt.Sprintf("Failed to fetch media from URL: HTTP %d error", res.StatusCode)}
	}
	return string(content), nil
}

// readPicture reads a content part. ok is false if the part is not a picture.
func (w *chatWriter) readPicture(part []byte) (p picture, ok bool, err error) {
	var address, uuid string
	err = eachField(part, func(key string, v []byte) error {
		switch key {
		case "image_url":
			if s, isText := unquote(v); isText {
				address = s
				return nil
			}
			return eachField(v, func(key string, v []byte) error {
				if key == "url" {
					address, _ = unquote(v)
				}
				return nil
			})
		case "uuid":
			uuid, _ = unquote(v)
		}
		return nil
	})
	if err != nil || address == "" {
		return p, false, err
	}
	if w.marks {
		return picture{length: 1}, true, nil
	}
	content, err := load(address)
	if err != nil {
		return p, false, err
	}
	sum := sha256.Sum256([]byte(content))
	p = picture{sum: binary.BigEndian.Uint64(sum[:8]), length: pictureTokens(content)}
	p.id = w.idOf(content, uuid)
	return p, true, nil
}

// idOf is vLLM's name of a picture (docs/engines.md#event-pictures).
func (w *chatWriter) idOf(content, uuid string) string {
	if uuid != "" {
		content = uuid
		if w.kwargs == nil {
			return uuid
		}
	}
	sum := sha256.Sum256(append([]byte(content), w.kwargs...))
	return hex.EncodeToString(sum[:])
}

// chatWriter applies the chat template to messages whose content may have pictures.
type chatWriter struct {
	tokens []uint32
	seen   gallery
	marks  bool   // a picture is one token and is not loaded, as with SGLang's tokenizer
	kwargs []byte // what the request says about reading pictures; nil: nothing
}

func (w *chatWriter) begin(role string) {
	w.tokens = append(w.tokens, tokenStart, pieceToken(role))
}

func (w *chatWriter) picture(p picture) {
	w.tokens = append(w.tokens, tokenPictureStart)
	p.offset = len(w.tokens)
	w.tokens = append(w.tokens, slices.Repeat([]uint32{tokenPicture}, p.length)...)
	w.tokens = append(w.tokens, tokenPictureEnd)
	w.seen = append(w.seen, p)
}

// content writes a message's content: a string, null, or parts. Texts with no picture
// between them are tokenized together.
func (w *chatWriter) content(v []byte) error {
	if s, ok := unquote(v); ok || isNull(v) {
		w.tokens = AppendTokens(w.tokens, s)
		return nil
	}
	var text strings.Builder
	flush := func() {
		w.tokens = AppendTokens(w.tokens, text.String())
		text.Reset()
	}
	err := eachElem(v, func(part []byte) error {
		p, ok, err := w.readPicture(part)
		if err != nil {
			return err
		}
		if ok {
			flush()
			w.picture(p)
			return nil
		}
		return eachField(part, func(key string, v []byte) error {
			if key == "text" {
				s, _ := unquote(v)
				text.WriteString(s)
			}
			return nil
		})
	})
	flush()
	return err
}

// pads are the ids that SGLang 0.5.23 puts in turn in place of a picture's tokens
// (docs/engines.md#event-pads).
func (p *picture) pads() (out [4]uint64) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("sglang-mm-wide-pad-v1"), p.sum))
	for i := range out {
		out[i] = 1_000_000 + binary.BigEndian.Uint64(sum[8*i:])&(1<<62-1)
	}
	return out
}

// padded returns the event's tokens, with SGLang's own ids in place of pictures.
func (e *event) padded() []uint64 {
	out := make([]uint64, len(e.tokens))
	for i, t := range e.tokens {
		out[i] = uint64(t)
	}
	for _, p := range e.space.seen.within(e.from, e.from+len(e.tokens)) {
		pads := p.pads()
		for i := max(p.offset, e.from); i < min(p.offset+p.length, e.from+len(e.tokens)); i++ {
			out[i-e.from] = pads[(i-p.offset)%len(pads)]
		}
	}
	return out
}

// rendered is the answer of vLLM's /render: the request as vLLM's engine would get it.
// Only some of its members are simulated.
type rendered struct {
	RequestID    string         `json:"request_id"`
	TokenIDs     []uint32       `json:"token_ids"`
	TokenOffsets any            `json:"token_offsets"`
	Features     *features      `json:"features"`
	ContentParts any            `json:"content_parts"`
	Sampling     map[string]int `json:"sampling_params"`
	Model        string         `json:"model"`
	Stream       bool           `json:"stream"`
}

type features struct {
	Hashes       map[string][]string      `json:"mm_hashes"`
	Placeholders map[string][]placeholder `json:"mm_placeholders"`
	Data         map[string][]string      `json:"kwargs_data"` // null if the request did not ask for it
	Metadata     any                      `json:"mm_metadata"`
}

type placeholder struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// render answers POST /v1/chat/completions/render (docs/engines.md#render), or that of another API.
func (v vllm) render(kind api, w http.ResponseWriter, r *http.Request) {
	if !v.s.cfg.ScaleOut {
		v.s.refuse(w, &apiError{status: http.StatusForbidden, msg: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."})
		return
	}
	body, err := readBody(r)
	if v.s.foreign(r.Header, false) {
		err = errForeign
	}
	if err != nil {
		v.s.refuse(w, refusalOf(err))
		return
	}
	q, err := v.s.responses.parse(kind, body)
	if err == nil {
		err = v.known(q)
	}
	if err == nil {
		err = v.fit(q)
	}
	if err != nil {
		v.s.refuse(w, refusalOf(err))
		return
	}
	out := rendered{RequestID: "chatcmpl-" + newProcessID(), TokenIDs: q.prompts[0], Sampling: map[string]int{"max_tokens": max(q.maxTokens, 1)}, Model: q.model, Stream: q.stream}
	if q.seen != nil {
		out.Features = &features{Hashes: map[string][]string{}, Placeholders: map[string][]placeholder{}}
		payload := map[string][]string{}
		for _, p := range *q.seen {
			out.Features.Hashes["image"] = append(out.Features.Hashes["image"], p.id)
			out.Features.Placeholders["image"] = append(out.Features.Placeholders["image"], placeholder{Offset: p.offset, Length: p.length})
			payload["image"] = append(payload["image"], strings.Repeat("A", 1<<20))
		}
		if q.payload {
			out.Features.Data = payload
		}
	}
	writeJSON(w, http.StatusOK, out)
}
