//go:build real

package real

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// pictureTokens is how many tokens stand for a picture in a prompt of llava
// (python/models.py): three blocks and an eighth.
const pictureTokens = 100

// noise is a PNG, of the same pixels for the same seed.
func noise(t *testing.T, seed uint64, level png.CompressionLevel) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	m := image.NewRGBA(image.Rect(0, 0, 24+int(seed%3)*8, 24))
	for y := range m.Rect.Dy() {
		for x := range m.Rect.Dx() {
			v := r.Uint32()
			m.SetRGBA(x, y, color.RGBA{R: byte(v), G: byte(v >> 8), B: byte(v >> 16), A: 255})
		}
	}
	var b bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: level}).Encode(&b, m))
	return b.Bytes()
}

func inline(file []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
}

// said and shown are parts of a message.
func said(text string) fields { return fields{"type": "text", "text": text} }

func shown(url string) fields { return fields{"type": "image_url", "image_url": fields{"url": url}} }

// album is a scene whose requests have pictures.
type album struct {
	*scene
	all []told
	by  map[string]bool // the workers that have served
}

func newAlbum(t *testing.T) *album {
	t.Helper()
	return &album{scene: newScene(t, compared, "llava-1", "llava-2"), by: map[string]bool{}}
}

// ask compares a request of messages, of which an engine has told all that is not text.
func (a *album) ask(what string, messages []fields, more fields) told {
	a.t.Helper()
	body := fields{"model": "llava", "messages": messages, "max_tokens": 4, "temperature": 0, "stream": len(a.all)%2 == 0}
	maps.Copy(body, more)
	_, x := a.compare(what, "/v1/chat/completions", body)
	d := a.last()
	require.Contains(a.t, []string{"tokenized with its pictures", "tokenized before", "tokenized"}, d.TokenReason, what)
	a.all, a.by[d.Decode.Worker] = append(a.all, x), true
	return x
}

// requireAgain holds that of a prompt which another has begun the engine had so many pictures
// to compute again: those behind the first that the other has not had there. Text behind
// them, and the rest of a block, come to less than one.
func (a *album) requireAgain(x *told, pictures int) {
	a.t.Helper()
	require.Equal(a.t, pictures, (x.prompt-x.cached)/pictureTokens, "%s: of %d tokens %d were cached", x.what, x.prompt, x.cached)
}

