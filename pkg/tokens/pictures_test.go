package tokens

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// seer is an engine that takes pictures. Its token 1 begins a message and 2 ends it. A
// picture is between 100 and 101, as one token 200 for each byte of its content.
type seer struct {
	ep     worker.Endpoint
	marks  bool   // as SGLang: at /tokenize a picture is a single 200
	ahead  bool   // its template puts a message's pictures before its text
	render string // replaces the answer of /render
	status int    // status of /render; 0: 403, as vLLM without --enable-scale-out
	expand int    // status of /tokenize; 0: 200
	hangs  bool   // does not answer a question about pictures until the caller has gone

	mu    sync.Mutex
	at    map[string]string // the pictures by their addresses
	asked []string          // the paths of the questions
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
	tokens, features := s.tokens(body, s.marks && r.URL.Path == "/tokenize")
	if r.URL.Path != "/tokenize" {
		tokens, features = cutAs(body, tokens, features)
	}
	s.mu.Unlock()
	switch tokenize := r.URL.Path == "/tokenize"; {
	case s.hangs && features != nil:
		<-r.Context().Done()
	case tokenize && s.expand != 0:
		w.WriteHeader(s.expand)
	case tokenize:
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "tokens": tokens})
	case s.status != http.StatusOK:
		w.WriteHeader(cmp.Or(s.status, http.StatusForbidden))
	case s.render != "":
		_, _ = w.Write([]byte(s.render))
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"request_id": "r", "token_ids": tokens, "features": features})
	}
}

// load returns the content of the picture at a url: that of at, else the url itself.
func (s *seer) load(url string) string {
	if _, data, ok := strings.Cut(url, "data:,"); ok {
		return data
	}
	if there, ok := s.at[url]; ok {
		return there
	}
	return url
}

func (s *seer) tokens(body map[string]json.RawMessage, marks bool) (out []uint32, told any) {
	if body["prompt"] != nil {
		return []uint32{1}, nil
	}
	var list []struct {
		Content json.RawMessage
	}
	_ = json.Unmarshal(body["messages"], &list)
	hashes, places := []string{}, []map[string]int{}
	see := func(url string) {
		content := s.load(url)
		n := len(content)
		if marks {
			n = 1
		}
		out = append(out, 100)
		hashes = append(hashes, digestOf(content+string(body["mm_processor_kwargs"])))
		places = append(places, map[string]int{"offset": len(out), "length": n})
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

// cutAs returns what is left of a prompt after the cut that its request asks for.
func cutAs(body map[string]json.RawMessage, tokens []uint32, told any) ([]uint32, any) {
	var n int
	if json.Unmarshal(body["truncate_prompt_tokens"], &n) != nil || n < 0 || n > len(tokens) {
		return tokens, told
	}
	from := 0
	if string(body["truncation_side"]) == `"left"` {
		from = len(tokens) - n
	}
	f, _ := told.(map[string]any)
	hashes, places := []string{}, []map[string]int{}
	for i, p := range f["mm_placeholders"].(map[string]any)["image"].([]map[string]int) {
		if offset := p["offset"] - from; offset >= 0 && offset+p["length"] <= n {
			hashes = append(hashes, f["mm_hashes"].(map[string]any)["image"].([]string)[i])
			places = append(places, map[string]int{"offset": offset, "length": p["length"]})
		}
	}
	return tokens[from : from+n], map[string]any{"mm_hashes": map[string]any{"image": hashes}, "mm_placeholders": map[string]any{"image": places}}
}

// digestOf is the seer's name of a picture.
func digestOf(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// hashOf is the hash of a picture's name, as block hashes have it.
func hashOf(t testing.TB, content string) uint64 {
	t.Helper()
	h, ok := kvindex.HashMMIdentifier(digestOf(content))
	require.True(t, ok)
	return h
}

func picture(url string) string {
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q}}`, url)
}

// looking is a conversation whose second message has these parts.
func looking(t testing.TB, parts ...string) Query {
	t.Helper()
	return query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":[`+strings.Join(parts, ",")+`]}]}`)
}

