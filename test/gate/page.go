package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/pagepart"
)

const (
	pageName   = "docs/gate.md"
	partBegins = "<!-- what was seen begins; make gate writes it -->\n"
	partEnds   = "<!-- what was seen ends -->\n"
)

// page writes what steps have left, and reports whether every claim has held.
func (g *gate) page(ctx context.Context, now time.Time) (bool, error) {
	commit, err := g.commit(ctx)
	if err != nil {
		return false, err
	}
	left := map[string]*seen{}
	for _, s := range steps() {
		l, err := read(filepath.Join(g.kept, s.name))
		if err != nil {
			return false, err
		}
		if l != nil {
			l.stale = !g.same(ctx, l.Commit, commit)
		}
		left[s.name] = l
	}
	name := filepath.Join(g.root, pageName)
	old, err := os.ReadFile(name)
	if err != nil {
		return false, err
	}
	text, held := render(steps(), claims(), left)
	text = fmt.Sprintf("Written %s on %d processors, of %s.\n\n%s", now.Format(time.DateOnly), runtime.NumCPU(), strings.TrimSuffix(commit, "+"), text)
	whole, err := pagepart.Replace(string(old), partBegins, partEnds, func(string) string { return text })
	if err != nil {
		return false, fmt.Errorf("%s: %w", pageName, err)
	}
	return held, os.WriteFile(name, []byte(whole), 0o600)
}

// render is the page's tables, and whether every claim has held.
func render(all []step, of []claim, left map[string]*seen) (string, bool) {
	var b strings.Builder
	held := true
	b.WriteString("## What README.md claims\n\n")
	for _, c := range of {
		var saw strings.Builder
		worst := yes
		for _, j := range c.by {
			what, v := j.look(left[j.step])
			fmt.Fprintf(&saw, "  - *%s*: %s\n", j.step, what)
			worst = min(worst, v)
		}
		fmt.Fprintf(&b, "- %s: \"%s\"\n%s", worst, link.ReplaceAllString(c.says, "$1"), saw.String())
		held = held && worst == yes
	}
	b.WriteString("\n## The steps\n\n| step | what | took | ended | of |\n| --- | --- | ---: | --- | --- |\n")
	for _, s := range all {
		took, how, at := "", "has not run", ""
		if l := left[s.name]; l != nil {
			took, how, at = fmt.Sprintf("%.0f min", l.Seconds/60), cmp.Or(l.Failed, "well"), l.Commit
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", s.name, s.what, took, cell(how), at)
	}
	if l := left["beside"]; l != nil && len(l.phases()) > 0 {
		b.WriteString("\n## Real engines and clients beside faults\n\n| fleet | beside | requests | served | failed | cut | slowest |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n")
		for _, p := range l.phases() {
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %.1f s |\n", p.Column, p.Phase, p.Requests, p.Served, p.Failed, p.Cut, p.Slowest)
		}
	}
	if l := left["drill"]; l != nil && len(l.drills()) > 0 {
		b.WriteString("\n## Pickers and proxies when something fails\n\n" +
			"Lost are requests that got no answer, cut those whose answer had begun. Times are of a whole answer, as multiples of those of the same picker before the fault.\n\n" +
			"| picker or proxy | fault | requests | lost | cut | p50 | p95 | worst | as before after |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
		for _, d := range l.drills() {
			if d.NotRun != "" {
				fmt.Fprintf(&b, "| %s | %s | not run: %s | | | | | | |\n", d.Mode, d.Row, cell(d.NotRun))
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %.2f | %.2f | %.2f | %s |\n", d.Mode, d.Row, d.Requests, d.lost(), d.Begun, d.P50, d.P95, d.Worst, back(d.Back))
		}
	}
	return b.String(), held
}

// verdict is whether a claim has held, the worst first.
type verdict int

const (
	no verdict = iota
	unseen
	yes
)

func (v verdict) String() string { return [...]string{"**Not held**", "**Not seen**", "Held"}[v] }

// look says what the judge has seen. What was seen of another product does not count.
func (j *judge) look(s *seen) (string, verdict) {
	if s == nil {
		return "the step has not run", unseen
	}
	see := j.see
	if see == nil {
		see = func(s *seen) (string, bool) { return s.passed(j.tests) }
	}
	what, held := see(s)
	switch {
	case !held:
		return what, no
	case s.stale:
		return what + " (of " + s.Commit + ")", unseen
	}
	return what, yes
}

// back is how long it took until requests were answered as before, in s; below 0: longer than anybody looked.
func back(s float64) string {
	if s < 0 {
		return "later"
	}
	return fmt.Sprintf("%.0f s", s)
}

// link is one of README.md, which leads nowhere from this page.
var link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// cell is a text as a table's cell.
func cell(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "|", "\\|")), " ")
}
