package tokens

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// seer is an engine that takes pictures: 1 begins a message and 2 ends it, 100 and 101
// stand around a picture, and for the picture itself so many 200 as its address is long.
type seer struct {
	ep     worker.Endpoint
	marks  bool   // as SGLang: /tokenize has one 200 for a picture
	ahead  bool   // its template puts a message's pictures before its text
	render string // the answer of render, in place of its own
	status int    // of render; 0: as vLLM without --enable-scale-out, for which it is 403

	mu    sync.Mutex
	asked []string // the paths
	sent  []map[string]json.RawMessage
}

func newSeer(t *testing.T, s *seer) *seer {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(srv.Close)
	var err error
	s.ep, err = worker.ParseEndpoint(srv.Listener.Addr().String())
	require.NoError(t, err)
	return s
}

func (s *seer) serve(w http.ResponseWriter, r *http.Request) {
	var body map[string]json.RawMessage
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.asked, s.sent = append(s.asked, r.URL.Path), append(s.sent, body)
	s.mu.Unlock()
	tokens, features := s.tokens(body["messages"], s.marks && r.URL.Path == "/tokenize")
	switch {
	case r.URL.Path == "/tokenize":
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "tokens": tokens})
	case s.status != http.StatusOK:
		w.WriteHeader(max(s.status, http.StatusForbidden))
	case s.render != "":
		_, _ = w.Write([]byte(s.render))
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"request_id": "r", "token_ids": tokens, "features": features})
	}
}

func (s *seer) tokens(messages []byte, marks bool) (out []uint32, told any) {
	var list []struct {
		Content json.RawMessage
	}
	_ = json.Unmarshal(messages, &list)
	hashes, places := []string{}, []map[string]int{}
	see := func(url string) {
		n := len(url)
		if marks {
			n = 1
		}
		out = append(out, 100)
		hashes, places = append(hashes, digestOf(url)), append(places, map[string]int{"offset": len(out), "length": n})
		for range n {
			out = append(out, 200)
		}
		out = append(out, 101)
	}
	for _, m := range list {
		var text string
		var parts []struct {
			Text  string
			Image struct{ URL string } `json:"image_url"`
		}
		out = append(out, 1)
		if json.Unmarshal(m.Content, &text) != nil {
			_ = json.Unmarshal(m.Content, &parts)
		}
		for _, p := range parts {
			if s.ahead && p.Image.URL != "" {
				see(p.Image.URL)
			}
		}
		for _, b := range []byte(text) {
			out = append(out, uint32(b))
		}
		for _, p := range parts {
			for _, b := range []byte(p.Text) {
				out = append(out, uint32(b))
			}
			if !s.ahead && p.Image.URL != "" {
				see(p.Image.URL)
			}
		}
		out = append(out, 2)
	}
	if len(hashes) == 0 {
		return out, nil
	}
	return out, map[string]any{"mm_hashes": map[string]any{"image": hashes}, "mm_placeholders": map[string]any{"image": places}, "kwargs_data": nil}
}

// digestOf is what the seer calls a picture.
func digestOf(url string) string { return fmt.Sprintf("%064x", len(url)) }

func picture(url string) string {
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q}}`, url)
}

// looking is a conversation whose second message has the parts.
func looking(t testing.TB, parts ...string) Query {
	t.Helper()
	return query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":[`+strings.Join(parts, ",")+`]}]}`)
}

const question = `{"type":"text","text":"what is it?"}`

func (s *seer) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.asked...)
}

func TestAPromptWithPicturesIsHashedWithWhatAnEngineTellsOfThem(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{status: http.StatusOK})
	r := newResolver(t, patient)
	q := looking(t, question, picture("seven!!"), picture("five!"), question)
	q.Renders = true
	p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
	require.NoError(t, err)
	require.Equal(t, []string{"/v1/chat/completions/render"}, e.paths())
	require.Equal(t, `"none"`, string(e.sent[0]["mm_payload"]))
	require.Equal(t, `"m"`, string(e.sent[0]["model"]))

	first, second := 10+1+11+1, 10+1+11+1+7+2
	want := kvindex.AppendPictureHashes(nil, p.Tokens, []kvindex.Picture{
		{Hash: 0, Offset: first, Length: 7}, {Hash: 0, Offset: second, Length: 5},
	}, 4, false, kvindex.Salt{}.Seed())
	require.Equal(t, want, p.Hashes)
	require.NotEqual(t, kvindex.AppendLocalHashes(nil, p.Tokens, 4, kvindex.Salt{}.Seed()), p.Hashes)
	require.Equal(t, len(p.Tokens), p.ISLTokens)
	require.Equal(t, FromEngine, p.Source)
	require.Equal(t, ReasonRendered, p.Reason)
	require.False(t, p.Partial)
	require.False(t, p.Estimated)

	again, ok := r.Fast(q, new(Scratch))
	require.True(t, ok)
	require.Equal(t, p.Hashes, again.Hashes)
	require.True(t, again.Cached)
	require.Equal(t, ReasonRendered, again.Reason)
}

