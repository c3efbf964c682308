package bpe

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSegmentsChangeNoID plays conversations that go on, with memories so small that
// segments are lost, and compares each turn with the whole.
func TestSegmentsChangeNoID(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	kinds := map[string]*Tokenizer{"characters": tinyCharacters(r).load(t)}
	for text := range patterns() {
		kinds["bytes "+text] = tinyBytes(r, text).load(t)
	}
	marks := tinyCharacters(r)
	marks["normalizer"] = nil
	for _, scheme := range []string{"always", "first", "never"} {
		for _, split := range []bool{false, true} {
			marks["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
			kinds[strings.Join([]string{"metaspace", scheme, map[bool]string{true: "split"}[split]}, " ")] = marks.load(t)
		}
	}
	before := tinyCharacters(r)
	before["normalizer"] = object{"type": "Sequence", "normalizers": list{object{"type": "Prepend", "prepend": "▁"}, before["normalizer"]}}
	kinds["prepend"] = before.load(t)
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) { playConversations(t, k, r, tinyText) })
	}
}

// TestSegmentsOfPublishedTokenizersChangeNoID does the same with real ones.
func TestSegmentsOfPublishedTokenizersChangeNoID(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			playConversations(t, loadFamily(t, family), rand.New(rand.NewPCG(2, 2)), randomText)
		})
	}
}

func playConversations(t *testing.T, k *Tokenizer, r *rand.Rand, write func(*rand.Rand, int) string) {
	t.Helper()
	e, whole := k.NewEncoder(), k.NewEncoder()
	turns := 40
	if testing.Short() {
		turns = 10
	}
	for _, bytes := range []int{0, 4096, 1 << 20} {
		s := NewSegments(k, bytes)
		var text strings.Builder
		for range turns {
			if text.Len() > 20_000 {
				text.Reset()
			}
			text.WriteString(write(r, 1+r.IntN(60)))
			if r.IntN(8) == 0 {
				text.WriteString(strings.Repeat("a line of text\nand 1 more\n", r.IntN(200)))
			}
			special := r.IntN(2) == 0
			got, err := s.Append(e, nil, []byte(text.String()), special)
			require.NoError(t, err)
			want, err := whole.Append(nil, []byte(text.String()), special)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		require.NoError(t, s.checkLocked())
		require.LessOrEqual(t, s.Bytes(), max(bytes, bucketSlots*slotBytes))
	}
}

// TestALongerTextHasTheSameBorders: what was remembered of a text is found in the next.
func TestALongerTextHasTheSameBorders(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, k := range []*Tokenizer{tinyBytes(r, "").load(t), tinyCharacters(r).load(t)} {
		require.True(t, k.lines)
		text := []byte(strings.Repeat(tinyText(r, 50)+"\nab\n12", 20))
		n := k.border(text)
		require.Less(t, n, len(text))
		for _, longer := range []int{n + 1, n + 2, len(text) - 1} {
			require.Equal(t, n, k.border(text[:longer]))
		}
	}
	k := tinyBytes(r, gpt2Text).load(t)
	require.False(t, k.lines, "two line breaks at a text's end are one word for GPT-2, and not before more text")
}

// TestTheBeginningIsAnotherSegment: with prepend_scheme first the same text has other
// tokens at the beginning than after an added token.
func TestTheBeginningIsAnotherSegment(t *testing.T) {
	f := tinyCharacters(rand.New(rand.NewPCG(7, 7)))
	f["normalizer"] = nil
	f["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}
	k := f.load(t)
	e := k.NewEncoder()
	s := NewSegments(k, 1<<20)
	text := strings.Repeat("the same text ", 30)
	for _, whole := range []string{text, "<s>" + text, text} {
		got, err := s.Append(e, nil, []byte(whole), false)
		require.NoError(t, err)
		want, err := k.NewEncoder().Append(nil, []byte(whole), false)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestNoBorderIsWhereALineMerges: a line break and the letter after it may be one token.
func TestNoBorderIsWhereALineMerges(t *testing.T) {
	f := tinyCharacters(rand.New(rand.NewPCG(8, 8)))
	vocab := f.model()["vocab"].(map[string]int)
	vocab["\na"] = len(vocab)
	f.model()["merges"] = [][]string{{"\n", "a"}}
	k := f.load(t)
	text := []byte(strings.Repeat("b", chunkBytes) + strings.Repeat("\nab", 100) + "\nb")
	require.Equal(t, len(text)-1, k.border(text))
	got, err := NewSegments(k, 1<<20).Append(k.NewEncoder(), nil, text, false)
	require.NoError(t, err)
	want, err := k.NewEncoder().Append(nil, text, false)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestABucketThatIsFullLosesNothingYet: a conversation's segments are all found again as
// long as there may be more slots.
func TestABucketThatIsFullLosesNothingYet(t *testing.T) {
	k := tinyBytes(rand.New(rand.NewPCG(6, 6)), "").load(t)
	e := k.NewEncoder()
	s := NewSegments(k, 8<<20)
	var chat strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&chat, "%s, number %d<|a|>", strings.Repeat("a message ", 30), i)
	}
	_, err := s.Append(e, nil, []byte(chat.String()), false)
	require.NoError(t, err)
	head := s.head
	for range 3 {
		_, err = s.Append(e, nil, []byte(chat.String()), false)
		require.NoError(t, err)
	}
	require.Equal(t, head, s.head, "nothing was encoded again")
	require.NoError(t, s.checkLocked())
}

func TestSegmentsThatAreUsedStay(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	k := tinyBytes(r, "").load(t)
	e := k.NewEncoder()
	s := NewSegments(k, 64<<10)
	s.slots, s.maxSlots = make([]slot, 1<<16), 1<<16 // room in every bucket
	used := []byte(strings.Repeat("used again and again ", 20))
	for i := range 3000 {
		s.mu.RLock()
		require.Equal(t, i > 0, s.slot(s.key(used, true)) != nil)
		s.mu.RUnlock()
		_, err := s.Append(e, nil, used, false)
		require.NoError(t, err)
		_, err = s.Append(e, nil, []byte(tinyText(r, 20)), false)
		require.NoError(t, err)
	}
	require.NoError(t, s.checkLocked())
	require.Greater(t, s.head, 10*s.maxIDs, "the ring went round")
}

func TestSegmentsAreSharedByRequests(t *testing.T) {
	k := tinyBytes(rand.New(rand.NewPCG(5, 5)), "").load(t)
	s := NewSegments(k, 32<<10)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			r := rand.New(rand.NewPCG(6, uint64(i%3))) // some of them the same texts
			e, whole := k.NewEncoder(), k.NewEncoder()
			for range 100 {
				text := []byte(tinyText(r, 30))
				got, err := s.Append(e, nil, text, true)
				if err != nil {
					t.Error(err)
				}
				want, _ := whole.Append(nil, text, true)
				if !slices.Equal(got, want) {
					t.Error("other tokens than those of the whole")
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, s.checkLocked())
}

// Bytes returns how much memory the segments take.
func (s *Segments) Bytes() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return 4*cap(s.ids) + slotBytes*len(s.slots)
}
