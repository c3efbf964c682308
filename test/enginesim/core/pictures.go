package core

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

// Picture is one picture of a prompt, from token offset on.
type Picture struct {
	ID             string // its name
	Sum            uint64 // a hash of its content
	Offset, Length int
}

// Gallery is the pictures of a prompt, in order. Read-only.
type Gallery []Picture

// Within returns the pictures that have a token in [from, to).
func (g *Gallery) Within(from, to int) []Picture {
	if g == nil {
		return nil
	}
	var out []Picture
	for _, p := range *g {
		if p.Offset < to && p.Offset+p.Length > from {
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
	failed := &APIError{Status: http.StatusInternalServerError, Reason: "media", Msg: "Internal server error"}
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
		return "", &APIError{Status: http.StatusUnprocessableEntity, Reason: "media",
			Msg: fmt.Sprintf("Failed to fetch media from URL: HTTP %d error", res.StatusCode)}
	}
	return string(content), nil
}

// readPicture reads a content part. ok is false if the part is not a picture.
func (w *chatWriter) readPicture(part []byte) (p Picture, ok bool, err error) {
	var address, uuid string
	err = EachField(part, func(key string, v []byte) error {
		switch key {
		case "image_url":
			if s, isText := Unquote(v); isText {
				address = s
				return nil
			}
			return EachField(v, func(key string, v []byte) error {
				if key == "url" {
					address, _ = Unquote(v)
				}
				return nil
			})
		case "uuid":
			uuid, _ = Unquote(v)
		}
		return nil
	})
	if err != nil || address == "" {
		return p, false, err
	}
	if w.marks {
		return Picture{Length: 1}, true, nil
	}
	content, err := load(address)
	if err != nil {
		return p, false, err
	}
	sum := sha256.Sum256([]byte(content))
	p = Picture{Sum: binary.BigEndian.Uint64(sum[:8]), Length: pictureTokens(content)}
	p.ID = w.idOf(content, uuid)
	return p, true, nil
}

// idOf is the name of a picture, as vLLM has it (docs/engines.md#event-pictures).
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
	seen   Gallery
	marks  bool   // a picture is one token and is not loaded
	kwargs []byte // what the request says about reading pictures; nil: nothing
}

func (w *chatWriter) begin(role string) {
	w.tokens = append(w.tokens, tokenStart, pieceToken(role))
}

func (w *chatWriter) picture(p Picture) {
	w.tokens = append(w.tokens, tokenPictureStart)
	p.Offset = len(w.tokens)
	w.tokens = append(w.tokens, slices.Repeat([]uint32{tokenPicture}, p.Length)...)
	w.tokens = append(w.tokens, tokenPictureEnd)
	w.seen = append(w.seen, p)
}

// content writes a message's content: a string, null, or parts. Texts with no picture
// between them are tokenized together.
func (w *chatWriter) content(v []byte) error {
	if s, ok := Unquote(v); ok || IsNull(v) {
		w.tokens = AppendTokens(w.tokens, s)
		return nil
	}
	var text strings.Builder
	flush := func() {
		w.tokens = AppendTokens(w.tokens, text.String())
		text.Reset()
	}
	err := EachElem(v, func(part []byte) error {
		p, ok, err := w.readPicture(part)
		if err != nil {
			return err
		}
		if ok {
			flush()
			w.picture(p)
			return nil
		}
		return EachField(part, func(key string, v []byte) error {
			if key == "text" {
				s, _ := Unquote(v)
				text.WriteString(s)
			}
			return nil
		})
	})
	flush()
	return err
}
