package openai

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWordsAreAnEnginesMessageAndNothingOfTheRequest(t *testing.T) {
	const secret = "my card is 4711 and nobody may know"
	for name, c := range map[string]struct{ request, answer, want string }{
		"a message in an error":               {answer: `{"error":{"message":"NIXL handshake failed","type":"InternalServerError","code":500}}`, want: "NIXL handshake failed"},
		"an error that is a string":           {answer: `{"error":"out of memory"}`, want: "out of memory"},
		"a message beside the object's name":  {answer: `{"object":"error","message":"Input length (12 tokens) exceeds 8","type":"x"}`, want: "Input length (12 tokens) exceeds 8"},
		"a detail":                            {answer: `{"detail":"Not Found"}`, want: "Not Found"},
		"the first of several faults":         {answer: `{"detail":[{"type":"missing","loc":["body"],"msg":"Field required","input":{"prompt":"` + secret + `"}},{"msg":"x"}]}`, want: "Field required"},
		"text":                                {answer: "Internal Server Error\r\n", want: "Internal Server Error"},
		"a page of HTML has none":             {answer: "<html><body>" + secret + "</body></html>"},
		"JSON that is cut has none":           {answer: `{"error":{"message":"` + secret},
		"JSON without a message has none":     {answer: `{"choices":[{"text":"` + secret + `"}]}`},
		"lines become one":                    {answer: "{\"error\":{\"message\":\"one\\n\\ttwo\\u0000\\u202ethree\"}}", want: "one two three"},
		"up to a quotation mark":              {answer: `{"message":"Template error near '` + secret + `'"}`, want: "Template error near"},
		"an apostrophe is none":               {answer: `{"message":"This model's maximum context length is 4096 tokens"}`, want: "This model's maximum context length is 4096 tokens"},
		"bytes as Python writes them":         {answer: `{"message":"bad b'short one'"}`, want: "bad b"},
		"up to what pydantic adds":            {answer: `{"message":"1 validation error\n  Input should be a list [type=list_type, input_value='x', input_type=str]"}`, want: "1 validation error Input should be a list"},
		"up to a value":                       {answer: `{"message":"refused value=abc"}`, want: "refused value"},
		"up to the input, without quotes":     {answer: `{"message":"cannot read prompt: abc def"}`, want: "cannot read prompt"},
		"up to what the request has, too":     {answer: `{"message":"Cannot render ` + secret + ` today"}`, want: "Cannot render"},
		"in another form":                     {answer: `{"message":"Cannot render MY  CARD-IS\n4711 and"}`, want: "Cannot render"},
		"where the request has escapes":       {request: `{"prompt":"gr\u00fc\u00dfe\n\tan\u0061lle"}`, answer: `{"message":"failed on grüße analle"}`, want: "failed on"},
		"a request that is longer has none":   {request: `{"prompt":"` + strings.Repeat("a ", MaxCompared/2) + `"}`, answer: "Internal Server Error"},
		"a request that is not at hand, none": {request: "-", answer: "Internal Server Error"},
		"long words are cut":                  {answer: strings.Repeat("wörter ", 50), want: strings.TrimSpace(strings.Repeat("wörter ", 20))},
	} {
		t.Run(name, func(t *testing.T) {
			request := []byte(`{"model":"m","prompt":"` + secret + `"}`)
			switch c.request {
			case "":
			case "-":
				request = nil
			default:
				request = []byte(c.request)
			}
			require.Equal(t, c.want, Words([]byte(c.answer), request))
		})
	}
}

func FuzzWords(f *testing.F) {
	f.Add([]byte(`{"error":{"message":"failed: tell me a secret"}}`), []byte(`{"prompt":"Tell me\na secret"}`))
	f.Add([]byte("plain"), []byte(`{}`))
	f.Add([]byte(`{"detail":[{"msg":"x"}]}`), []byte(`{"a":"\ud83d\ude00"}`))
	f.Fuzz(func(t *testing.T, answer, request []byte) {
		w := Words(answer, request)
		require.LessOrEqual(t, len(w), MaxWords)
		require.True(t, utf8.ValidString(w))
		require.NotContains(t, w, "\n")
		if w == "" {
			return
		}
		said, _ := plain(w)
		sent, _ := plain(string(AppendUnescaped(nil, request)))
		for i := 0; i+alike <= len(said); i++ {
			require.NotContains(t, sent, said[i:i+alike])
		}
	})
}
