package bpe

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// goldenTexts are the texts whose ids are in testdata/golden. The files begin with their
// hash: other texts need other files (make tokenizers-golden).
func goldenTexts() []string {
	texts := slices.Concat(sentences, blankRuns, lookAlikes, contractionsLike)
	r := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		texts = append(texts, randomText(r, 1+r.IntN(10)))
	}
	for range 3 {
		texts = append(texts, randomText(r, 150))
	}
	return texts
}

func goldenFile(name string) string { return filepath.Join("testdata", "golden", name+".txt") }

// readGolden returns the numbers of each line, and the first line.
func readGolden(t *testing.T, name string) (string, [][]uint32) {
	t.Helper()
	b, err := os.ReadFile(goldenFile(name))
	require.NoError(t, err)
	head, rest, _ := strings.Cut(string(b), "\n")
	var out [][]uint32
	for line := range strings.Lines(rest) {
		var ids []uint32
		for _, f := range strings.Fields(line) {
			id, err := strconv.ParseUint(f, 36, 32)
			require.NoError(t, err)
			ids = append(ids, uint32(id))
		}
		out = append(out, ids)
	}
	return head, out
}

// goldenText is the text of a golden file: numbers in base 36.
func goldenText(head string, lines [][]uint32) string {
	var b strings.Builder
	b.WriteString(head + "\n")
	for _, ids := range lines {
		for i, id := range ids {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(strconv.FormatUint(uint64(id), 36))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// goldenHead says which texts and which file a golden file is of.
func goldenHead(file []byte) string {
	return fmt.Sprintf("%016x of texts %016x", xxh3.Hash(file), xxh3.HashString(strings.Join(goldenTexts(), "\x00")))
}

// TestPublishedTokenizersGiveTheIDsOfTokenizers compares with what Hugging Face's
// tokenizers said of the same files (testdata/golden). It needs the files: make tokenizers.
func TestPublishedTokenizersGiveTheIDsOfTokenizers(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			k := loadFamily(t, family)
			file, err := os.ReadFile(filepath.Join(tools, "tokenizers", family, "tokenizer.json"))
			require.NoError(t, err)
			head, want := readGolden(t, family)
			require.Equal(t, goldenHead(file), head)
			e := k.NewEncoder()
			texts := goldenTexts()
			require.Len(t, want, len(texts))
			for i, text := range texts {
				got, err := e.Append(nil, []byte(text), i%2 == 0)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(want[i]), fmt.Sprint(got), "%+q", text)
			}
		})
	}
}

// TestPatternsGiveThePiecesOfTokenizers compares the lengths of pieces, in characters,
// with what tokenizers said of the regular expressions.
func TestPatternsGiveThePiecesOfTokenizers(t *testing.T) {
	head, want := readGolden(t, "patterns")
	require.Equal(t, goldenHead(nil), head)
	c := newClasses()
	all := patterns()
	for _, text := range slices.Sorted(maps.Keys(all)) {
		for _, s := range goldenTexts() {
			got := pieces(c, stage{pattern: all[text]}, s)
			require.Equal(t, fmt.Sprint(want[0]), fmt.Sprint(got), "%s: %+q", text, s)
			want = want[1:]
		}
	}
	require.Empty(t, want)
}

// pieces returns the lengths of a text's pieces, in characters.
func pieces(c *classes, st stage, s string) []int {
	got := []int{}
	for i := 0; i < len(s); {
		begin, end, resume := st.next(c, []byte(s), i)
		if end > begin {
			got = append(got, len([]rune(s[begin:end])))
		}
		i = resume
	}
	return got
}