const (
	question = `{"type":"text","text":"what is it?"}`
	sound    = `{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}`
)

func (s *seer) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.asked...)
}

func TestAPromptWithPicturesIsHashedWithWhatAnEngineTellsOfThem(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{status: http.StatusOK})
	r := newResolver(t, patient)
	ask := func(parts ...string) Prompt {
		q := looking(t, parts...)
		q.Renders = true
		p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
		require.NoError(t, err)
		return p
	}
	p := ask(question, picture("data:,seven!!"), picture("data:,another"), question)
	require.Equal(t, []string{"/v1/chat/completions/render"}, e.paths())
	require.Equal(t, `"none"`, string(e.sent[0]["mm_payload"]))
	require.Equal(t, `"m"`, string(e.sent[0]["model"]))

	first := 10 + 1 + 11 + 1
	second := first + 7 + 2
	want := func(one, other string) []kvindex.LocalHash {
		return kvindex.AppendPictureHashes(nil, p.Tokens, []kvindex.Picture{
			{Hash: hashOf(t, one), Offset: first, Length: 7}, {Hash: hashOf(t, other), Offset: second, Length: 7},
		}, 4, false, kvindex.Salt{}.Seed())
	}
	require.Equal(t, want("seven!!", "another"), p.Hashes)
	require.NotEqual(t, kvindex.AppendLocalHashes(nil, p.Tokens, 4, kvindex.Salt{}.Seed()), p.Hashes)
	require.Equal(t, len(p.Tokens), p.ISLTokens)
	require.Equal(t, FromEngine, p.Source)
	require.Equal(t, ReasonRendered, p.Reason)
	require.False(t, p.Partial)
	require.False(t, p.Estimated)

	exchanged := ask(question, picture("data:,another"), picture("data:,seven!!"), question)
	require.Equal(t, p.Tokens, exchanged.Tokens, "two of one size")
	require.Equal(t, want("another", "seven!!"), exchanged.Hashes)
	require.Equal(t, p.Hashes[:first/4], exchanged.Hashes[:first/4])
	require.NotEqual(t, p.Hashes[first/4], exchanged.Hashes[first/4])

	asked := len(e.paths())
	require.Equal(t, p.Hashes, ask(question, picture("data:,seven!!"), picture("data:,another"), question).Hashes)
	require.Len(t, e.paths(), asked, "what is in the request is what it was")
	q := looking(t, question, picture("data:,seven!!"), picture("data:,another"), question)
	q.Renders = true
	again, ok := r.Fast(q, new(Scratch))
	require.True(t, ok)
	require.Equal(t, p.Hashes, again.Hashes)
	require.True(t, again.Cached)
	require.Equal(t, ReasonRendered, again.Reason)
}

// The address may have another picture by the next request.
func TestAPictureAtAnAddressIsAskedAboutEachTime(t *testing.T) {
	t.Parallel()
	const address = "http://pictures/1"
	e := newSeer(t, &seer{status: http.StatusOK, at: map[string]string{address: "a cat"}})
	r := newResolver(t, patient)
	ask := func() Prompt {
		q := looking(t, question, picture("data:,within"), picture(address))
		q.Renders = true
		_, known := r.Fast(q, new(Scratch))
		require.False(t, known)
		p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
		require.NoError(t, err)
		require.Equal(t, ReasonRendered, p.Reason)
		return p
	}
	cat := ask()
	require.Equal(t, cat.Hashes, ask().Hashes)
	e.mu.Lock()
	e.at[address] = "a dog" // of the same size as the cat
	e.mu.Unlock()
	dog := ask()
	require.Equal(t, cat.Tokens, dog.Tokens)
	require.NotEqual(t, cat.Hashes, dog.Hashes)
	require.Len(t, e.paths(), 3)
}

