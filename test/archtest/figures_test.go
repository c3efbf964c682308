package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// measured are figures with a unit.
var measured = regexp.MustCompile(`[0-9][0-9.,]* (?:%|s|ms|µs|MB|MiB|GB|GiB)(?:\W|$)`)

// differing returns what is wrong with a list of figures (testdata/figures.txt): a place whose
// words are not there once, one whose figure is not that of the first place, and each measured
// figure of the README that is not on the list.
func differing(list string, fsys fs.FS) (faults []string) {
	var name, first string
	texts, told := map[string]string{}, ""
	for _, line := range strings.Split(list, "\n") {
		switch place, indented := strings.CutPrefix(line, "  "); {
		case indented:
			file, words, _ := strings.Cut(place, ": ")
			if texts[file] == "" {
				b, err := fs.ReadFile(fsys, file)
				if err != nil {
					faults = append(faults, err.Error())
					continue
				}
				texts[file] = strings.Join(strings.Fields(string(b)), " ")
			}
			around := strings.Replace(regexp.QuoteMeta(words), `\{\}`, `([0-9](?:[0-9.,]*[0-9])?)`, 1)
			found := regexp.MustCompile(around).FindAllStringSubmatch(texts[file], -1)
			switch {
			case len(found) == 0 || len(found[0]) != 2:
				faults = append(faults, fmt.Sprintf("%s: %s does not say %q", name, file, words))
				continue
			case first == "":
				first = found[0][1]
			}
			for _, f := range found {
				if !rounds(first, f[1]) {
					faults = append(faults, fmt.Sprintf("%s: %s says %s, the first place says %s", name, file, f[1], first))
				}
			}
			if file == "README.md" {
				told += found[0][0] + "\n"
			}
		case line != "" && !strings.HasPrefix(line, "#"):
			name, first = line, ""
		}
	}
	for _, f := range measured.FindAllString(texts["README.md"], -1) {
		if f = strings.TrimRight(f, ").,:; "); !strings.Contains(told, f) {
			faults = append(faults, "README.md: "+f+": is not on the list of figures: name the page that owns it")
		}
	}
	return faults
}

// rounds reports whether the second number is the first one, or the first one with fewer
// digits. A version's leading parts are that version.
func rounds(exact, told string) bool {
	if exact == told || strings.HasPrefix(exact, told+".") && strings.Count(exact, ".") > 1 {
		return true
	}
	number, err := strconv.ParseFloat(exact, 64)
	_, after, _ := strings.Cut(told, ".")
	return err == nil && strconv.FormatFloat(number, 'f', len(after), 64) == told
}

func TestFiguresOnTwoPagesAreTheSame(t *testing.T) {
	list, err := os.ReadFile("testdata/figures.txt")
	require.NoError(t, err)
	require.Empty(t, strings.Join(differing(string(list), os.DirFS("../..")), "\n"))
}

func TestFiguresThatDifferAreSeen(t *testing.T) {
	pages := fstest.MapFS{
		"owner.md":  {Data: []byte("it takes 1.09\ns at 1.40.3, or 50 %")},
		"README.md": {Data: []byte("after 1.1 s with\n1.40. Half: 51 %. Also 7 ms.")},
	}
	require.Empty(t, differing("time\n  owner.md: takes {} s\n", pages))
	require.Equal(t, []string{
		`share: README.md says 51, the first place says 50`,
		`gone: owner.md does not say "costs {} s"`,
		`README.md: 7 ms: is not on the list of figures: name the page that owns it`,
	}, differing("# a list\ntime\n  owner.md: takes {} s\n  README.md: after {} s\n\nversion\n  owner.md: at {},\n  README.md: with {}. Half\n"+
		"share\n  owner.md: or {} %\n  README.md: Half: {} %\ngone\n  owner.md: costs {} s\n", pages))
	for told, want := range map[string]bool{"1.1": true, "1.09": true, "1": true, "1.0": false, "1.08": false} {
		require.Equal(t, want, rounds("1.09", told), told)
	}
}