// TestVLLMPictures: a model that sees, on two workers. What Baton predicts, with what an
// engine tells it of the pictures in a prompt, is what the engine counts.
func TestVLLMPictures(t *testing.T) {
	a := newAlbum(t)
	data := func(seed uint64) fields { return shown(inline(noise(t, seed, png.DefaultCompression))) }
	named := func(seed uint64, name string) fields {
		p := data(seed)
		p["uuid"] = name
		return p
	}
	for i, c := range []struct {
		what        string
		first, then []fields
		again       int
		more        fields
	}{
		{"the same picture", []fields{data(1)}, []fields{data(1)}, 0, nil},
		{"another at its place", []fields{data(1)}, []fields{data(2)}, 1, nil},
		{"the same behind text", []fields{said("see: "), data(1)}, []fields{said("see: "), data(1)}, 0, nil},
		{"another behind text", []fields{said("see: "), data(1)}, []fields{said("see: "), data(3)}, 1, nil},
		{"the same pixels in another file", []fields{data(1)}, []fields{shown(inline(noise(t, 1, png.NoCompression)))}, 1, nil},
		{"two pictures", []fields{data(1), data(2)}, []fields{data(1), data(2)}, 0, nil},
		{"two in the other order", []fields{data(1), data(2)}, []fields{data(2), data(1)}, 2, nil},
		{"the second of two is another", []fields{data(1), data(2)}, []fields{data(1), data(3)}, 1, nil},
		{"one becomes two", []fields{data(1)}, []fields{data(1), data(1)}, 1, nil},
		{"text between two", []fields{data(1), said("and"), data(2)}, []fields{data(1), said("and"), data(2)}, 0, nil},
		{"of four the last two change places", []fields{data(1), data(2), data(3), data(4)}, []fields{data(1), data(2), data(4), data(3)}, 2, nil},
		{"the same with a salt", []fields{data(1)}, []fields{data(1)}, 0, fields{"cache_salt": "a"}},
		{"another with a salt", []fields{data(1)}, []fields{data(2)}, 1, fields{"cache_salt": "a"}},
		{"the same under another uuid", []fields{named(1, "here")}, []fields{named(1, "there")}, 1, nil},
		{"another under the same uuid", []fields{named(1, "anywhere")}, []fields{named(2, "anywhere")}, 0, nil},
	} {
		begin := message("system", words(uint64(1000+i), 60+5*i))
		for n, parts := range [][]fields{c.first, c.then} {
			parts = append(slices.Clone(parts), said(fmt.Sprint("what is it? ", n)))
			x := a.ask(c.what, []fields{begin, {"role": "user", "content": parts}}, c.more)
			if n == 1 {
				a.requireAgain(&x, c.again)
			}
		}
	}

	var hung atomic.Pointer[[]byte]
	wall := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "image/png")
		_, _ = w.Write(*hung.Load())
	}))
	defer wall.Close()
	for i, seed := range []uint64{1, 1, 2} {
		file := noise(t, seed, png.DefaultCompression)
		hung.Store(&file)
		x := a.ask("what is at an address", []fields{message("system", words(2000, 60)), {"role": "user", "content": []fields{shown(wall.URL), said(fmt.Sprint(i))}}}, nil)
		if i > 0 {
			a.requireAgain(&x, i-1)
		}
	}
	requireAgreement(t, vllm, "aggregated: pictures, 2 workers", a.all, 1)
}

// TestVLLMConversationsWithPictures: turns of text and pictures, then 200 requests that
// begin as others have and go on at random, with evictions.
func TestVLLMConversationsWithPictures(t *testing.T) {
	a := newAlbum(t)
	data := func(seed uint64) fields { return shown(inline(noise(t, seed, png.DefaultCompression))) }
	for turn := range 3 {
		for c := range 3 {
			history := []fields{message("system", words(uint64(c), 80))}
			for i := range turn + 1 {
				history = append(history, fields{"role": "user", "content": []fields{said(words(uint64(100+10*c+i), 30)), data(uint64(i))}})
				if i < turn {
					history = append(history, message("assistant", words(uint64(200+10*c+i), 20)))
				}
			}
			x := a.ask(fmt.Sprintf("conversation %d, turn %d", c, turn), history, nil)
			if turn > 0 {
				require.Greater(t, x.cached, turn*pictureTokens, x.what)
			}
		}
	}

	r := rand.New(rand.NewPCG(14, 6))
	var past [][]fields
	for i := range 200 {
		var parts []fields
		if len(past) > 0 && r.IntN(4) > 0 {
			parts = past[r.IntN(len(past))]
			parts = slices.Clone(parts[:min(r.IntN(len(parts)+1), 12)])
		}
		for range 1 + r.IntN(4) {
			if r.IntN(2) == 0 {
				parts = append(parts, data(r.Uint64N(4)))
			} else {
				parts = append(parts, said(words(r.Uint64N(6), 1+r.IntN(60))))
			}
		}
		past = append(past, parts)
		a.ask(fmt.Sprintf("at random %d: %d parts", i, len(parts)), []fields{{"role": "user", "content": parts}}, nil)
	}
	computed := 0
	for i := range a.all {
		computed += a.all[i].prompt - a.all[i].cached
	}
	require.Len(t, a.by, 2, "both have served")
	require.Greater(t, computed, 2*256*BlockSize, "more than both can hold")
	requireAgreement(t, vllm, "aggregated: conversations with pictures, 3 × 3 turns and 200 at random, with evictions, 2 workers", a.all, 1)
}