// The cached answer must depend on the same members.
func TestAQuestionAboutPicturesHasWhatTheirNamesDependOn(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{status: http.StatusOK})
	r := newResolver(t, patient)
	var seen [][]kvindex.LocalHash
	for i, more := range []string{"", `,"mm_processor_kwargs":{"do_resize":false}`, `,"mm_processor_kwargs":{"do_resize":true}`,
		`,"media_io_kwargs":{"image":{}}`, `,"chat_template":"x"`, `,"documents":[]`, `,"add_special_tokens":true`} {
		q := query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[`+picture("data:,a picture")+`]}]`+more+`}`)
		q.Renders = true
		p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
		require.NoError(t, err)
		require.Len(t, e.paths(), i+1, "each is another prompt: %s", more)
		for _, other := range seen[:min(i, 3)] {
			if strings.Contains(more, "mm_processor_kwargs") {
				require.NotEqual(t, other, p.Hashes, more)
			}
		}
		seen = append(seen, p.Hashes)
		if more == "" {
			continue
		}
		var want map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte("{"+more[1:]+"}"), &want))
		for k, v := range want {
			require.Equal(t, string(v), string(e.sent[i][k]))
		}
	}
}

func TestWhereNoEngineTellsOfPicturesWhatStandsBeforeThemIsKnown(t *testing.T) {
	t.Parallel()
	const header = 1 + 8 + 1 // tokens of the first message
	for name, c := range map[string]struct {
		seer    *seer
		renders bool
		parts   []string
		known   int // tokens known
		asked   int
	}{
		"vLLM that does not render":            {&seer{}, true, []string{question, picture("seven!!")}, header + 1 + 11, 3},
		"SGLang":                               {&seer{marks: true}, false, []string{question, picture("seven!!"), question}, header + 1 + 11, 2},
		"a picture before its question":        {&seer{marks: true}, false, []string{picture("seven!!"), question}, header, 2},
		"a template that puts pictures before": {&seer{marks: true, ahead: true}, false, []string{question, picture("seven!!")}, header + 1, 2},
		"an engine without the page":           {&seer{status: http.StatusNotFound}, true, []string{question, picture("seven!!")}, header + 1 + 11, 3},
		"a picture, and a sound behind it":     {&seer{status: http.StatusOK}, true, []string{question, picture("seven!!"), sound}, header + 1 + 11, 2},
		"a part that is a text and a picture":  {&seer{status: http.StatusOK}, true, []string{question, `{"type":"text","text":"seven!!","image_url":{"url":"seven!!"}}`}, header + 1 + 11, 2},
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
			whole, _ := e.tokens(map[string]json.RawMessage{"messages": q.Request.Value(openai.Messages).Of(q.Body)}, c.seer.marks)
			guess := 0
			if !c.renders {
				guess = mediaTokens
			}
			require.Equal(t, len(whole)+guess, p.ISLTokens)

			again, ok := r.Fast(q, new(Scratch))
			require.True(t, ok)
			require.Equal(t, p.Hashes, again.Hashes)
			require.True(t, again.Partial)
			kept := r.cache.get(q.key(q.hashing())).until
			require.Equal(t, c.renders, !kept.IsZero(), "where more may be told it is kept for a while")
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

// A senseless answer sets its engine aside. An answer without one of the pictures does
// not: the prompt may be the cause.
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
		answer   string
		pictures int
		want     Reason
	}{
		"one":                        {answer(9, `"aa"`, at(2, 3)), 1, ReasonRendered},
		"up to the end":              {answer(9, `"aa"`, at(2, 7)), 1, ReasonRendered},
		"two, the later one first":   {answer(9, `"aa","bb"`, at(5, 2)+","+at(2, 3)), 2, ReasonRendered},
		"a name that is no hash":     {answer(9, `"a picture of ours: ü"`, at(2, 3)), 1, ReasonRendered},
		"a name of a megabyte":       {answer(9, `"`+strings.Repeat("x", 1<<20)+`"`, at(2, 3)), 1, ReasonRendered},
		"10,000 pictures":            {answer(20_000, list(10_000, func(int) string { return `"x"` }), list(10_000, func(i int) string { return at(2*i, 2) })), 64, ReasonNotAll},
		"none":                       {`{"token_ids":[7,7,7,7],"features":null}`, 1, ReasonNotAll},
		"nothing of them":            {`{"token_ids":[7,7,7,7]}`, 1, ReasonNotAll},
		"one of two":                 {answer(9, `"aa"`, at(2, 3)), 2, ReasonNotAll},
		"two of one":                 {answer(9, `"aa","bb"`, at(2, 3)+","+at(5, 2)), 1, ReasonNotAll},
		"no name":                    {answer(9, `""`, at(2, 3)), 1, ReasonFailed},
		"a name that is a number":    {answer(9, `7`, at(2, 3)), 1, ReasonFailed},
		"fewer names than places":    {answer(9, `"aa"`, at(2, 3)+","+at(5, 2)), 1, ReasonFailed},
		"more names than places":     {answer(9, `"aa","bb"`, at(2, 3)), 1, ReasonFailed},
		"before the prompt":          {answer(9, `"aa"`, at(-1, 3)), 1, ReasonFailed},
		"beyond its end":             {answer(9, `"aa"`, at(7, 3)), 1, ReasonFailed},
		"of a length that overflows": {answer(9, `"aa"`, at(2, 1<<62)), 1, ReasonFailed},
		"no tokens at all":           {answer(9, `"aa"`, at(2, 0)), 1, ReasonFailed},
		"one within another":         {answer(9, `"aa","bb"`, at(2, 4)+","+at(5, 2)), 2, ReasonFailed},
		"10,000 in one place":        {answer(9, list(10_000, func(int) string { return `"x"` }), list(10_000, func(int) string { return at(2, 1) })), 64, ReasonFailed},
		"places of nothing":          {`{"token_ids":[7,7],"features":{"mm_hashes":{},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}}`, 1, ReasonFailed},
		"a list":                     {`{"token_ids":[7,7],"features":[]}`, 1, ReasonFailed},
		"ids that are none":          {`{"token_ids":[-7],"features":null}`, 1, ReasonFailed},
		"no ids":                     {`{"features":null}`, 1, ReasonFailed},
		"no JSON":                    {`{"token_ids":[7,7],"features":{`, 1, ReasonFailed},
		"more than is read":          {`{"kwargs":"` + strings.Repeat("x", maxRendered) + `","token_ids":[7],"features":null}`, 1, ReasonTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSeer(t, &seer{status: http.StatusOK, render: c.answer})
			q := looking(t, append([]string{question}, slices.Repeat([]string{picture("data:,seven!!")}, c.pictures)...)...)
			q.Renders = true
			r := newResolver(t, patient)
			p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
			require.Equal(t, c.want == ReasonFailed, len(r.renderers.byEndpoint) == 1, "who makes no sense is set aside")
			require.Empty(t, r.expanders.byEndpoint)
			require.Len(t, e.paths(), 1)
			if c.want != ReasonRendered {
				requireReason(t, c.want, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, ReasonRendered, p.Reason)
			require.False(t, p.Partial)
		})
	}
}

// The prompt is charged if the template refuses it, if the answer has no end, or if a
// picture cannot be loaded, or not in time. An engine is set aside if it fails by itself,
// or answers late although the request has the pictures. It is then asked about texts
// only.
func TestWhatIsThePromptsFaultSetsNobodyAside(t *testing.T) {
	t.Parallel()
	const within, away = "data:,seven!!", "http://pictures/1"
	large := `{"x":"` + strings.Repeat("x", maxRendered) + `"}`
	for name, c := range map[string]struct {
		seer    *seer
		address string
		renders bool
		want    Reason
		aside   bool
	}{
		"the template refuses it":                    {&seer{status: http.StatusBadRequest}, within, true, ReasonRefused, false},
		"a picture is not there":                     {&seer{status: http.StatusUnprocessableEntity}, away, true, ReasonRefused, false},
		"a picture's server fails":                   {&seer{status: http.StatusInternalServerError}, away, true, ReasonFailed, false},
		"a picture's server is slow":                 {&seer{hangs: true}, away, true, ReasonSlow, false},
		"the answer is large":                        {&seer{status: http.StatusOK, render: large}, within, true, ReasonTooLarge, false},
		"an engine fails":                            {&seer{status: http.StatusInternalServerError}, within, true, ReasonFailed, true},
		"an engine is slow":                          {&seer{hangs: true}, within, true, ReasonSlow, true},
		"the template refuses it where none renders": {&seer{expand: http.StatusBadRequest}, within, true, ReasonRefused, false},
		"an engine that loads none fails":            {&seer{expand: http.StatusInternalServerError}, away, false, ReasonFailed, true},
		"an engine that loads none is slow":          {&seer{hangs: true}, away, false, ReasonSlow, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSeer(t, c.seer)
			cfg := patient
			cfg.SetAside = time.Hour
			if c.seer.hangs {
				cfg.Wait = 20 * time.Millisecond
			}
			r := newResolver(t, cfg)
			for i := range strikesOut {
				q := looking(t, fmt.Sprintf(`{"type":"text","text":"what is %d?"}`, i), picture(c.address))
				q.Renders = c.renders
				p := r.Resolve(t.Context(), q, []worker.Endpoint{e.ep}, new(Scratch))
				if i == 0 || !c.aside {
					require.Equal(t, Estimate, p.Source)
					require.Equal(t, c.want, p.Reason)
				}
			}
			of := r.expanders
			if c.renders && c.seer.expand == 0 {
				of = r.renderers
				require.Empty(t, r.expanders.byEndpoint)
			}
			aside := of.byEndpoint[e.ep]
			require.Equal(t, c.aside, aside != nil && aside.last > 0)
			require.Zero(t, r.copied)
		})
	}
}

// The first engine's question has taken a part of the time.
func TestWhoIsAskedSecondIsNotBlamedForItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		srv := &httptest.Server{Listener: p, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.Path != "/tokenize" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			<-r.Context().Done()
		})}}
		srv.Start()
		t.Cleanup(srv.Close)
		ep, err := worker.ParseEndpoint(p.Addr().String())
		require.NoError(t, err)
		r := newResolver(t, Config{SetAside: time.Hour, Transport: &http.Transport{DialContext: p.DialContext}})
		q := looking(t, question, picture("data:,seven!!"))
		q.Renders = true
		ask := func() {
			_, err := r.Engine(t.Context(), q, []worker.Endpoint{ep})
			requireReason(t, ReasonSlow, err)
			r.running.Wait()
		}
		ask()
		require.Len(t, r.renderers.byEndpoint, 1)
		require.Empty(t, r.expanders.byEndpoint)
		ask()
		require.Equal(t, 1, r.expanders.byEndpoint[ep].strikes, "it was the first to be asked")
	})
}

// Running questions copy no more bytes of prompts than MaxInFlight of the longest prompts
// have.
func TestCopiesOfPromptsAreBounded(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{hangs: true})
	ctx, cancel := context.WithCancel(t.Context())
	r := newResolver(t, Config{Wait: time.Minute, MaxInFlight: 2, MaxTokenizeBytes: 10_000})
	long := func(i int) Query {
		return looking(t, fmt.Sprintf(`{"type":"text","text":"%d%s"}`, i, strings.Repeat("x", 3000)), picture("data:,seven!!"))
	}
	errs := make(chan error, 2)
	for i := range 2 {
		q := long(i)
		go func() {
			_, err := r.Engine(ctx, q, []worker.Endpoint{e.ep})
			errs <- err
		}()
	}
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.flights) == 2
	}, 20*time.Second, time.Millisecond)
	_, err := r.Engine(t.Context(), long(2), []worker.Endpoint{e.ep})
	requireReason(t, ReasonBusy, err)
	_, err = r.Engine(t.Context(), text(t, strings.Repeat("x", 9000)), []worker.Endpoint{e.ep})
	requireReason(t, ReasonBusy, err)
	cancel()
	requireReason(t, ReasonCancelled, <-errs)
	requireReason(t, ReasonCancelled, <-errs)
	r.running.Wait()
	require.Zero(t, r.copied)
	_, err = r.Engine(t.Context(), text(t, strings.Repeat("x", 9000)), []worker.Endpoint{e.ep})
	require.NoError(t, err)
	require.Zero(t, r.copied)
}

// Parts of a body that a question does not need are not counted.
func TestAQuestionTakesWhatIsCountedOfIt(t *testing.T) {
	t.Parallel()
	r := newResolver(t, Config{})
	other := `,"other":"` + strings.Repeat("x", 1<<20) + `"}`
	for name, q := range map[string]Query{
		"a text":     query(t, openai.Completions, `{"model":"m","prompt":"what is it?"`+other),
		"many texts": query(t, openai.Completions, `{"model":"m","prompt":["what is it?"`+strings.Repeat(`,"and that?"`, maxPrompts-1)+`]`+other),
		"messages":   query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"what is it?"}]`+other),
		"a picture":  query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[`+question+`,`+picture("data:,seven!!")+`]}]`+other),
		"all that they depend on": query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[`+question+`,`+picture("data:,seven!!")+`]}]`+
			`,"tools":[],"tool_choice":{},"chat_template_kwargs":{},"reasoning_effort":"","continue_final_message":true,"add_generation_prompt":true,"chat_template":"",`+
			`"documents":[],"add_special_tokens":true,"mm_processor_kwargs":{},"media_io_kwargs":{}`+other),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q.Renders = true
			q.Key.Model = strings.Repeat("\x01", 100) // each byte is written as six
			m := r.mediaOf(&q)
			a := questions(&q, m)
			sum := cap(a.whole) + cap(a.before)
			for _, text := range a.texts {
				sum += cap(text)
			}
			require.Positive(t, sum)
			require.Less(t, sum, 64<<10)
			require.LessOrEqual(t, sum, q.copied(m))
		})
	}
}

