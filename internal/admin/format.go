package admin

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
)

// duration prints d as people say it, in one unit or two.
func duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + " µs"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", math.Floor(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", d/time.Minute, d/time.Second%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", d/time.Hour, d/time.Minute%60)
	default:
		return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d/time.Hour%24)
	}
}

// after prints a time after the start, or a dash if it is zero: it has not happened.
func after(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return duration(d)
}

// grouped prints n with a comma between thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return strconv.FormatInt(n, 10) + " B"
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}

// keyName is how people name a model in a namespace.
func keyName(model, namespace string) string {
	if namespace == "" {
		return model
	}
	return model + " in " + namespace
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
func full(t time.Time) string  { return t.UTC().Format(time.RFC3339Nano) }

// refusedText lists the counts by reason, with the most frequent reason first.
func refusedText(counts map[string]uint64) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, n := range names {
		names[i] = n + " " + strconv.FormatUint(counts[n], 10)
	}
	return strings.Join(names, ", ")
}

// overlapText prints the blocks on the device, then any beyond those in host memory, on
// disk, and in the cache outside of the workers. A tilde marks an estimate.
func overlapText(r *decision.Row) string {
	s := grouped(r.OverlapBlocks)
	if r.Estimated {
		s = "~" + s
	}
	if r.PredictedBlocks > 0 {
		s += " (" + grouped(int64(r.PredictedBlocks)) + " predicted)"
	}
	if r.HostBlocks > 0 {
		s += " + " + grouped(int64(r.HostBlocks)) + " host"
	}
	if r.DiskBlocks > 0 {
		s += " + " + grouped(int64(r.DiskBlocks)) + " disk"
	}
	if r.SharedBlocks > 0 {
		s += " + " + grouped(r.SharedBlocks) + " shared"
	}
	return s
}
