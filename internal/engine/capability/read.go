package capability

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// Must returns the table of a room's file. It panics if the file is malformed: a room's test
// reads it.
func Must(file string) *Table {
	t, err := read(file)
	if err != nil {
		panic("capabilities: " + err.Error())
	}
	return t
}

// Join returns a table of several engines, of which a request on one of the paths may reach any
// that takes it: a member is known if one knows it, and prevents a hand-off if it does so for one.
func Join(paths []openai.Path, tables ...*Table) *Table {
	all := &Table{}
	for _, p := range paths {
		all.on[p] = map[string][]*Row{}
		for _, t := range tables {
			for member, rows := range t.on[p] {
				all.on[p][member] = append(all.on[p][member], rows...)
			}
		}
	}
	return all
}

// Only returns the table of an engine that takes a hand-off on these of the paths alone, and serves
// the others by one worker.
func (t *Table) Only(paths ...openai.Path) *Table {
	less := Join(paths, t)
	less.Rows, less.never = t.Rows, t.never
	for _, p := range t.Paths {
		known, _ := openai.ParsePath(p.Pattern)
		p.Apart = p.Apart && slices.Contains(paths, known)
		less.Paths = append(less.Paths, p)
	}
	return less
}

// reader is a file that is being read.
type reader struct {
	table  Table
	source Source
	paths  []string // those that rows are of
}

func read(file string) (*Table, error) {
	var r reader
	for i, line := range strings.Split(file, "\n") {
		line, _, _ = strings.Cut(line, "#")
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "" {
			continue
		}
		if err := r.line(word, rest); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	t := &r.table
	for i := range t.Rows {
		row := &t.Rows[i]
		for _, path := range row.Paths {
			p, ok := openai.ParsePath(path)
			if ok && row.Never {
				t.never[p] = append(t.never[p], row)
			} else if ok && t.on[p] != nil {
				t.on[p][row.Member] = append(t.on[p][row.Member], row)
			}
		}
	}
	return t, nil
}

func (r *reader) line(word, rest string) (err error) {
	fields := strings.Fields(rest)
	switch {
	case len(fields) == 0:
		return fmt.Errorf("%s: expected something behind it", word)
	case word == "source":
		r.source.Version, r.source.Place, _ = strings.Cut(rest, " ")
		return nil
	case r.source.Place == "":
		return fmt.Errorf("%s: expected a line \"source VERSION PLACE\" before it", word)
	}
	switch word {
	case "apart", "one", "any":
		r.paths = fields
		for _, pattern := range fields {
			r.table.Paths = append(r.table.Paths, Path{Pattern: pattern, Apart: word == "apart", Any: word == "any", Source: r.source})
			if p, ok := openai.ParsePath(pattern); ok && word == "apart" {
				r.table.on[p] = map[string][]*Row{}
			}
		}
	case "pass", "tokens":
		for _, member := range fields {
			r.row(Row{Member: member, Tokens: word == "tokens"})
		}
	case "stop", "never":
		err = r.stop(fields, word == "never")
	default:
		err = fmt.Errorf("%s: expected source, apart, one, any, pass, tokens, stop or never", word)
	}
	return err
}

func (r *reader) row(row Row) {
	row.Paths, row.Source = r.paths, r.source
	r.table.Rows = append(r.table.Rows, row)
}

// stop reads a row that names a member and a test, once or twice.
func (r *reader) stop(fields []string, never bool) error {
	row := Row{Member: fields[0], Stops: strings.Join(fields[1:], " "), Never: never}
	for len(fields) > 1 {
		member, name := fields[0], fields[1]
		fields = fields[2:]
		behind := ""
		if name != "given" && name != "true" && name != "empty" {
			if len(fields) == 0 {
				return fmt.Errorf("%s: expected a number or a word behind it", name)
			}
			behind, fields = fields[0], fields[1:]
		}
		passes, err := tests(name, behind)
		if err != nil {
			return err
		}
		row.when = append(row.when, condition{member, passes})
		if len(fields) > 0 && fields[0] == "with" {
			fields = fields[1:]
		}
	}
	if len(fields) > 0 || len(row.when) == 0 || len(row.when) > 2 {
		return errors.New("stop: expected MEMBER TEST, with MEMBER TEST or nothing behind it")
	}
	r.row(row)
	return nil
}
