package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatReadsTheTreeAlwaysRuns: go's cache does not see that a file outside of a test's module has changed.
func TestWhatReadsTheTreeAlwaysRuns(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	runs := regexp.MustCompile(`go -C test (\$\(GOTEST\)|test) .*`).FindAllString(string(text), -1)
	require.NotEmpty(t, runs)
	for _, run := range runs {
		if !strings.Contains(run, "$(LONG_FLAGS)") && !strings.Contains(run, "-rewrite") {
			require.Contains(t, run, "-count 1")
		}
	}
}

// TestNoRecipeIsSilent: what tests, vets, lints or installs in the Makefile takes minutes, and is told of by this command.
func TestNoRecipeIsSilent(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	long := regexp.MustCompile(`go (-C \S+ )?(test|vet) |pip install|\$\(LINT_BOTH\)|apt-get download`)
	told := regexp.MustCompile(`\$\(call step,|\$\(FOLLOWED\)|\$\(TESTED\)|\$\(WATCH\)|\$\(TALLY\) -`)
	recipes := 0
	for line := range strings.SplitSeq(strings.ReplaceAll(string(text), "\\\n", " "), "\n") {
		if !strings.HasPrefix(line, "\t") || !long.MatchString(line) {
			continue
		}
		recipes++
		if !strings.Contains(line, "$(UV) pip install") { // it has words of its own
			require.Regexp(t, told, line, "expected a step, or what follows a command")
		}
	}
	require.Greater(t, recipes, 30)
}