// Questions about pictures do not take the places of those about texts.
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
	q := looking(t, question, picture("data:,seven!!"))
	q.Renders = true
	for range strikesOut {
		_, err = r.Engine(t.Context(), q, []worker.Endpoint{ep})
		requireReason(t, ReasonSlow, err)
	}
	require.Empty(t, r.asides.byEndpoint)
	require.Len(t, r.renderers.byEndpoint, 1)
	busy := newResolver(t, Config{Wait: patient.Wait, MaxInFlight: 1})
	busy.pictureSlots <- struct{}{} // one question is running
	_, err = busy.Engine(t.Context(), text(t, "abcd"), []worker.Endpoint{ep})
	require.NoError(t, err)
}

// Two prompts with the same picture are expected to share its blocks.
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

// After the last block nothing more is hashed, however much the caller names: neither the
// rest of a picture nor later parts.
func TestAnEstimateEndsWhereItHasBlocksEnough(t *testing.T) {
	t.Parallel()
	var e estimator
	e.reset(64, 1<<40, 4, 0, false) // hashing all of such a picture would take days
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1_000_000 {
			e.visit(openai.PieceMedia, nil)
			e.visit(openai.PieceText, nil)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.Fail(t, "it goes on")
	}
	require.Len(t, e.hashes, 4)
	require.Less(t, len(e.carry), 64)
	require.Equal(t, 1_000_000*mediaTokens, e.tokens, "all are counted")
}
