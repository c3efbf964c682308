package bpe

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tiny is a tokenizer.json to be changed before it is loaded.
type tiny map[string]any

func (f tiny) load(t testing.TB) *Tokenizer {
	t.Helper()
	k, err := Load(f.text(t), Limits{})
	require.NoError(t, err)
	return k
}

func (f tiny) text(t testing.TB) []byte {
	t.Helper()
	text, err := json.Marshal(f)
	require.NoError(t, err)
	return text
}

func (f tiny) model() map[string]any { return f["model"].(map[string]any) }

type list = []any
type object = map[string]any

func tinyAdded(id int, content string, more object) object {
	a := object{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	maps.Copy(a, more)
	return a
}

// grow adds merges of random tokens, most of them of the given ones.
func grow(r *rand.Rand, vocab map[string]int, from []string, merges int) [][]string {
	var out [][]string
	for len(out) < merges {
		a, b := from[r.IntN(len(from))], from[r.IntN(len(from))]
		_, there := vocab[a+b]
		if there || len(a+b) > 24 {
			continue
		}
		vocab[a+b] = len(vocab)
		from = append(from, a+b, a+b)
		out = append(out, []string{a, b})
	}
	return out
}

// tinyBytes is a byte-level tokenizer with random merges. The pattern is that of cl100k
// unless another is given.
func tinyBytes(r *rand.Rand, pattern string) tiny {
	vocab := map[string]int{}
	letters := byteLetters()
	for b, c := range letters {
		vocab[string(c)] = b
	}
	var from []string
	for _, b := range []byte("aaeettoinsrhl .,'\n\n1230<|" + "éü世界😀") {
		from = append(from, string(letters[b]))
	}
	merges := grow(r, vocab, from, 300)
	n := len(vocab)
	if pattern == "" {
		pattern = contractionsText + `|` + beforeText + `\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanksText
	}
	return tiny{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": object{"type": "NFC"},
		"added_tokens": list{tinyAdded(n, "<|a|>", nil), tinyAdded(n+1, "<|ab|>", object{"rstrip": true}), tinyAdded(n+2, "<|a|><|ab|>", nil),
			tinyAdded(n+3, "<|c|>", object{"lstrip": true}), tinyAdded(n+4, "\n<|d|>", nil)},
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": list{
			object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false},
			object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}},
		"post_processor": object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
		"decoder":        object{"type": "ByteLevel"},
		"model": object{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": "", "end_of_word_suffix": "",
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges},
	}
}

// tinyCharacters is a tokenizer of characters with byte fallback and random merges.
func tinyCharacters(r *rand.Rand) tiny {
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		vocab[byteToken(b)] = len(vocab)
	}
	var from []string
	for _, c := range "▁▁▁abcdefghij\n.,12é世界" {
		_, there := vocab[string(c)]
		if !there {
			vocab[string(c)] = len(vocab)
		}
		from = append(from, string(c))
	}
	merges := grow(r, vocab, from, 40)
	lines := make([]string, len(merges))
	for i, m := range merges {
		lines[i] = strings.Join(m, " ")
	}
	return tiny{
		"version": "1.0", "truncation": nil, "padding": nil,
		"normalizer":    object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"},
		"pre_tokenizer": object{"type": "Split", "pattern": object{"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
		"added_tokens":  list{tinyAdded(0, "<unk>", nil), tinyAdded(1, "<s>", nil), tinyAdded(2, "</s>", nil)},
		"post_processor": object{"type": "TemplateProcessing",
			"single":         list{object{"SpecialToken": object{"id": "<s>", "type_id": 0}}, object{"Sequence": object{"id": "A", "type_id": 0}}},
			"pair":           list{},
			"special_tokens": object{"<s>": object{"id": "<s>", "ids": list{1}, "tokens": list{"<s>"}}}},
		"decoder": nil,
		"model": object{"type": "BPE", "dropout": nil, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
			"vocab": vocab, "merges": lines},
	}
}

// tinyText is a text that the tiny tokenizers have merges for, and some that they have not.
func tinyText(r *rand.Rand, atoms int) string {
	var b strings.Builder
	for range atoms {
		switch r.IntN(8) {
		case 0:
			b.WriteString(randomText(r, 1))
		case 1:
			b.WriteString([]string{"<|a|>", "<|ab|>", "<|a|><|ab|>", "<|c|>", "<|a", "<s>", "</s>", "<unk>", " <|c|>\n", "<|ab|> \n", "\n<|d|>", "<|ab|> \n<|d|>"}[r.IntN(12)])
		default:
			for range 1 + r.IntN(30) {
				c := []rune("aabcdefghijeettoinsrhl  .,'\n\n1230é世界😀")
				b.WriteRune(c[r.IntN(len(c))])
			}
		}
	}
	return b.String()
}

// slowMerge merges as the definition says: again and again the leftmost pair of the
// lowest rank.
func slowMerge(m *merges, ids []uint32) []uint32 {
	ids = slices.Clone(ids)
	for {
		at, best, becomes := -1, none, none
		for i := range len(ids) - 1 {
			rank, id := m.get(ids[i], ids[i+1])
			if rank < best {
				at, best, becomes = i, rank, id
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, becomes)
	}
}

func TestAWordMergesByRankAndThenFromTheLeft(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		e := tinyBytes(r, "").load(t).NewEncoder()
		for range 200 {
			word := make([]symbol, r.IntN(120))
			var ids []uint32
			for i := range word {
				word[i].id = e.t.symbols.bytes["aaeettoinsrhl .,'\n1230"[r.IntN(22)]]
				ids = append(ids, word[i].id)
			}
			want := slowMerge(e.t.merges, ids)
			e.word = slices.Clone(word)
			e.merge()
			require.Equal(t, want, idsOf(e.word))
			if len(word) > 1 {
				e.word = word
				for i := range len(word) - 1 {
					word[i].rank, word[i].becomes = e.t.merges.get(word[i].id, word[i+1].id)
				}
				word[len(word)-1].rank = none
				e.mergeLong()
				require.Equal(t, want, idsOf(e.word), "by the heap")
			}
		}
	}
}

func idsOf(w []symbol) []uint32 {
	var ids []uint32
	for _, s := range w {
		ids = append(ids, s.id)
	}
	return ids
}

// TestAWordOfFewLettersMergesByRank: where almost every pair merges, pairs that are no
// more there must not.
func TestAWordOfFewLettersMergesByRank(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for range 50 {
		f := tinyBytes(r, "")
		vocab := f.model()["vocab"].(map[string]int)
		for token := range vocab {
			if vocab[token] > 255 {
				delete(vocab, token)
			}
		}
		f.model()["merges"] = grow(r, vocab, []string{"a", "b"}, 60)
		f["added_tokens"] = list{}
		e := f.load(t).NewEncoder()
		for range 50 {
			var ids []uint32
			e.word = e.word[:0]
			rare := r.IntN(20)
			for range shortWord + 1 + r.IntN(200) {
				id := uint32('a')
				if r.IntN(40) < rare {
					id = 'b'
				}
				ids = append(ids, id)
				e.word = append(e.word, symbol{id: id})
			}
			e.merge()
			require.Equal(t, slowMerge(e.t.merges, ids), idsOf(e.word))
		}
	}
}

// TestTokensOfBytesThatMergeLeaveNoBorders: their text is not that of the characters.
func TestTokensOfBytesThatMergeLeaveNoBorders(t *testing.T) {
	f := tinyCharacters(rand.New(rand.NewPCG(9, 9)))
	vocab := f.model()["vocab"].(map[string]int)
	joined := len(vocab)
	vocab["<0x91><0xE4>"] = joined
	f.model()["merges"] = list{"<0x91> <0xE4>"}
	got, err := f.load(t).NewEncoder().Append(nil, []byte("丑丑"), false)
	require.NoError(t, err)
	require.Contains(t, got, uint32(joined))
}

// TestBordersInAWordChangeNoID: a word of characters is cut where no merge reaches over.
func TestBordersInAWordChangeNoID(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	cut := 0
	for range 30 {
		k := tinyCharacters(r).load(t)
		whole := *k
		m := *k.merges
		m.joints = nil
		whole.merges = &m
		for range 100 {
			text := []byte(tinyText(r, 3))
			got, err := k.NewEncoder().Append(nil, text, false)
			require.NoError(t, err)
			want, err := whole.NewEncoder().Append(nil, text, false)
			require.NoError(t, err)
			require.Equal(t, want, got, "%+q", text)
		}
		for _, c := range "bcdefghij" {
			if k.merges.borders('a', c) {
				cut++
			}
		}
	}
	require.NotZero(t, cut, "there were borders")
}

func TestSpecialTokensStandAroundATextIfAsked(t *testing.T) {
	k := tinyCharacters(rand.New(rand.NewPCG(3, 3))).load(t)
	with, err := k.NewEncoder().Append([]uint32{7}, []byte("</s>"), true)
	require.NoError(t, err)
	require.Equal(t, []uint32{7, 1, 2}, with)
	without, err := k.NewEncoder().Append(nil, []byte("<s></s>"), false)
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 2}, without)
}

func TestAddedTokensTakeTheSpacesBesideThem(t *testing.T) {
	f := tinyBytes(rand.New(rand.NewPCG(4, 4)), "")
	k := f.load(t)
	n := uint32(len(f.model()["vocab"].(map[string]int)))
	for text, want := range map[string][]uint32{
		"<|a|><|ab|>":       {n + 2},
		"<|a|><|a|>":        {n, n},
		"<|ab|> \n\u00a0":   {n + 1},
		" \n\u3000<|c|>":    {n + 3},
		"<|ab|>  <|c|>":     {n + 1, n + 3},
		"<|c|><|a|><|ab|> ": {n + 3, n + 2, uint32(' ')},
		"<|ab|> \n<|d|>":    {n + 1, n + 4},
	} {
		got, err := k.NewEncoder().Append(nil, []byte(text), false)
		require.NoError(t, err)
		require.Equal(t, want, got, "%+q", text)
	}
}
