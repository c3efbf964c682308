package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// record keeps what happened: faults, answers by class, and what was wrong.
// Safe for concurrent use.
type record struct {
	out     io.Writer
	started time.Time
	verbose bool

	mu         sync.Mutex
	faults     history        // guarded by mu
	classes    map[string]int // guarded by mu
	asked      int            // guarded by mu
	violations []violation    // guarded by mu
}

// violation is what must not be. The first one's story is told in full.
type violation struct {
	at    time.Duration
	what  string
	story string
}

func newRecord(out io.Writer, verbose bool) *record {
	return &record{out: out, started: time.Now(), verbose: verbose, classes: map[string]int{}}
}

func (r *record) since() time.Duration { return time.Since(r.started) }

// begin notes that a fault is on; the function it returns, that it is over.
func (r *record) begin(f fault) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.faults)
	r.faults = append(r.faults, span{Fault: f, From: r.since()})
	if r.verbose {
		r.sayLocked("%s", f)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults[i].To = r.since()
	}
}

// stalls notes when the machine does not run this process, until ctx ends.
func (r *record) stalls(ctx context.Context) {
	const tick, late = 50 * time.Millisecond, 250 * time.Millisecond
	last := r.since()
	for ctx.Err() == nil {
		pause(ctx, tick)
		now := r.since()
		if now-last > late {
			f := fault{At: last, For: now - last, Kind: machineStall}
			r.mu.Lock()
			r.faults = append(r.faults, span{Fault: f, From: last, To: now})
			r.sayLocked("the machine did not run us for %s", f.For.Round(time.Millisecond))
			r.mu.Unlock()
		}
		last = now
	}
}

// history returns what was wrong so far.
func (r *record) history() history {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.faults)
}

func (r *record) count(class string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.classes[class]++
}

func (r *record) violate(what, story string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, violation{at: r.since(), what: what, story: story})
	r.sayLocked("VIOLATION %s", what)
}

func (r *record) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.violations) > 0
}

func (r *record) say(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sayLocked(format, a...)
}

func (r *record) sayLocked(format string, a ...any) {
	_, _ = fmt.Fprintf(r.out, "%7.1fs  %s\n", r.since().Seconds(), fmt.Sprintf(format, a...))
}

// tally is the answers in a line, in order of their number.
func (r *record) tally(most int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := sortedByCount(r.classes)
	out := make([]string, 0, len(keys))
	for i, k := range keys {
		if i == most {
			out = append(out, "…")
			break
		}
		out = append(out, fmt.Sprintf("%s %d", k, r.classes[k]))
	}
	return strings.Join(out, ", ")
}

func sortedByCount(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	return keys
}

// summary prints what was done and what clients saw.
func (r *record) summary() {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "\nWhat went wrong: %d faults\n", len(r.faults))
	times := map[kind][]string{}
	counts := map[string]int{}
	for _, s := range r.faults {
		times[s.Fault.Kind] = append(times[s.Fault.Kind], fmt.Sprintf("%.1f–%.1f", s.From.Seconds(), s.To.Seconds()))
		counts[string(s.Fault.Kind)]++
	}
	for _, k := range sortedByCount(counts) {
		fmt.Fprintf(r.out, "  %-12s %3d  at s %s\n", k, counts[k], strings.Join(times[kind(k)], " "))
	}
	fmt.Fprintf(r.out, "\nWhat clients saw: %d requests\n", r.asked)
	for _, k := range sortedByCount(r.classes) {
		fmt.Fprintf(r.out, "  %6d  %s\n", r.classes[k], k)
	}
}

// verdict prints PASS, or FAIL with the first story, and returns whether all
// was well.
func (r *record) verdict(seed uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.violations) == 0 {
		fmt.Fprintf(r.out, "\nPASS  seed %d\n", seed)
		return true
	}
	fmt.Fprintf(r.out, "\nFAIL  seed %d: %d violations\n", seed, len(r.violations))
	for i, v := range r.violations {
		if i == 30 {
			fmt.Fprintf(r.out, "  …\n")
			break
		}
		fmt.Fprintf(r.out, "  %.1fs  %s\n", v.at.Seconds(), v.what)
	}
	fmt.Fprintf(r.out, "\nThe first, in full:\n%s\n%s\n", r.violations[0].what, r.violations[0].story)
	return false
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
