// Package matrixtable reads the table that says who serves a request
// (internal/extproc/testdata/matrix). Tests use it that ask the server, or a real Envoy.
//
// Contract. A table has each cell exactly once: one for each state, mode and column. Errors
// are an unknown name, a cell that is missing or occurs twice, and a cell that says neither
// who serves the request nor how the request is refused. So no cell is left out unnoticed.
//
// What it does not do: it sets up no state and sends no request.
package matrixtable

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// States returns the names of the states in which the prefill workers of a model may be.
func States() []string {
	return []string{
		"absent", "becoming ready", "ready", "deactivated", "saturated",
		"all ineligible: draining", "all ineligible: overloaded", "all ineligible: lack a taint",
	}
}

// Mode is how a request comes.
type Mode struct {
	Routing         string // x-baton-routing of the filter: "", "prerouted" or "direct"
	Prefill, Decode int    // the workers that the request names; 0: none
	Query           bool   // the request only asks who would serve it
}

func modes() map[string]Mode {
	return map[string]Mode{
		"normal":                      {},
		"pre-routed, decode 4":        {Routing: "prerouted", Decode: 4},
		"pre-routed, prefill 2":       {Routing: "prerouted", Prefill: 2},
		"direct, prefill 2, decode 4": {Routing: "direct", Prefill: 2, Decode: 4},
		"direct, decode 4":            {Routing: "direct", Decode: 4},
		"query-only":                  {Routing: "prerouted", Query: true},
	}
}

// column is two settings on which the outcome depends.
type column struct {
	Enforced bool // enforce_disagg is set
	Accepts  bool // decode workers accept aggregated requests
}

func columns() map[string]column {
	return map[string]column{
		"free, accepts": {false, true}, "free, needs": {false, false},
		"enforced, accepts": {true, true}, "enforced, needs": {true, false},
	}
}

// Outcome is who serves a request, or how it is refused.
type Outcome struct {
	Prefill, Decode int    // the workers; Prefill is 0 if decode serves alone
	Status          int    // of a refusal; 0: none
	Code            string // of a refusal
}

// String returns the outcome as the table writes it.
func (o Outcome) String() string {
	switch {
	case o.Status != 0:
		return fmt.Sprint(o.Status, " ", o.Code)
	case o.Prefill != 0:
		return fmt.Sprint(o.Prefill, " > ", o.Decode)
	}
	return strconv.Itoa(o.Decode)
}

// can reports whether the outcome is possible: a refusal with an error status, or workers that
// exist. These are 1 and 2 for prefill, 3 and 4 for decode.
func (o Outcome) can() bool {
	if o.Status != 0 {
		return o.Status >= 400 && o.Status <= 599
	}
	return o.Prefill <= 2 && (o.Decode == 3 || o.Decode == 4)
}

// Cell is one request of the table, and the outcome that is wanted.
type Cell struct {
	Name  string // state | mode | column
	State string
	Mode
	column
	Want Outcome
}

// Read returns the cells of the file, in the order in which they stand there.
func Read(path string) ([]Cell, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("matrixtable: %w", err)
	}
	return parse(string(text))
}

func parse(text string) ([]Cell, error) {
	var cells []Cell
	for block := range strings.SplitSeq(text, "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if strings.HasPrefix(lines[0], "#") {
			continue
		}
		title, names := row(lines[0])
		state, err := stateOf(title)
		if err != nil {
			return nil, err
		}
		for _, line := range lines[1:] {
			mode, wants := row(line)
			if len(wants) != len(names) {
				return nil, fmt.Errorf("matrixtable: %d cells in %q: expected %d", len(wants), line, len(names))
			}
			for i, want := range wants {
				c, err := cellOf(state, mode, names[i], want)
				if err != nil {
					return nil, err
				}
				cells = append(cells, c)
			}
		}
	}
	return cells, complete(cells)
}

// row splits one line of the table.
func row(line string) (name string, cells []string) {
	parts := strings.Split(line, "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts[0], parts[1:]
}

// stateOf returns the state that a title names. After the last colon a title may have a
// remark for the reader.
func stateOf(title string) (string, error) {
	short := title[:max(0, strings.LastIndex(title, ":"))]
	for _, name := range []string{title, short} {
		if slices.Contains(States(), name) {
			return name, nil
		}
	}
	return "", fmt.Errorf("matrixtable: state %q: expected one of %q", title, States())
}

func cellOf(state, mode, col, want string) (Cell, error) {
	m, known := modes()[mode]
	if !known {
		return Cell{}, fmt.Errorf("matrixtable: mode %q is not known", mode)
	}
	c, known := columns()[col]
	if !known {
		return Cell{}, fmt.Errorf("matrixtable: column %q is not known", col)
	}
	o, err := outcomeOf(want)
	if err != nil {
		return Cell{}, err
	}
	return Cell{Name: state + " | " + mode + " | " + col, State: state, Mode: m, column: c, Want: o}, nil
}

func outcomeOf(s string) (o Outcome, err error) {
	for _, form := range []struct {
		layout string
		to     []any
	}{
		{"%d > %d", []any{&o.Prefill, &o.Decode}},
		{"%d %s", []any{&o.Status, &o.Code}},
		{"%d", []any{&o.Decode}},
	} {
		o = Outcome{}
		if _, err := fmt.Sscanf(s, form.layout, form.to...); err == nil && o.String() == s && o.can() {
			return o, nil
		}
	}
	return Outcome{}, fmt.Errorf("matrixtable: cell %q: expected a worker, two workers as 1 > 3, or a status and a code", s)
}

// complete returns an error that names the cells which are not there exactly once.
func complete(cells []Cell) error {
	seen := map[string]int{}
	for i := range cells {
		seen[cells[i].Name]++
	}
	var errs []error
	for _, state := range States() {
		for mode := range modes() {
			for col := range columns() {
				name := state + " | " + mode + " | " + col
				if n := seen[name]; n != 1 {
					errs = append(errs, fmt.Errorf("matrixtable: %s is there %d times", name, n))
				}
			}
		}
	}
	return errors.Join(errs...)
}
