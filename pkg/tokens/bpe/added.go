package bpe

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// addedToken is a token that is found in the text before anything else is done to it.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// added finds added tokens: at each place the longest, from left to right.
type added struct {
	classes *classes
	only    int         // the one byte that all begin with; -1: there are several
	first   [256]uint32 // the node that a token's first byte leads to; 0: none
	nodes   []node
	edges   []edge
	strips  map[uint32][2]bool // of the tokens that take spaces along: left, right
	lines   bool               // some token may take a line break
}

// node is a place in the tree of the tokens' bytes. Its edges are sorted by byte.
type node struct {
	from, to uint32 // in edges
	id       uint32 // of the token that ends here
	ends     bool
}

type edge struct {
	b  byte
	to uint32
}

// addedText is a token with the text that it is found by.
type addedText struct {
	text  string
	token addedToken
}

// newAdded returns nil without tokens.
func newAdded(c *classes, tokens []addedText) *added {
	if len(tokens) == 0 {
		return nil
	}
	tokens = slices.Clone(tokens)
	slices.SortFunc(tokens, func(a, b addedText) int { return cmp.Compare(a.text, b.text) })
	a := &added{classes: c, nodes: make([]node, 1), strips: map[uint32][2]bool{}}
	a.build(0, tokens, 0)
	root := a.nodes[0]
	a.only = int(a.edges[root.from].b)
	if root.to-root.from > 1 {
		a.only = -1
	}
	for _, e := range a.edges[root.from:root.to] {
		a.first[e.b] = e.to
	}
	for _, t := range tokens {
		a.lines = a.lines || t.token.LStrip || t.token.RStrip || strings.ContainsRune(t.text, '\n')
		if t.token.LStrip || t.token.RStrip {
			a.strips[t.token.ID] = [2]bool{t.token.LStrip, t.token.RStrip}
		}
	}
	return a
}

// build makes the edges of a node from the sorted tokens that lead there by their first
// depth bytes.
func (a *added) build(at uint32, tokens []addedText, depth int) {
	for len(tokens) > 0 && len(tokens[0].text) == depth {
		a.nodes[at].id, a.nodes[at].ends = tokens[0].token.ID, true
		tokens = tokens[1:]
	}
	type part struct {
		to     uint32
		tokens []addedText
	}
	var parts []part
	a.nodes[at].from = uint32(len(a.edges))
	for len(tokens) > 0 {
		b, n := tokens[0].text[depth], 1
		for n < len(tokens) && tokens[n].text[depth] == b {
			n++
		}
		to := uint32(len(a.nodes))
		a.nodes = append(a.nodes, node{})
		a.edges = append(a.edges, edge{b, to})
		parts = append(parts, part{to, tokens[:n]})
		tokens = tokens[n:]
	}
	a.nodes[at].to = uint32(len(a.edges))
	for _, p := range parts {
		a.build(p.to, p.tokens, depth+1)
	}
}

// longest returns the longest token that begins at s[i], and its length; 0: none.
func (a *added) longest(s []byte, i int) (id uint32, n int) {
	at := a.first[s[i]]
	if at == 0 {
		return 0, 0
	}
	for j := i + 1; ; j++ {
		v := &a.nodes[at]
		if v.ends {
			id, n = v.id, j-i
		}
		if j >= len(s) {
			return id, n
		}
		at = 0
		for _, e := range a.edges[v.from:v.to] {
			if e.b == s[j] {
				at = e.to
				break
			}
		}
		if at == 0 {
			return id, n
		}
	}
}

// found is one added token in a text. It takes the place of text[begin:end].
type found struct {
	begin, end int
	resume     int // where the search goes on
	id         uint32
}

// next returns the first token at from or later, and false if there is none. The text up
// to taken belongs to earlier tokens.
func (a *added) next(s []byte, from, taken int) (found, bool) {
	for i := a.begin(s, from); i < len(s); i = a.begin(s, i+1) {
		id, n := a.longest(s, i)
		if n == 0 {
			continue
		}
		at := found{begin: i, end: i + n, resume: i + n, id: id}
		if strip, ok := a.strips[id]; ok {
			if strip[0] {
				at.begin = a.blankBefore(s, i, taken)
			}
			if strip[1] {
				at.end = a.classes.run(s, at.end, space)
			}
		}
		return at, true
	}
	return found{}, false
}

// begin returns the first place at i or later where some token's first byte stands, or
// len(s).
func (a *added) begin(s []byte, i int) int {
	if a.only >= 0 {
		n := bytes.IndexByte(s[i:], byte(a.only))
		if n < 0 {
			return len(s)
		}
		return i + n
	}
	f := &a.first
	for i+4 <= len(s) && f[s[i]]|f[s[i+1]]|f[s[i+2]]|f[s[i+3]] == 0 {
		i += 4
	}
	for i < len(s) && f[s[i]] == 0 {
		i++
	}
	return i
}

// blankBefore returns where the run of spaces before i begins, at taken or later.
func (a *added) blankBefore(s []byte, i, taken int) int {
	for i > taken {
		j := i - 1
		for j > 0 && s[j]&0xC0 == 0x80 {
			j--
		}
		got, _ := a.classes.at(s, j)
		if got&space == 0 {
			break
		}
		i = j
	}
	return max(i, taken)
}
