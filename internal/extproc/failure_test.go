package extproc

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachFactAboutBlameHasATest reads the thirteen facts in ARCHITECTURE.md.
func TestEachFactAboutBlameHasATest(t *testing.T) {
	doc, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| [^|]+ \| Test[A-Z]\w+[^|]* \|$`).FindAllStringSubmatch(string(doc), -1)
	require.Len(t, rows, 13)
	for i, r := range rows {
		require.Equal(t, strconv.Itoa(i+1), r[1])
	}
}

// TestTheTableNamesTestsThatExist reads the names in ARCHITECTURE.md.
func TestTheTableNamesTestsThatExist(t *testing.T) {
	doc, err := os.ReadFile("../../ARCHITECTURE.md")
	require.NoError(t, err)
	var sources strings.Builder
	for _, pattern := range []string{"../*/*_test.go", "../../cmd/*/*_test.go", "../../test/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			sources.Write(b)
		}
	}
	names := regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(string(doc), -1)
	require.Greater(t, len(names), 10)
	gone := slices.DeleteFunc(names, func(name string) bool { return strings.Contains(sources.String(), "func "+name+"(") })
	require.Empty(t, gone, "ARCHITECTURE.md names them, and they are not there")
	files := regexp.MustCompile("`(internal/[a-z/]+/testdata/[a-z/-]+)`").FindAllStringSubmatch(string(doc), -1)
	require.Greater(t, len(files), 5)
	for _, file := range files {
		require.FileExists(t, filepath.Join("../..", file[1]))
	}
}
