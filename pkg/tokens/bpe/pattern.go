package bpe

// A pattern finds the matches of one published regular expression. Each is written by
// hand after the expression's alternatives, and recognised by the expression's exact
// text: see patterns.
type pattern interface {
	// find returns the first match that begins at i or later: its begin and end. Without
	// a match both are len(s). s is valid UTF-8; what stands before i has been matched.
	find(c *classes, s []byte, i int) (begin, end int)
}

// Parts that the published expressions share.
const (
	contractionsText = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	blanksText       = `|\s*[\r\n]+|\s+(?!\S)|\s+`
	upperText        = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lowerText        = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	beforeText       = `[^\r\n\p{L}\p{N}]?`
	gpt2Text         = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// patterns returns the expressions that are known, by their text.
func patterns() map[string]pattern {
	m := map[string]pattern{
		gpt2Text:       gpt2{},
		`\p{N}{1,3}`:   numbers{},
		"[一-龥぀-ゟ゠-ヿ]+": eastAsian{},
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+": deepSeek{},
	}
	for text, digits := range map[string]int{`\p{N}`: 1, `\p{N}{1,3}`: 3} {
		m[contractionsText+`|`+beforeText+`\p{L}+|`+text+`| ?[^\s\p{L}\p{N}]+[\r\n]*`+blanksText] = words{digits: digits, letters: letter}
		m[contractionsText+`|`+beforeText+`[\p{L}\p{M}]+|`+text+`| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`+blanksText] = words{digits: digits, letters: letter | mark}
		for end, contracted := range map[string]bool{contractionsText + `?`: true, ``: false} {
			m[beforeText+upperText+`*`+lowerText+`+`+end+`|`+beforeText+upperText+`+`+lowerText+`*`+end+`|`+text+
				`| ?[^\s\p{L}\p{N}]+[\r\n/]*`+blanksText] = cased{digits: digits, contracted: contracted}
		}
	}
	return m
}

// run returns the end of the run of characters with a class of want that begins at i.
func (c *classes) run(s []byte, i int, want class) int {
	for i < len(s) {
		got, n := c.at(s, i)
		if got&want == 0 {
			break
		}
		i += n
	}
	return i
}

// runWithout is run for characters with no class of but.
func (c *classes) runWithout(s []byte, i int, but class) int {
	for i < len(s) {
		got, n := c.at(s, i)
		if got&but != 0 {
			break
		}
		i += n
	}
	return i
}

// runAtMost is run for at most most characters.
func (c *classes) runAtMost(s []byte, i int, want class, most int) int {
	for ; i < len(s) && most > 0; most-- {
		got, n := c.at(s, i)
		if got&want == 0 {
			break
		}
		i += n
	}
	return i
}

// blanks matches \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line break of the
// run; else the run, but for its last character if more text follows. Without lines it
// matches \s+(?!\S)|\s+.
func (c *classes) blanks(s []byte, i int, lines bool) int {
	begin, last, end := i, i, -1
	for i < len(s) {
		got, n := c.at(s, i)
		if got&space == 0 {
			break
		}
		last = i
		i += n
		if s[last] == '\n' || s[last] == '\r' {
			end = i
		}
	}
	switch {
	case lines && end > 0:
		return end
	case i < len(s) && last > begin:
		return last
	default:
		return i
	}
}

// lineEnd returns the end of the run of line breaks, and of slashes if they count as
// some, that begins at i.
func lineEnd(s []byte, i int, slash bool) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r' || slash && s[i] == '/') {
		i++
	}
	return i
}

// contraction returns the end of (?i:'s|'t|'re|'ve|'m|'ll|'d) at the apostrophe s[i], or
// i. U+017F is a lower-case s to the engine of tokenizers.
func contraction(s []byte, i int) int {
	if i+1 >= len(s) {
		return i
	}
	second := byte(0)
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		second = 'e'
	case 'l':
		second = 'l'
	default:
		if s[i+1] == 0xC5 && s[i+2] == 0xBF {
			return i + 3
		}
		return i
	}
	if i+2 < len(s) && s[i+2]|0x20 == second {
		return i + 3
	}
	return i
}

// words is the expression of cl100k and its like: contractions, words with one character
// before them, numbers of at most digits digits, other signs, blanks.
type words struct {
	digits  int
	letters class // what words are made of
}

func (w words) find(c *classes, s []byte, i int) (int, int) {
	if i >= len(s) {
		return i, i
	}
	b := s[i]
	if b == '\'' {
		end := contraction(s, i)
		if end > i {
			return i, end
		}
	}
	got, n := c.at(s, i)
	if got&letter != 0 {
		return i, c.run(s, i+n, w.letters)
	}
	if got&number == 0 && b != '\r' && b != '\n' {
		end := c.run(s, i+n, w.letters)
		if end > i+n || got&w.letters != 0 {
			return i, end
		}
	}
	if got&number != 0 {
		return i, c.runAtMost(s, i+n, number, w.digits-1)
	}
	return i, signs(c, s, i, got, w.letters|number|space, false, true)
}

// signs matches ` ?[^but]+[\r\n]*` at i, whose class is got, else blanks; slash adds
// slashes to the line breaks at the end.
func signs(c *classes, s []byte, i int, got, but class, slash, lines bool) int {
	j := i
	if s[i] == ' ' {
		j++
	} else if got&space != 0 {
		return c.blanks(s, i, lines)
	}
	end := c.runWithout(s, j, but)
	if end == j {
		return c.blanks(s, i, lines)
	}
	if !lines {
		return end
	}
	return lineEnd(s, end, slash)
}