func TestWhereNoEngineTellsOfPicturesWhatStandsBeforeThemIsKnown(t *testing.T) {
	t.Parallel()
	const header = 1 + 8 + 1 // the first message
	for name, c := range map[string]struct {
		seer    *seer
		renders bool
		parts   []string
		known   int // tokens
		asked   int
	}{
		"vLLM that does not render":            {&seer{}, true, []string{question, picture("seven!!")}, header + 1 + 11, 3},
		"SGLang":                               {&seer{marks: true}, false, []string{question, picture("seven!!"), question}, header + 1 + 11, 2},
		"a picture before its question":        {&seer{marks: true}, false, []string{picture("seven!!"), question}, header, 2},
		"a template that puts pictures before": {&seer{marks: true, ahead: true}, false, []string{question, picture("seven!!")}, header + 1, 2},
		"an engine without the page":           {&seer{status: http.StatusNotFound}, true, []string{question, picture("seven!!")}, header + 1 + 11, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSeer(t, c.seer)
			r := newResolver(t, patient)
			q := looking(t, c.parts...)
			q.Renders = c.renders
			p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
			require.NoError(t, err)
			require.Len(t, e.paths(), c.asked)
			require.Len(t, p.Tokens, c.known)
			require.Equal(t, kvindex.AppendLocalHashes(nil, p.Tokens, 4, kvindex.Salt{}.Seed()), p.Hashes)
			require.True(t, p.Partial)
			require.False(t, p.Estimated)
			require.Equal(t, FromEngine, p.Source)
			require.Equal(t, ReasonBefore, p.Reason)
			whole, _ := e.tokens(q.Request.Value(openai.Messages).Of(q.Body), c.seer.marks)
			guess := 0
			if !c.renders {
				guess = mediaTokens
			}
			require.Equal(t, len(whole)+guess, p.ISLTokens)

			_, err = r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
			require.NoError(t, err)
			if c.renders {
				require.Len(t, e.paths(), c.asked+2, "more might be told by now, but who does not tell is not asked at once")
			} else {
				require.Len(t, e.paths(), c.asked)
			}
		})
	}
}

