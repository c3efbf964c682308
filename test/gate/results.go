package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// record is how a step ended.
type record struct {
	Commit  string    `json:"commit"` // with + behind it if the product differed from it
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Failed  string    `json:"failed,omitempty"` // why; empty: it ended well
}

// seen is what a step has left.
type seen struct {
	record
	stale bool                // what is given out has changed since
	tests map[string][]string // what became of tests, by name, in each package that has one
	files map[string]string   // by their last element
}

// read returns what a step has left in its folder, nil if it has not run.
func read(dir string) (*seen, error) {
	text, err := os.ReadFile(filepath.Join(dir, "record.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &seen{tests: map[string][]string{}, files: map[string]string{}}
	if err := json.Unmarshal(text, &s.record); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(file)
		s.files[name] = string(content)
		if strings.HasSuffix(name, ".json") {
			s.readTests(string(content))
		}
	}
	return s, nil
}

// readTests takes the tests' results from what go test -json has written; other lines are passed over.
func (s *seen) readTests(text string) {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test string }
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			s.tests[e.Test] = append(s.tests[e.Test], e.Action)
		}
	}
}

// passed says what became of tests, and whether all passed wherever they are.
func (s *seen) passed(names []string) (string, bool) {
	held := true
	var out []string
	for _, name := range names {
		became := s.tests[name]
		switch {
		case len(became) == 0:
			out, held = append(out, name+" did not run"), false
		case slices.ContainsFunc(became, func(a string) bool { return a != "pass" }):
			out, held = append(out, name+": "+strings.Join(became, ", ")), false
		default:
			out = append(out, name+" passed")
		}
	}
	return strings.Join(out, "; "), held
}

// ended says how the step ended.
func ended(s *seen) (string, bool) {
	took := fmt.Sprintf("%.0f s", s.Seconds)
	if s.Failed != "" {
		return fmt.Sprintf("failed after %s: %s", took, s.Failed), false
	}
	return "all passed, in " + took, true
}

// phase is what clients saw in a phase of TestClientsBesideFaults.
type phase struct {
	Column, Phase                 string
	Requests, Served, Failed, Cut int
	Slowest                       float64 `json:"slowest_s"`
}

// phases reads the lines that the test has left.
func (s *seen) phases() (out []phase) {
	for line := range strings.Lines(s.files["beside.json"]) {
		var p phase
		if json.Unmarshal([]byte(line), &p) == nil && p.Column != "" {
			out = append(out, p)
		}
	}
	return out
}

// besideSeen sums up the phases whose name has a word: no request may have failed before its answer.
func besideSeen(word string) func(*seen) (string, bool) {
	return func(s *seen) (string, bool) {
		var n phase
		columns := map[string]bool{}
		for _, p := range s.phases() {
			if strings.Contains(p.Phase, word) {
				columns[p.Column] = true
				n.Requests, n.Served, n.Failed, n.Cut = n.Requests+p.Requests, n.Served+p.Served, n.Failed+p.Failed, n.Cut+p.Cut
			}
		}
		if n.Requests == 0 {
			return "no phase of that kind has run", false
		}
		return fmt.Sprintf("%d requests, fleets of real engines: %d; %d failed before their answer, %d cut", n.Requests, len(columns), n.Failed, n.Cut), n.Failed == 0 && s.Failed == ""
	}
}

// drilled is what clients of a picker or proxy saw of a fault.
type drilled struct {
	Mode, Row             string
	NotRun                string `json:"not_run"`
	Requests, Failed      int
	Begun                 int // of Failed, those whose answer had begun: nobody can save them
	P50, P95, Worst, Back float64
}

// lost are those that another worker could have served.
func (d *drilled) lost() int { return d.Failed - d.Begun }

// drills reads what bench-drill has left.
func (s *seen) drills() []drilled {
	var file struct{ Rows []drilled }
	_ = json.Unmarshal([]byte(s.files["drill.json"]), &file) // what is no drill has no rows
	return file.Rows
}

// drillSeen says what Baton's clients saw of each fault, and whether any other lost fewer requests.
func drillSeen(s *seen) (string, bool) {
	var out []string
	held := s.Failed == ""
	best := map[string]int{}
	for _, d := range s.drills() {
		if least, known := best[d.Row]; d.NotRun == "" && (!known || d.lost() < least) {
			best[d.Row] = d.lost()
		}
	}
	for _, d := range s.drills() {
		if !strings.HasPrefix(d.Mode, "kv") || d.NotRun != "" {
			continue
		}
		out = append(out, fmt.Sprintf("%s, %s: %d of %d lost", d.Mode, d.Row, d.lost(), d.Requests))
		held = held && d.lost() <= best[d.Row]
	}
	return strings.Join(out, "; "), held && len(out) > 0
}

// routingSeen reads the live rows: hit rates and the first token's p50, by mode.
func routingSeen(s *seen) (string, bool) {
	hit, first := map[string]float64{}, map[string]float64{}
	for line := range strings.Lines(s.files["routing.md"]) {
		c := strings.Split(line, "|")
		if len(c) < 8 || strings.TrimSpace(c[2]) != "live" {
			continue
		}
		mode := strings.TrimSpace(c[1])
		var h, f float64
		_, errHit := fmt.Sscanf(strings.TrimSpace(c[3]), "%g %%", &h)
		_, errFirst := fmt.Sscanf(strings.TrimSpace(c[7]), "%g s", &f)
		if errHit == nil && errFirst == nil {
			hit[mode], first[mode] = h, f
		}
	}
	var out []string
	for _, mode := range []string{"kv", "least-loaded", "round-robin"} {
		if hit[mode] == 0 {
			return "no live row of " + mode, false
		}
		out = append(out, fmt.Sprintf("%s: %g %%, %g s", mode, hit[mode], first[mode]))
	}
	// What the page says, and a tenth for the noise of one run.
	held := hit["kv"] >= 0.9*25.5 && first["kv"]/first["least-loaded"] <= 1.1*0.77/1.09 && first["kv"]/first["round-robin"] <= 1.1*0.77/1.95
	return strings.Join(out, "; "), held
}

// keep copies what a step leaves into its folder.
func keep(root, dir string, files []string) error {
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, path.Base(file)), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
