package tokens

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// In a prompt's tokens a picture is a run of tokens that are equal for all pictures of
// its size. The block hashes also depend on the picture's own hash, which only an engine
// that has loaded the picture knows. vLLM tells it (docs/engines.md#render). If no engine
// tells it, or the prompt has a part that is neither text nor picture, only the tokens up
// to the first part that is not text are known.

// maxPictures is how many parts that are not text a prompt may have if an engine is asked
// about it: the engine loads each of them once more.
const maxPictures = 64

// maxRendered bounds an answer with pictures: a short address may stand for many tokens.
const maxRendered = 4 << 20

// media describes the parts of a prompt that are not text.
type media struct {
	parts int

	// Only known if an engine would be asked about pictures:
	pictures bool // all parts are pictures
	inside   bool // the request itself contains all of them
}

func (r *Resolver) mediaOf(q *Query) media {
	m := media{pictures: true, inside: true}
	look := q.Renders && r.cfg.Pictures == AskPictures
	if q.Request.PromptKind == openai.PromptMessages {
		openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, piece []byte) {
			if k == openai.PieceMedia {
				m.parts++
				if look {
					inside, picture := openai.Picture(piece)
					m.pictures, m.inside = m.pictures && picture, m.inside && inside
				}
			}
		})
	}
	return m
}

// pictureQuestions returns the questions about a prompt with media.
func pictureQuestions(q *Query, m media) asking {
	return asking{
		media: m, renders: q.Renders, keeps: q.keeps(),
		whole: messagesBody(q, false, q.Renders), before: messagesBody(q, true, false),
	}
}

// forPictures returns the asides by which a tokenizer is chosen for a prompt with media,
// in order of preference.
func (r *Resolver) forPictures(q *Query, m media) []*asides {
	if q.Renders && m.pictures {
		return []*asides{r.renderers, r.expanders}
	}
	return []*asides{r.expanders}
}

// askPictures asks for the prompt with its pictures if an engine tells them, else for the
// tokens before the first picture. Its errors are *Error.
func (r *Resolver) askPictures(ctx context.Context, to asked, a asking) (*entry, error) {
	release, err := take(ctx, r.pictureSlots)
	if err != nil {
		to.of.undecided(to.ep) // the engine was not asked
		return nil, err
	}
	defer release()
	shared := a.loads()
	if to.of == r.renderers {
		e, err := r.render(ctx, to.ep, a)
		to.heard(err, shared)
		if err == nil || ReasonOf(err) != ReasonUntold {
			return e, err
		}
		var ok bool
		to, ok = choose([]*asides{r.expanders}, to.all, 2*r.cfg.Wait)
		if !ok {
			return nil, &Error{Reason: ReasonSetAside}
		}
		shared = true // part of the time was spent on another question
	}
	if a.before == nil {
		to.of.undecided(to.ep)
		return nil, &Error{Reason: ReasonMedia}
	}
	e, err := r.askBefore(ctx, to.ep, a)
	to.heard(err, shared)
	return e, err
}

// askBefore asks for the tokens of the whole prompt, and of its part before the first
// picture. The tokens with which both answers begin are the beginning of the prompt,
// whatever the chat template puts in place of a picture.
func (r *Resolver) askBefore(ctx context.Context, ep worker.Endpoint, a asking) (*entry, error) {
	var of [2]*entry
	for i, body := range [][]byte{a.whole, a.before} {
		text, err := r.post(ctx, ep, r.cfg.TokenizePath, body, maxRendered)
		if err != nil {
			return nil, err
		}
		of[i], err = parseTokens(text, ep)
		if err != nil {
			return nil, err
		}
	}
	e, before := of[0], of[1].tokens
	n := 0
	for n < min(len(e.tokens), len(before)) && e.tokens[n] == before[n] {
		n++
	}
	if !a.renders {
		e.isl += a.media.parts * mediaTokens // each picture is a single mark in the answer
	}
	e.tokens = slices.Clone(e.tokens[:n])
	e.partial, e.reason = true, ReasonBefore
	return e, nil
}

// askPage asks the engine's own page for the tokens of a request. Its errors are *Error.
func (r *Resolver) askPage(ctx context.Context, ep worker.Endpoint, a asking) (*entry, error) {
	slots := r.slots
	if a.media.parts > 0 {
		slots = r.pictureSlots
	}
	release, err := take(ctx, slots)
	if err != nil {
		return nil, err
	}
	defer release()
	text, err := r.post(ctx, ep, a.page, a.whole, max(12*int64(len(a.whole)), maxRendered))
	if err != nil {
		return nil, err
	}
	return parseRendered(text, ep)
}

// render asks for the prompt's tokens and its pictures. Its errors are *Error.
func (r *Resolver) render(ctx context.Context, ep worker.Endpoint, a asking) (*entry, error) {
	text, err := r.post(ctx, ep, r.cfg.RenderPath, a.whole, maxRendered)
	if err != nil {
		return nil, err
	}
	e, err := parseRendered(text, ep)
	if err == nil && len(e.pictures) != a.media.parts {
		return nil, &Error{Reason: ReasonNotAll} // it is unknown which pictures are missing, and where
	}
	return e, err
}

// features is what vLLM tells of the pictures in a prompt, by the type of medium.
type features struct {
	Hashes       map[string][]string `json:"mm_hashes"`
	Placeholders map[string][]struct {
		Offset int `json:"offset"`
		Length int `json:"length"`
	} `json:"mm_placeholders"`
}

// parseRendered reads {"token_ids":[…],"features":{…}}. The whole answer is refused if
// the hash or the place of a picture is missing.
func parseRendered(text []byte, ep worker.Endpoint) (*entry, error) {
	bad := &Error{Reason: ReasonFailed, Err: fmt.Errorf("%s: expected token ids and the hashes and places of pictures", ep)}
	ids, ok := openai.FindValue(text, "token_ids")
	if !ok || !json.Valid(text) { // an answer that is cut short would seem to have no pictures
		return nil, bad
	}
	tokens, err := openai.AppendTokenIDs(nil, text, ids)
	if err != nil {
		return nil, bad
	}
	var f features // stays empty if features is null: the prompt has no pictures
	if told, ok := openai.FindValue(text, "features"); ok && json.Unmarshal(told.Of(text), &f) != nil {
		return nil, bad
	}
	e := &entry{tokens: tokens, isl: len(tokens), reason: ReasonRendered}
	e.pictures, ok = f.within(len(tokens))
	if !ok {
		return nil, bad
	}
	return e, nil
}

// within returns the pictures in the order of their places. False means that a place is
// outside the prompt of so many tokens, or that places and hashes do not fit.
func (f *features) within(tokens int) ([]kvindex.Picture, bool) {
	var out []kvindex.Picture
	for kind, hashes := range f.Hashes {
		places := f.Placeholders[kind]
		if len(places) != len(hashes) {
			return nil, false
		}
		for i, p := range places {
			hash, ok := kvindex.HashMMIdentifier(hashes[i])
			if !ok || p.Offset < 0 || p.Length < 1 || p.Length > tokens-p.Offset {
				return nil, false
			}
			out = append(out, kvindex.Picture{Hash: hash, Offset: p.Offset, Length: p.Length})
		}
	}
	slices.SortFunc(out, func(a, b kvindex.Picture) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := 1; i < len(out); i++ {
		if out[i-1].Offset+out[i-1].Length > out[i].Offset {
			return nil, false
		}
	}
	return out, len(f.Hashes) == len(f.Placeholders)
}