func TestOfAPromptThatBeginsWithAPictureNothingIsAsked(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{marks: true})
	r := newResolver(t, patient)
	q := query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[`+picture("x")+`,`+question+`]}]}`)
	_, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
	requireReason(t, ReasonMedia, err)
	require.Empty(t, e.paths())
	require.Empty(t, r.expanders.byEndpoint, "nobody is blamed")

	q = looking(t, question, picture("x"))
	r = newResolver(t, Config{Pictures: EstimatePictures})
	_, err = r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
	requireReason(t, ReasonMedia, err)
	many := make([]string, maxPictures+1)
	for i := range many {
		many[i] = picture("x")
	}
	_, err = newResolver(t, patient).Engine(t.Context(), looking(t, many...), []worker.Endpoint{e.ep})
	requireReason(t, ReasonMedia, err)
	require.Empty(t, e.paths())
}

// TestWhatAnEngineTellsOfPicturesIsBelievedAsAWholeOrNotAtAll: then the part before the
// first is asked about.
func TestWhatAnEngineTellsOfPicturesIsBelievedAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	list := func(n int, one func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = one(i)
		}
		return strings.Join(all, ",")
	}
	answer := func(tokens int, hashes, places string) string {
		return `{"token_ids":[` + list(tokens, func(int) string { return "7" }) + `],"features":{"mm_hashes":{"image":[` + hashes + `]},"mm_placeholders":{"image":[` + places + `]}}}`
	}
	at := func(offset, length int) string { return fmt.Sprintf(`{"offset":%d,"length":%d}`, offset, length) }
	for name, c := range map[string]struct {
		answer string
		ok     bool
	}{
		"one":                        {answer(9, `"aa"`, at(2, 3)), true},
		"up to the end":              {answer(9, `"aa"`, at(2, 7)), true},
		"two, the later one first":   {answer(9, `"aa","bb"`, at(5, 2)+","+at(2, 3)), true},
		"a name that is no hash":     {answer(9, `"a picture of ours: ü"`, at(2, 3)), true},
		"a name of a megabyte":       {answer(9, `"`+strings.Repeat("x", 1<<20)+`"`, at(2, 3)), true},
		"10,000 pictures":            {answer(20_000, list(10_000, func(int) string { return `"x"` }), list(10_000, func(i int) string { return at(2*i, 2) })), true},
		"none, as of what is heard":  {`{"token_ids":[7,7,7,7],"features":null}`, true},
		"nothing of them":            {`{"token_ids":[7,7,7,7]}`, true},
		"no name":                    {answer(9, `""`, at(2, 3)), false},
		"a name that is a number":    {answer(9, `7`, at(2, 3)), false},
		"fewer names than places":    {answer(9, `"aa"`, at(2, 3)+","+at(5, 2)), false},
		"more names than places":     {answer(9, `"aa","bb"`, at(2, 3)), false},
		"before the prompt":          {answer(9, `"aa"`, at(-1, 3)), false},
		"beyond its end":             {answer(9, `"aa"`, at(7, 3)), false},
		"of a length that overflows": {answer(9, `"aa"`, at(2, 1<<62)), false},
		"no tokens at all":           {answer(9, `"aa"`, at(2, 0)), false},
		"one within another":         {answer(9, `"aa","bb"`, at(2, 4)+","+at(5, 2)), false},
		"10,000 in one place":        {answer(9, list(10_000, func(int) string { return `"x"` }), list(10_000, func(int) string { return at(2, 1) })), false},
		"places of nothing":          {`{"token_ids":[7,7],"features":{"mm_hashes":{},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}}`, false},
		"a list":                     {`{"token_ids":[7,7],"features":[]}`, false},
		"ids that are none":          {`{"token_ids":[-7],"features":null}`, false},
		"no ids":                     {`{"features":null}`, false},
		"no JSON":                    {`{"token_ids":[7,7],"features":{`, false},
		"more than is read":          {`{"kwargs":"` + strings.Repeat("x", maxRendered) + `","token_ids":[7],"features":null}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSeer(t, &seer{status: http.StatusOK, render: c.answer})
			q := looking(t, question, picture("seven!!"))
			q.Renders = true
			p, err := newResolver(t, patient).Engine(t.Context(), q, []worker.Endpoint{e.ep})
			require.NoError(t, err)
			require.Equal(t, c.ok, p.Reason == ReasonRendered, p.Reason)
			require.Equal(t, !c.ok, p.Partial)
			require.LessOrEqual(t, len(p.Hashes), 5000)
		})
	}
}

// TestAnEngineThatIsSlowWithPicturesIsStillAskedAboutTexts, and pictures take no text's turn.
func TestAnEngineThatIsSlowWithPicturesIsStillAskedAboutTexts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		if strings.Contains(string(body["messages"]), "image_url") {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return
		}
		_, _ = w.Write([]byte(`{"tokens":[1,2,3,4]}`))
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(release) })
	ep, err := worker.ParseEndpoint(srv.Listener.Addr().String())
	require.NoError(t, err)
	r := newResolver(t, Config{MaxInFlight: 1})
	q := looking(t, question, picture("seven!!"))
	q.Renders = true
	for range strikesOut {
		_, err = r.Engine(t.Context(), q, []worker.Endpoint{ep})
		requireReason(t, ReasonSlow, err)
	}
	require.Empty(t, r.asides.byEndpoint)
	require.Len(t, r.renderers.byEndpoint, 1)
	busy := newResolver(t, Config{Wait: patient.Wait, MaxInFlight: 1})
	busy.pictureSlots <- struct{}{} // one is under way
	_, err = busy.Engine(t.Context(), text(t, "abcd"), []worker.Endpoint{ep})
	require.NoError(t, err)
}

// TestAPictureCountsInTheEstimateForWhatItIsTakenToBe: a prompt that has the same one is
// expected to be held that far.
func TestAPictureCountsInTheEstimateForWhatItIsTakenToBe(t *testing.T) {
	t.Parallel()
	r := newResolver(t, Config{})
	hashes := func(url string) []kvindex.LocalHash {
		q := looking(t, picture(url))
		return append([]kvindex.LocalHash{}, r.Estimate(q, new(Scratch), ReasonMedia).Hashes...)
	}
	one := hashes("one")
	require.Greater(t, len(one), mediaTokens/4/estimateStride-1)
	require.Equal(t, one, hashes("one"))
	require.NotEqual(t, one[1:], hashes("two")[1:])
}
