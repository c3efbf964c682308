package trouble

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Trouble is one thing that is wrong now. Sentences have no full stop.
type Trouble struct {
	Kind    Kind
	Subject string    // names it, together with Kind; "": the kind has one at a time
	Count   int64     // of workers, requests or what else it concerns; 0 counts as 1
	Since   time.Time // zero: not known; [Watch] then says when it was first seen
	What    string    // what is wrong
	Effect  string    // on requests; "": see the kind
	Do      string    // what to do; "": see the kind
	Lighter bool      // it is less than others of its kind: requests neither fail nor wait
}

// of returns what holds for the trouble's kind.
func (t *Trouble) of() facts {
	rows := all()
	i := slices.IndexFunc(rows, func(f facts) bool { return f.kind == t.Kind })
	if i < 0 {
		return facts{kind: t.Kind}
	}
	return rows[i]
}

// Severe reports whether requests fail or wait because of it.
func (t *Trouble) Severe() bool { return !t.Lighter && t.of().severe }

// Tag is one word that catches the eye, or "".
func (t *Trouble) Tag() string { return t.of().tag }

// Means says what it does to requests; "": nothing to say.
func (t *Trouble) Means() string { return cmp.Or(t.Effect, t.of().effect) }

// Help says what to do; "": nothing to say.
func (t *Trouble) Help() string { return cmp.Or(t.Do, t.of().do) }

// LogsBegin reports whether its beginning is to be logged, and LogsEnd whether its end is: the part
// that finds it may do so itself.
func (t *Trouble) LogsBegin() bool { return t.of().log == nothing }

// LogsEnd is explained at LogsBegin.
func (t *Trouble) LogsEnd() bool { return t.of().log != both }

// N is how many it concerns.
func (t *Trouble) N() int64 { return max(t.Count, 1) }

// Text is all of it in sentences, without tag and time.
func (t *Trouble) Text() string {
	var b strings.Builder
	for _, s := range []string{t.What, t.Means(), t.Help()} {
		if s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strings.TrimSuffix(s, "."))
		b.WriteByte('.')
	}
	return b.String()
}

// Line is the tag and the sentences.
func (t *Trouble) Line() string { return strings.TrimPrefix(t.Tag()+": "+t.Text(), ": ") }

// Sort puts the severe ones first, and else keeps the order of the kinds.
func Sort(ts []Trouble) {
	place := make(map[Kind]int)
	rows := all() // once: it is asked for at each comparison
	for i := range rows {
		place[rows[i].kind] = i
		if !rows[i].severe {
			place[rows[i].kind] += len(rows)
		}
	}
	at := func(t *Trouble) int {
		n, known := place[t.Kind]
		if !known || t.Lighter && n < len(rows) {
			n += len(rows)
		}
		return n
	}
	slices.SortStableFunc(ts, func(a, b Trouble) int { return cmp.Compare(at(&a), at(&b)) })
}

// ByKind counts what the troubles concern; every kind is there.
func ByKind(ts []Trouble) map[string]int64 {
	n := make(map[string]int64)
	for _, k := range Kinds() {
		n[string(k)] = 0
	}
	for i := range ts {
		n[string(ts[i].Kind)] += ts[i].N()
	}
	return n
}

// Because is a reason in brackets, to go behind what it is the reason of; "" without one.
func Because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}
