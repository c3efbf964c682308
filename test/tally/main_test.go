package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const good = `{"Time":"2026-01-02T03:04:05Z","Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one","Elapsed":1.25}
{"Action":"pass","Package":"p","Test":"TestA/two","Elapsed":3}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":9}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: since 1.38\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"without tests"}
{"Time":"2026-01-02T03:04:15Z","Action":"pass","Package":"p","Elapsed":10}
`

const bad = `# a line of go's own
{"Action":"output","Package":"p","Test":"TestC/one","Output":"a_test.go:1: why\n"}
{"Action":"fail","Package":"p","Test":"TestC/one","Elapsed":2}
{"Action":"fail","Package":"p","Test":"TestC","Elapsed":2}
{"Action":"fail","Package":"p"}
{"ImportPath":"q","Action":"build-output","Output":"does not build\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"fail","Package":"q"}
{"Action":"pass","Package":"r","Test":"TestR"}
`

const died = `{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"panic: why\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\n"}
{"Action":"fail","Package":"p","Elapsed":1}
`

const raced = `{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"q","Test":"TestZ","Output":"of another package\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"Read at 0x00 by goroutine 7:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    testing.go:1: race detected during execution of test\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`

// clocks are the times that lines of a step begin with.
var clocks = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d  `)

// told runs the command and returns what it prints.
func told(t *testing.T, want int, stdin string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	require.Equal(t, want, run(args, strings.NewReader(stdin), &out, &errs), errs.String())
	return clocks.ReplaceAllString(out.String()+errs.String(), "CLOCK  ")
}

func TestTheTableSaysWhatFailedWasSkippedAndTookLong(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	newer, older := file("1.40.0.json", good), file("1.36.4.json", bad)
	require.Equal(t, `envoy    passed   failed   skipped   took
1.36.4   1        2        0         0s
1.40.0   2        0        1         10s

1.36.4 failed: p TestC/one
    a_test.go:1: why

1.36.4 failed: q
    does not build

1.40.0 skipped: p TestB: since 1.38

slowest, in s, beside others:
   3.0  p TestA/two
   2.0  p TestC/one

3 passed, 2 failed, 1 skipped
`, told(t, 1, "", "-title", "envoy", "-slowest", "2", older, newer))

	require.Equal(t, `tests    passed   failed   skipped   took
1.40.0   2        0        1         10s

1.40.0 skipped: p TestB: since 1.38

2 passed, 0 failed, 1 skipped
`, told(t, 0, "", newer))
	empty := file("1.39.3.json", "")
	require.Contains(t, told(t, 1, "", newer, empty), "2 passed, 0 failed", "a file without tests is no success")
	require.Contains(t, told(t, 0, "", "-any", newer, empty), "2 passed, 0 failed")
	require.Contains(t, told(t, 1, "", "-any", empty), "0 passed", "nothing ran")
	require.Contains(t, told(t, 1, "", filepath.Join(dir, "none.json")), "no such file")
}

func TestWhoWatchesSeesPackagesAndFailuresAsTheyEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kept.json")
	require.Equal(t, `CLOCK  tests
ok      10.0 s      3  p
CLOCK  tests: all passed, 0 s
`, told(t, 0, good, "-watch", "-o", file))
	require.Equal(t, "CLOCK  a\nCLOCK  a: all passed, 0 s\n", told(t, 0, good, "-watch", "-quiet", "-name", "a", "-o", file))
	require.Equal(t, "CLOCK  tests\n    b_test.go:7: since 1.38\nok      10.0 s      3  p\nCLOCK  tests: all passed, 0 s\n", told(t, 0, good, "-watch", "-v", "-o", file))
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, good, string(kept))

	require.Equal(t, `CLOCK  tests
# a line of go's own
FAIL     2.0 s  p TestC/one
    a_test.go:1: why
FAIL     2.0 s  p TestC
FAIL     0.0 s  p
FAIL     0.0 s  q
    does not build
FAIL     0.0 s  q
CLOCK  tests: failed, 0 s
`, told(t, 1, bad, "-watch", "-quiet", "-o", file))
}

// TestTheLastWordsOfAProcessThatDiedAreTold: go names no test where another goroutine
// panicked, and the test that ran then never ends.
func TestTheLastWordsOfAProcessThatDiedAreTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "unit.json")
	require.Equal(t, `CLOCK  tests
FAIL     1.0 s  p
    FAIL	p
NOT ENDED  p TestB
    === RUN   TestB
    panic: why
CLOCK  tests: failed, 0 s
`, told(t, 1, died, "-watch", "-quiet", "-o", file))
	require.Contains(t, told(t, 1, "", file), `
unit failed: p
    panic: why
    FAIL	p
`)
}

func TestArgumentsThatSayNothingAreRefused(t *testing.T) {
	for _, args := range [][]string{{}, {"-watch"}, {"-watch", "-o", "x", "y"}, {"-follow", "y"}, {"-alone", "x"}, {"-unknown"}} {
		require.NotEmpty(t, told(t, 2, "", args...))
	}
	require.Contains(t, told(t, 0, "", "-help"), "slowest")
}

// The race detector's report may stand at a test that passes.
func TestTheReportOfARaceIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, os.WriteFile(file, []byte(raced), 0o600))
	require.Contains(t, told(t, 1, "", file), "a races:\n    in p:\n    WARNING: DATA RACE\n    Read at 0x00 by goroutine 7:\n")
}
