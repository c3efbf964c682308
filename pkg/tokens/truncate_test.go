package tokens

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// cut is a conversation for vLLM whose request also has the members of more.
func cut(t testing.TB, more string, parts ...string) Query {
	t.Helper()
	q := query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[`+strings.Join(parts, ",")+`]}]`+more+`}`)
	q.Renders = true
	return q
}

// The engine that renders a prompt is told to what length the request cuts it. The answer
// is cached for such requests only.
func TestAPromptThatIsCutIsHashedAsItsEngineCutsIt(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{status: http.StatusOK})
	r := newResolver(t, patient)
	ask := func(more string) Prompt {
		p, err := r.Engine(t.Context(), cut(t, more, question, picture("data:,seven!!"), question), []worker.Endpoint{e.ep})
		require.NoError(t, err)
		require.Equal(t, ReasonRendered, p.Reason)
		return p
	}
	whole := ask("")
	require.Len(t, whole.Tokens, 1+11+1+7+1+11+1)
	for i, c := range []struct {
		more     string
		from, to int
	}{
		{`,"truncate_prompt_tokens":25,"truncation_side":"left"`, 8, 33},
		{`,"truncate_prompt_tokens":25,"truncation_side":"right"`, 0, 25},
		{`,"truncate_prompt_tokens":26,"truncation_side":"right","max_tokens":7,"max_completion_tokens":5`, 0, 26},
		{`,"truncate_prompt_tokens":null,"truncation_side":"right"`, 0, 33},
	} {
		p := ask(c.more)
		require.Equal(t, whole.Tokens[c.from:c.to], p.Tokens)
		require.Equal(t, c.to-c.from, p.ISLTokens)
		require.Equal(t, kvindex.AppendPictureHashes(nil, p.Tokens,
			[]kvindex.Picture{{Hash: hashOf(t, "seven!!"), Offset: 13 - c.from, Length: 7}}, 4, false, kvindex.Salt{}.Seed()), p.Hashes)
		if i < 3 {
			require.Len(t, e.paths(), i+2, "each is another prompt")
		} else {
			require.Len(t, e.paths(), i+1, "it is as if nothing were said")
		}
		require.Equal(t, p.Hashes, ask(c.more).Hashes)
	}
	for _, f := range []string{"truncate_prompt_tokens", "truncation_side", "max_tokens", "max_completion_tokens"} {
		require.Contains(t, e.sent[3], f)
	}
	_, err := r.Engine(t.Context(), cut(t, `,"truncate_prompt_tokens":15,"truncation_side":"right"`, question, picture("data:,seven!!")), []worker.Endpoint{e.ep})
	requireReason(t, ReasonNotAll, err)
}

// A tokenizer does not cut. Its answer is used only if the engine does not cut the prompt
// either.
func TestOfATokenizerNoPromptIsBelievedThatIsCut(t *testing.T) {
	t.Parallel()
	const tokens = 1 + 11 + 1 // in the question
	for name, c := range map[string]struct {
		more  string
		most  int
		other bool // not vLLM
		known bool
	}{
		"to less":                        {`"truncate_prompt_tokens":12`, 0, false, false},
		"to as much":                     {`"truncate_prompt_tokens":13`, 0, false, true},
		"to nothing":                     {`"truncate_prompt_tokens":0`, 0, false, false},
		"nothing is said":                {`"truncate_prompt_tokens":null,"truncation_side":"left"`, 0, false, true},
		"by an engine that cuts nothing": {`"truncate_prompt_tokens":12`, 0, true, true},
		"to what fits":                   {`"truncate_prompt_tokens":-1,"max_tokens":20`, tokens + 20, false, true},
		"to less than it has":            {`"truncate_prompt_tokens":-1,"max_tokens":21`, tokens + 20, false, false},
		"beside an answer of any length": {`"truncate_prompt_tokens":-1`, tokens + 16, false, true},
		"beside a long answer":           {`"truncate_prompt_tokens":-1,"max_tokens":9223372036854775807`, 1000, false, false},
		"to what nobody knows":           {`"truncate_prompt_tokens":-1`, 0, false, false},
		"to what is no length":           {`"truncate_prompt_tokens":-2`, 1000, false, false},
		"to what is no integer":          {`"truncate_prompt_tokens":"13"`, 1000, false, false},
		"to what is no number of ours":   {`"truncate_prompt_tokens":1e9`, 1000, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSeer(t, &seer{})
			r := newResolver(t, patient)
			judge := func(q Query) {
				q.Renders, q.MaxModelLen = !c.other, c.most
				for range 2 {
					p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
					_, remembered := r.Fast(q, new(Scratch))
					require.Equal(t, c.known, remembered)
					if !c.known {
						requireReason(t, ReasonTruncated, err)
						continue
					}
					require.NoError(t, err)
					require.NotEmpty(t, p.Hashes)
					require.False(t, p.Estimated)
				}
			}
			judge(cut(t, ","+c.more, question))
			if !c.other {
				// The tokenizer counts the picture's tokens, too.
				seven := strings.Replace(c.more, "13", "22", 1)
				q := cut(t, ","+seven, question, picture("data:,seven!!"))
				c.most += 9
				judge(q)
			}
			require.Empty(t, r.asides.byEndpoint)
			require.Empty(t, r.expanders.byEndpoint, "who answers is not blamed")
		})
	}
}

func TestIdsOfARequestAreTheirPromptWhereNothingIsCut(t *testing.T) {
	t.Parallel()
	r := newResolver(t, Config{})
	resolve := func(prompt, more string) Prompt {
		q := query(t, openai.Completions, `{"model":"m","prompt":`+prompt+more+`}`)
		q.Renders = true
		p, ok := r.Fast(q, new(Scratch))
		require.True(t, ok)
		return p
	}
	ids := `[1,2,3,4,5,6,7,8]`
	for _, list := range []string{ids, "[" + ids + ",[1]]"} {
		require.Len(t, resolve(list, `,"truncate_prompt_tokens":8`).Hashes, 2)
		p := resolve(list, `,"truncate_prompt_tokens":7`)
		require.Empty(t, p.Hashes)
		require.Equal(t, ReasonTruncated, p.Reason)
		require.Equal(t, None, p.Source)
		require.GreaterOrEqual(t, p.ISLTokens, 7)
	}
}

func TestOfSeveralTextsNoneIsCut(t *testing.T) {
	t.Parallel()
	e := newSeer(t, &seer{}) // it makes one token of each text
	r := newResolver(t, patient)
	q := query(t, openai.Completions, `{"model":"m","prompt":["a","b","c"],"truncate_prompt_tokens":1}`)
	q.Renders = true
	p, err := r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
	require.NoError(t, err)
	require.Equal(t, 3, p.ISLTokens)
	q = query(t, openai.Completions, `{"model":"m","prompt":["a","b","c"],"truncate_prompt_tokens":0}`)
	q.Renders = true
	_, err = r.Engine(t.Context(), q, []worker.Endpoint{e.ep})
	requireReason(t, ReasonTruncated, err)
}

// The length of a prompt that is not counted after the cut is at most what the cut leaves
// of it. It is what is booked.
func TestWhatIsLeftOfAPromptBoundsItsLength(t *testing.T) {
	t.Parallel()
	text := `"` + strings.Repeat("abcd", 100) + `"` // 100 tokens, by estimate
	chat := `[{"role":"user","content":` + text + `}]`
	ids := `[` + strings.Repeat("1,", 99) + `1]`
	for name, c := range map[string]struct {
		path   openai.Path
		prompt string
		more   string
		length int // of the model
		other  bool
		off    bool
		isl    int
	}{
		"a text":                             {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":70`, 0, false, false, 70},
		"a text that is short enough":        {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":100`, 0, false, false, 100},
		"a text that is not cut":             {openai.Completions, `"prompt":` + text, ``, 0, false, false, 100},
		"a text for an engine without a cut": {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":70`, 0, true, false, 100},
		"messages":                           {openai.ChatCompletions, `"messages":` + chat, `,"truncate_prompt_tokens":70`, 0, false, false, 70},
		"each of several texts":              {openai.Completions, `"prompt":["abcd",` + text + `,"abcd"]`, `,"truncate_prompt_tokens":70`, 0, false, false, 72},
		"token ids":                          {openai.Completions, `"prompt":` + ids, `,"truncate_prompt_tokens":70`, 0, false, false, 70},
		"several lists of them, at most":     {openai.Completions, `"prompt":[` + ids + `,[1]]`, `,"truncate_prompt_tokens":40`, 0, false, false, 80},
		"to what fits":                       {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":-1,"max_tokens":9`, 70, false, false, 69},
		"to what fits nobody knows where":    {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":-1`, 0, false, false, 100},
		"to what is no length":               {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":-2`, 70, false, false, 100},
		"where tokens are off":               {openai.Completions, `"prompt":` + text, `,"truncate_prompt_tokens":70`, 0, false, true, 70},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newResolver(t, Config{Mode: map[bool]Mode{false: EstimateOnly, true: Off}[c.off]})
			q := query(t, c.path, `{"model":"m",`+c.prompt+c.more+`}`)
			q.Renders, q.MaxModelLen = !c.other, c.length
			p, ok := r.Fast(q, new(Scratch))
			require.True(t, ok)
			require.Equal(t, c.isl, p.ISLTokens)
			require.LessOrEqual(t, len(p.Hashes)*max(p.BlocksPerHash, 1)*q.BlockSize, p.ISLTokens)
		})
	}
}

// A prompt that may be cut to what fits is told from one that surely is not: then both legs
// of a request have the same prompt.
func TestWhetherAPromptMayBeCutToWhatFits(t *testing.T) {
	t.Parallel()
	const tokens = 100
	text := `"` + strings.Repeat("abcd", tokens) + `"`
	q := func(prompt, more string, length int) *Query {
		q := query(t, openai.Completions, `{"model":"m","prompt":`+prompt+more+`}`)
		q.Renders, q.MaxModelLen = true, length
		return &q
	}
	counted := &Prompt{Source: FromEngine, ISLTokens: tokens}
	given := &Prompt{Source: FromRequest, ISLTokens: tokens}
	here := &Prompt{Source: FromLocal, ISLTokens: tokens}
	guessed := &Prompt{Source: Estimate, ISLTokens: tokens, Estimated: true}
	const cut = `,"truncate_prompt_tokens":-1,"max_tokens":20`
	surely := len(text+"-120") + templateTokens + 20 // each byte of it may be a token
	for name, c := range map[string]struct {
		q    *Query
		p    *Prompt
		want bool
	}{
		"counted, and short enough":       {q(text, cut, tokens+21), counted, false},
		"counted, as if it were cut":      {q(text, cut, tokens+20), counted, true},
		"counted, and too long":           {q(text, cut, tokens+1), counted, true},
		"given, and short enough":         {q(text, cut, tokens+20), given, false},
		"given, and too long":             {q(text, cut, tokens+19), given, true},
		"counted here, and short enough":  {q(text, cut, tokens+20), here, false},
		"counted here, and too long":      {q(text, cut, tokens+19), here, true},
		"guessed, and surely short":       {q(text, cut, surely), guessed, false},
		"guessed":                         {q(text, cut, surely-1), guessed, true},
		"not counted, for it is cut":      {q(text, cut, 9999), &Prompt{Reason: ReasonTruncated}, true},
		"counted in part":                 {q(text, cut, 9999), &Prompt{Source: FromEngine, Partial: true}, true},
		"not known at all":                {q(text, cut, 9999), &Prompt{Reason: ReasonNoText}, true},
		"where nobody knows what fits":    {q(text, cut, 0), counted, true},
		"a length that is no number":      {q(text, `,"truncate_prompt_tokens":"-1"`, 9999), counted, true},
		"a length that is named":          {q(text, `,"truncate_prompt_tokens":9`, 9999), counted, false},
		"no length":                       {q(text, ``, tokens), counted, false},
		"an answer of any length":         {q(text, `,"truncate_prompt_tokens":-1`, tokens+17), counted, false},
		"an answer of any length, nearly": {q(text, `,"truncate_prompt_tokens":-1`, tokens+16), counted, true},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, c.q.CutToFit(c.p)) })
	}
	seen := query(t, openai.ChatCompletions, `{"model":"m","truncate_prompt_tokens":-1,"messages":[{"role":"user","content":[`+picture("data:,seven!!")+`]}]}`)
	seen.Renders, seen.MaxModelLen = true, 1<<20
	require.True(t, seen.CutToFit(guessed), "a picture may have any length")
}