// cased is the expression of o200k and its like: words end where lower case turns to
// upper case.
type cased struct {
	digits     int
	contracted bool // contractions belong to the word before them
}

func (p cased) find(c *classes, s []byte, i int) (int, int) {
	if i >= len(s) {
		return i, i
	}
	got, n := c.at(s, i)
	end := casedWord(c, s, i, n, got&(letter|number) == 0 && s[i] != '\r' && s[i] != '\n')
	if end > i {
		if p.contracted && end < len(s) && s[end] == '\'' {
			end = contraction(s, end)
		}
		return i, end
	}
	if got&number != 0 {
		return i, c.runAtMost(s, i+n, number, p.digits-1)
	}
	return i, signs(c, s, i, got, letter|number|space, true, true)
}

// casedWord matches the two alternatives for words at i, where a character of n bytes
// stands: each first with this character before the word, if it is free to be that. It
// returns i without a match.
func casedWord(c *classes, s []byte, i, n int, free bool) int {
	if free {
		end := lowered(c, s, i+n)
		if end > i+n {
			return end
		}
	}
	end := lowered(c, s, i)
	if end > i {
		return end
	}
	if free {
		end = uppered(c, s, i+n)
		if end > i+n {
			return end
		}
	}
	return uppered(c, s, i)
}

func isUpper(g class) bool { return g&mark != 0 || g&(letter|lower) == letter }
func isLower(g class) bool { return g&mark != 0 || g&(letter|upper) == letter }

// lowered matches upper* lower+ at i, and returns i without a match. What is neither
// upper nor lower case counts as both, so the first part gives back what the second needs.
func lowered(c *classes, s []byte, i int) int {
	both := i // the end of the last character of the first part that is also lower
	j := i
	for j < len(s) {
		got, n := c.at(s, j)
		if !isUpper(got) {
			break
		}
		j += n
		if isLower(got) {
			both = j
		}
	}
	end := lowerRun(c, s, j)
	if end > j {
		return end
	}
	return both
}

// uppered matches upper+ lower* at i, and returns i without a match.
func uppered(c *classes, s []byte, i int) int {
	j := i
	for j < len(s) {
		got, n := c.at(s, j)
		if !isUpper(got) {
			break
		}
		j += n
	}
	if j == i {
		return i
	}
	return lowerRun(c, s, j)
}

func lowerRun(c *classes, s []byte, i int) int {
	for i < len(s) {
		got, n := c.at(s, i)
		if !isLower(got) {
			break
		}
		i += n
	}
	return i
}

// gpt2 is the expression that ByteLevel has of its own.
type gpt2 struct{}

func (gpt2) find(c *classes, s []byte, i int) (int, int) {
	if i >= len(s) {
		return i, i
	}
	if s[i] == '\'' && i+1 < len(s) {
		switch s[i+1] {
		case 's', 't', 'm', 'd':
			return i, i + 2
		}
		if i+2 < len(s) {
			switch string(s[i+1 : i+3]) {
			case "re", "ve", "ll":
				return i, i + 3
			}
		}
	}
	j := i
	if s[i] == ' ' {
		j++
	}
	for _, want := range [...]class{letter, number} {
		end := c.run(s, j, want)
		if end > j {
			return i, end
		}
	}
	got, _ := c.at(s, i)
	return i, signs(c, s, i, got, letter|number|space, false, false)
}

// numbers is \p{N}{1,3}.
type numbers struct{}

func (numbers) find(c *classes, s []byte, i int) (int, int) {
	i = c.runWithout(s, i, number)
	return i, c.runAtMost(s, i, number, 3)
}

// eastAsian is [一-龥぀-ゟ゠-ヿ]+.
type eastAsian struct{}

func (eastAsian) find(_ *classes, s []byte, i int) (int, int) {
	inside := func(j int) (bool, int) {
		r, n := decode(s, j)
		return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF, n
	}
	for i < len(s) {
		if s[i] < 0x80 {
			i++
			continue
		}
		in, n := inside(i)
		if in {
			break
		}
		i += n
	}
	end := i
	for end < len(s) && s[end] >= 0x80 {
		in, n := inside(end)
		if !in {
			break
		}
		end += n
	}
	return i, end
}

// deepSeek is the third expression of DeepSeek-V3. It leaves out what is no letter, mark,
// sign or space, such as numbers.
type deepSeek struct{}

func (d deepSeek) find(c *classes, s []byte, i int) (int, int) {
	for i < len(s) {
		end, n := d.match(c, s, i)
		if end > i {
			return i, end
		}
		i += n
	}
	return i, i
}

// match returns the end of the match at i, or i, and the length of the character there.
func (deepSeek) match(c *classes, s []byte, i int) (end, n int) {
	b := s[i]
	got, n := c.at(s, i)
	if b < 0x80 && got&(punct|sign) != 0 {
		j := i + 1
		for j < len(s) && (s[j]|0x20) >= 'a' && (s[j]|0x20) <= 'z' {
			j++
		}
		if j > i+1 {
			return j, n
		}
	}
	if got&letter != 0 {
		return c.run(s, i+n, letter|mark), n
	}
	if got&(punct|sign) == 0 && b != '\r' && b != '\n' {
		end := c.run(s, i+n, letter|mark)
		if end > i+n || got&mark != 0 {
			return end, n
		}
	}
	j := i
	if b == ' ' {
		j++
	}
	end = c.run(s, j, punct|sign)
	if end > j {
		return lineEnd(s, end, false), n
	}
	if got&space != 0 {
		return c.blanks(s, i, true), n
	}
	return i, n
}
