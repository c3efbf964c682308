package bpe

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsNotKnownIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f tiny)
		want   string
	}{
		"a member that nobody knows": {func(f tiny) { f["extra"] = 1 }, `tokenizer.json: file: json: unknown field "extra"`},
		"truncation":                 {func(f tiny) { f["truncation"] = object{"max_length": 3} }, "tokenizer.json: truncation: expected null"},
		"padding":                    {func(f tiny) { f["padding"] = object{} }, "tokenizer.json: padding: expected null"},
		"another version":            {func(f tiny) { f["version"] = "2.0" }, `tokenizer.json: version "2.0": expected 1.0`},
		"another model":              {func(f tiny) { f.model()["type"] = "Unigram" }, `tokenizer.json: model.type "Unigram": expected BPE`},
		"a model without a type":     {func(f tiny) { delete(f.model(), "type") }, `tokenizer.json: model.type "": expected BPE`},
		"an option of the model":     {func(f tiny) { f.model()["max_input_chars_per_word"] = 1 }, `tokenizer.json: model: json: unknown field "max_input_chars_per_word"`},
		"dropout":                    {func(f tiny) { f.model()["dropout"] = 0.1 }, "tokenizer.json: model.dropout 0.1: expected none"},
		"a prefix of subwords":       {func(f tiny) { f.model()["continuing_subword_prefix"] = "##" }, `tokenizer.json: model.continuing_subword_prefix "##": expected none`},
		"a suffix of words":          {func(f tiny) { f.model()["end_of_word_suffix"] = "</w>" }, `tokenizer.json: model.end_of_word_suffix "</w>": expected none`},
		"bytes of both kinds":        {func(f tiny) { f.model()["byte_fallback"] = true }, "tokenizer.json: model.byte_fallback: expected false with ByteLevel"},
		"no vocabulary":              {func(f tiny) { f.model()["vocab"] = object{} }, "tokenizer.json: model.vocab: expected tokens"},
		"a negative id":              {func(f tiny) { f.model()["vocab"] = object{"a": -1} }, "tokenizer.json: model: json: cannot unmarshal number -1"},
		"one id for two tokens":      {func(f tiny) { f.model()["vocab"] = object{"a": 1, "b": 1} }, "model.vocab: id 1 is that of"},
		"a merge of what is no token": {func(f tiny) { f.model()["merges"] = list{list{"a", "?"}, list{"a", "\u0300"}} },
			`tokenizer.json: model.merges[0]: ["a" "?"]: expected tokens of the vocabulary that make one`},
		"a merge of three": {func(f tiny) { f.model()["merges"] = list{"a b c"} }, `tokenizer.json: model.merges[0]: ["a" "b" "c"]: expected two tokens`},
		"merges of another form": {func(f tiny) { f.model()["merges"] = object{} },
			"tokenizer.json: model.merges: expected pairs of tokens: json: cannot unmarshal object into Go value of type []string"},
		"another normalizer": {func(f tiny) { f["normalizer"] = object{"type": "NFKC"} },
			`tokenizer.json: normalizer: type "NFKC": expected Sequence, NFC, Prepend or Replace`},
		"a normalizer in a sequence": {func(f tiny) {
			f["normalizer"] = object{"type": "Sequence", "normalizers": list{object{"type": "NFC"}, object{"type": "Lowercase"}}}
		}, `tokenizer.json: normalizer.normalizers[1]: type "Lowercase": expected Sequence, NFC, Prepend or Replace`},
		"an expression to replace": {func(f tiny) {
			f["normalizer"] = object{"type": "Replace", "pattern": object{"Regex": " +"}, "content": ""}
		}, "tokenizer.json: normalizer: Replace: expected a pattern String"},
		"another pre-tokenizer": {func(f tiny) { f["pre_tokenizer"] = object{"type": "Whitespace"} },
			`tokenizer.json: pre_tokenizer: type "Whitespace": expected Sequence, Split, Digits, ByteLevel or Metaspace`},
		"another expression": {func(f tiny) {
			f["pre_tokenizer"] = object{"type": "Split", "pattern": object{"Regex": `\w+`}, "behavior": "Isolated", "invert": false}
		}, `tokenizer.json: pre_tokenizer.pattern: Regex "\\w+": expected one of those in use`},
		"another behavior": {func(f tiny) {
			f["pre_tokenizer"] = object{"type": "Split", "pattern": object{"String": " "}, "behavior": "Contiguous", "invert": false}
		}, "tokenizer.json: pre_tokenizer: behavior Contiguous: expected Isolated, Removed, MergedWithPrevious or MergedWithNext"},
		"a space before the text": {func(f tiny) {
			f["pre_tokenizer"] = object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false}
		}, "tokenizer.json: pre_tokenizer: ByteLevel: add_prefix_space: expected false"},
		"something after ByteLevel": {func(f tiny) {
			p := f["pre_tokenizer"].(object)
			p["pretokenizers"] = append(p["pretokenizers"].(list), object{"type": "Digits", "individual_digits": true})
		}, "tokenizer.json: pre_tokenizer.pretokenizers[2]: Digits: expected nothing after ByteLevel or Metaspace"},
		"another post-processor": {func(f tiny) { f["post_processor"] = object{"type": "RobertaProcessing"} },
			`tokenizer.json: post_processor: type "RobertaProcessing": expected Sequence, ByteLevel or TemplateProcessing`},
		"a single word": {func(f tiny) { f["added_tokens"] = list{tinyAdded(556, "x", object{"single_word": true})} },
			`tokenizer.json: added_tokens[0] "x": single_word: expected false`},
		"an added token twice": {func(f tiny) { f["added_tokens"] = list{tinyAdded(556, "xx", nil), tinyAdded(556, "xx", nil)} },
			`tokenizer.json: added_tokens[1] "xx": expected each token once`},
		"an id that tokenizers would not give": {func(f tiny) { f["added_tokens"] = list{tinyAdded(900, "xx", nil)} },
			`tokenizer.json: added_tokens[0] "xx": id 900: expected 556`},
		"an added token without text": {func(f tiny) { f["added_tokens"] = list{tinyAdded(556, "", nil)} },
			`tokenizer.json: added_tokens[0] "": expected 1 to 256 bytes`},
		"a long added token": {func(f tiny) { f["added_tokens"] = list{tinyAdded(556, strings.Repeat("x", 257), nil)} }, "expected 1 to 256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tinyBytes(rand.New(rand.NewPCG(1, 2)), "")
			c.change(f)
			_, err := Load(f.text(t), Limits{})
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestCharactersNeedATokenForEachByte(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f tiny)
		want   string
	}{
		"a byte is missing":    {func(f tiny) { delete(f.model()["vocab"].(map[string]int), "<0xE4>") }, "tokenizer.json: model.vocab: expected the token <0xE4>, with byte_fallback"},
		"no fallback to bytes": {func(f tiny) { f.model()["byte_fallback"] = false }, "tokenizer.json: model.byte_fallback: expected true without ByteLevel"},
		"a template without the text": {func(f tiny) {
			f["post_processor"].(object)["single"] = list{object{"SpecialToken": object{"id": "<s>", "type_id": 0}}}
		}, "tokenizer.json: post_processor.single: expected the Sequence A"},
		"a template with an unknown token": {func(f tiny) {
			f["post_processor"].(object)["single"] = list{object{"SpecialToken": object{"id": "<t>", "type_id": 0}}}
		}, `tokenizer.json: post_processor.special_tokens: expected "<t>"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := tinyCharacters(rand.New(rand.NewPCG(1, 2)))
			c.change(f)
			_, err := Load(f.text(t), Limits{})
			require.EqualError(t, err, c.want)
		})
	}
}

func TestAFileIsUnicodeAndOfBoundedSize(t *testing.T) {
	text := tinyBytes(rand.New(rand.NewPCG(1, 2)), "").text(t)
	_, err := Load(text, Limits{FileBytes: len(text) - 1})
	require.ErrorContains(t, err, "bytes: expected at most")
	_, err = Load(text, Limits{Tokens: 300})
	require.EqualError(t, err, "tokenizer.json: model.vocab: 556 tokens: expected at most 300")
	_, err = Load(append(text, "{}"...), Limits{})
	require.EqualError(t, err, "tokenizer.json: file: expected nothing after the value")
	for _, bad := range []string{"{\"version\":\"\xff\"}", `{"version":"\ud800"}`, `{"version":"\udc00\ud800"}`, `{"version":"\uD83D\u0041"}`, `{"version":"\\\uDBFF`} {
		_, err = Load([]byte(bad), Limits{})
		require.EqualError(t, err, "tokenizer.json: expected valid Unicode", bad)
	}
	_, err = Load([]byte(`{"version":"\uD83D\uDE00 \\ud800"}`), Limits{})
	require.ErrorContains(t, err, "version")
}

func TestATextIsUTF8AndOfBoundedLength(t *testing.T) {
	f := tinyBytes(rand.New(rand.NewPCG(1, 2)), "")
	k, err := Load(f.text(t), Limits{TextBytes: 100, WordBytes: 10})
	require.NoError(t, err)
	e := k.NewEncoder()
	s := NewSegments(k, 1<<20)
	for text, want := range map[string]error{
		strings.Repeat("a ", 50):                  nil,
		strings.Repeat("a ", 50) + "a":            ErrTooLong,
		"aaaaaaaaaa":                              nil,
		"<|a|>aaaaaaaaaaa":                        ErrTooLong,
		strings.Repeat("a ", 30) + "aaaaaaaaaaaa": ErrTooLong,
		"a\xff":        ErrNotUTF8,
		"\xed\xa0\x80": ErrNotUTF8,
	} {
		got, err := e.Append([]uint32{1}, []byte(text), false)
		require.ErrorIs(t, err, want)
		again, err := s.Append(e, []uint32{1}, []byte(text), false)
		require.ErrorIs(t, err, want)
		require.Equal(t, got, again)
		require.Equal(t, want == nil, len(got) > 1)
	}
}

// TestALongWordTakesNoSquareOfSteps: each of these would take hours.
func TestALongWordTakesNoSquareOfSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	n := 1 << 19
	if testing.Short() {
		n = 1 << 16
	}
	for _, k := range []*Tokenizer{tinyBytes(r, "").load(t), tinyCharacters(r).load(t)} {
		e := k.NewEncoder()
		for _, unit := range []string{"a", " ", "\n", "ab", "\u0301", "\u0301\u0327", "é", "世", "<|a", "<|ab|>", "'", "1", "\u1100\u1161", "\U0001d165\U0001d16e\u0334"} {
			ids, err := e.Append(nil, []byte(strings.Repeat(unit, n/len(unit))), false)
			require.NoError(t, err)
			require.NotEmpty(t, ids)
		}
	}
}

func TestEncodingAllocatesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	text := []byte(tinyText(r, 300))
	for _, k := range []*Tokenizer{tinyBytes(r, "").load(t), tinyCharacters(r).load(t)} {
		e := k.NewEncoder()
		s := NewSegments(k, 1<<20)
		dst := make([]uint32, 0, len(text))
		require.Zero(t, testing.AllocsPerRun(10, func() {
			_, err := e.Append(dst, text, true)
			require.NoError(t, err)
		}))
		require.Zero(t, testing.AllocsPerRun(10, func() {
			_, err := s.Append(e, dst, text, true)
			require.NoError(t, err)
		}))
	}
}
