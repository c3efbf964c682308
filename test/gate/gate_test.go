package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/stack"
)

func folded(text string) string { return strings.Join(strings.Fields(text), " ") }

// notProse are the parts of README.md that claim nothing by themselves: what stands in code, tables,
// headings.
var notProse = regexp.MustCompile("(?ms)^```.*?^```|^\\|.*?$|^#.*?$|^\\*\\*Why\\.\\*\\*$|^- ")

// unclaimed returns what a page says beside claims and texts that nothing can judge, and those of them that it
// does not say.
func unclaimed(page string, of []claim, unjudged map[string]string) []string {
	rest := folded(notProse.ReplaceAllString(page, ""))
	var out []string
	take := func(text string) {
		before, after, found := strings.Cut(rest, folded(text))
		if !found {
			out = append(out, "README.md does not say: "+text)
		}
		rest = before + " \x00 " + after
	}
	for _, c := range of {
		take(c.says)
	}
	for text := range unjudged {
		take(text)
	}
	for part := range strings.SplitSeq(rest, "\x00") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, "nothing judges: "+part)
		}
	}
	return out
}

func TestEachSentenceOfTheFirstPageIsJudgedOrSaysWhyNot(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	require.Empty(t, strings.Join(unclaimed(string(page), claims(), unjudged), "\n"))
	for text, why := range unjudged {
		require.NotEmpty(t, why, text)
	}
	require.Equal(t, []string{"README.md does not say: It flies.", "nothing judges: It swims."},
		unclaimed("# A\n\nIt walks. It\nswims.\n\n| a | b |\n", []claim{{says: "It walks."}, {says: "It flies."}}, nil))
}

func TestEachJudgeNamesAStepAndTestsThatAreThere(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, dir := range []string{"cmd", "internal", "pkg", "test"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := os.ReadFile(name)
			for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
				there[m[1]] = true
			}
			return err
		}))
	}
	named := map[string]bool{}
	for _, s := range steps() {
		require.False(t, named[s.name], s.name)
		named[s.name] = true
		require.Less(t, s.takes, s.limit, s.name)
	}
	used := map[string]bool{}
	for _, c := range claims() {
		require.NotEmpty(t, c.by, c.says)
		for _, j := range c.by {
			require.True(t, named[j.step], "%s: %s", c.says, j.step)
			require.Equal(t, j.see == nil, len(j.tests) > 0, c.says)
			used[j.step] = true
			for _, name := range j.tests {
				require.True(t, there[name], "%s: %s", c.says, name)
			}
		}
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	for _, s := range steps() {
		require.Contains(t, string(makefile), "\n"+s.target[0]+":", "a target of the Makefile")
		if s.name != "rivals" { // its table is for people: it has no claim
			require.True(t, used[s.name], "no claim needs %s", s.name)
		}
	}
}

// leave writes what a step leaves in a folder, and returns what is read of it.
func leave(t *testing.T, r record, files map[string]string) *seen {
	t.Helper()
	dir := t.TempDir()
	g := &gate{root: dir, kept: filepath.Join(dir, ".run", "gate"), out: &bytes.Buffer{}}
	s := step{name: "a"}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		s.leaves = append(s.leaves, name)
	}
	require.NoError(t, g.keep(s, r))
	got, err := read(filepath.Join(g.kept, s.name))
	require.NoError(t, err)
	return got
}

func TestATestThatDidNotRunHasNotPassed(t *testing.T) {
	s := leave(t, record{Commit: "a1"}, map[string]string{"x.json": `{"Action":"start","Package":"p"}
{"Action":"pass","Package":"p","Test":"TestA"}
no JSON
{"Action":"pass","Package":"p","Test":"TestB/one"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestC"}
{"Action":"skip","Package":"q","Test":"TestC"}
`})
	for _, c := range []struct {
		names []string
		says  string
		held  bool
	}{
		{[]string{"TestA"}, "TestA passed", true},
		{[]string{"TestA", "TestB"}, "TestA passed; TestB: fail", false},
		{[]string{"TestC"}, "TestC: pass, skip", false},
		{[]string{"TestD"}, "TestD did not run", false},
	} {
		says, held := s.passed(c.names)
		require.Equal(t, c.says, says)
		require.Equal(t, c.held, held, says)
	}
	j := judge{step: "a", tests: []string{"TestA"}}
	says, v := j.look(s)
	require.Equal(t, "TestA passed", says)
	require.Equal(t, yes, v)
	s.stale = true
	says, v = j.look(s)
	require.Equal(t, "TestA passed (of a1)", says)
	require.Equal(t, unseen, v)
	says, v = j.look(nil)
	require.Equal(t, "the step has not run", says)
	require.Equal(t, unseen, v)
}

func TestFiguresAreReadFromWhatStepsLeave(t *testing.T) {
	const beside = `{"column":"vLLM apart","phase":"prefill is killed","requests":40,"served":39,"failed":0,"cut":1,"slowest_s":2.5}
{"column":"vLLM alone","phase":"one is killed","requests":10,"served":10,"failed":0,"cut":0,"slowest_s":1}
{"column":"vLLM alone","phase":"a rolling update","requests":10,"served":9,"failed":1,"cut":0,"slowest_s":1}
`
	s := leave(t, record{}, map[string]string{"beside.json": beside})
	says, held := besideSeen("killed")(s)
	require.Equal(t, "50 requests, fleets of real engines: 2; 0 failed before their answer, 1 cut", says)
	require.True(t, held)
	says, held = besideSeen("a rolling update")(s)
	require.Equal(t, "10 requests, fleets of real engines: 1; 1 failed before their answer, 0 cut", says)
	require.False(t, held)
	_, held = besideSeen("a flood")(s)
	require.False(t, held, "it has not run")

	const table = "| mode | | hit | believed | exact prompts | TTFT mean | p50 |\n| --- | --- | ---: |\n" +
		"| kv | live | 25.4 % (25.4–25.7) | 25.4 % | 100.0 % | 1.50 s | 0.79 s |\n|  | simulated, same slice | 24.9 % | | | 1 s | 0.72 s |\n" +
		"| least-loaded | live | 7.7 % | | | 1.85 s | 1.09 s |\n| round-robin | live | 7.9 % | | | 3.66 s | 1.95 s |\n"
	says, held = routingSeen(leave(t, record{}, map[string]string{"routing.md": table}))
	require.Equal(t, "kv: 25.4 %, 0.79 s; least-loaded: 7.7 %, 1.09 s; round-robin: 7.9 %, 1.95 s", says)
	require.True(t, held)
	_, held = routingSeen(leave(t, record{}, map[string]string{"routing.md": strings.ReplaceAll(table, "25.4 %", "12.4 %")}))
	require.False(t, held)
	_, held = routingSeen(leave(t, record{}, nil))
	require.False(t, held)

	drill := func(ours string) *seen {
		return leave(t, record{}, map[string]string{"drill.json": `{"rows":[
{"mode":"kv","row":"death","requests":300,"failed":` + ours + `,"begun":1,"p50":1.0,"p95":1.5,"worst":3,"back":2},
{"mode":"smg","row":"death","requests":300,"failed":12,"begun":2,"p50":1.0,"p95":9,"worst":30,"back":40},
{"mode":"dynamo","row":"death","not_run":"it has no prefill apart"}]}`})
	}
	says, held = drillSeen(drill("1"))
	require.Equal(t, "kv, death: 0 of 300 lost", says)
	require.True(t, held)
	_, held = drillSeen(drill("12"))
	require.False(t, held, "another has lost fewer")
}

func TestAFileOfAnEarlierRunIsNotKept(t *testing.T) {
	dir := t.TempDir()
	g := &gate{root: dir, kept: filepath.Join(dir, ".run", "gate")}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.json"), []byte("{}"), 0o600))
	s := step{name: "a", leaves: []string{"x.json", "gone.json"}}
	require.NoError(t, g.clear(s))
	require.NoError(t, g.keep(s, record{}))
	require.NoFileExists(t, filepath.Join(g.kept, "a", "x.json"))
}

func TestStepsAreChosenByName(t *testing.T) {
	all := []step{{name: "a"}, {name: "b"}, {name: "c"}}
	got, err := choose(all, "c,a")
	require.NoError(t, err)
	require.Equal(t, []step{{name: "a"}, {name: "c"}}, got)
	_, err = choose(all, "a,x")
	require.EqualError(t, err, "-only: no step is called x: -list has them")
	got, err = choose(all, "")
	require.NoError(t, err)
	require.Len(t, got, 3)
}

func TestAStepThatFailsOrTakesTooLongIsToldOf(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Makefile"), []byte("well:\n\t@echo it is\nbad:\n\t@exit 3\nlong:\n\t@exec sleep 600\n"), 0o600))
	var out bytes.Buffer
	g := &gate{root: dir, out: &out}
	require.NoError(t, g.step(t.Context(), step{target: []string{"well"}, limit: time.Minute}))
	require.Contains(t, out.String(), "it is")
	require.ErrorContains(t, g.step(t.Context(), step{target: []string{"bad"}, limit: time.Minute}), "exit status 2")
	require.EqualError(t, g.step(t.Context(), step{target: []string{"long"}, limit: 100 * time.Millisecond}), "it has not ended within 100ms")
}

func TestThePageSaysWhatWasSeen(t *testing.T) {
	s := leave(t, record{Commit: "a1", Seconds: 90}, map[string]string{"beside.json": `{"column":"vLLM alone","phase":"one is killed","requests":10,"served":10,"slowest_s":1}`})
	text, held := render([]step{{name: "beside", what: "x"}, {name: "demo", what: "y"}}, []claim{
		{says: "It [walks](docs/x.md).", by: []judge{{step: "beside", see: besideSeen("")}}},
		{says: "It talks.", by: []judge{{step: "demo", see: ended}}},
	}, map[string]*seen{"beside": s})
	require.False(t, held)
	require.Equal(t, `## What README.md claims

- Held: "It walks."
  - *beside*: 10 requests, fleets of real engines: 1; 0 failed before their answer, 0 cut
- **Not seen**: "It talks."
  - *demo*: the step has not run

## The steps

| step | what | took | ended | of |
| --- | --- | ---: | --- | --- |
| `+"`beside`"+` | x | 2 min | well | a1 |
| `+"`demo`"+` | y |  | has not run |  |

## Real engines and clients beside faults

| fleet | beside | requests | served | failed | cut | slowest |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
| vLLM alone | one is killed | 10 | 10 | 0 | 0 | 1.0 s |
`, text)
}

// TestWhatWasSeenCountsUntilTheProductChanges: a judge and a page are no part of it.
func TestWhatWasSeenCountsUntilTheProductChanges(t *testing.T) {
	g := &gate{root: t.TempDir()}
	git := func(args ...string) {
		t.Helper()
		_, err := g.git(t.Context(), append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		require.NoError(t, err)
	}
	write := func(name string) string {
		t.Helper()
		file := filepath.Join(g.root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		old, _ := os.ReadFile(file)
		require.NoError(t, os.WriteFile(file, append(old, 'x'), 0o600))
		git("add", ".")
		git("commit", "-m", name)
		commit, err := g.commit(t.Context())
		require.NoError(t, err)
		return commit
	}
	git("init")
	seen := write("pkg/a.go")
	for _, name := range []string{"test/a.go", "docs/a.md", "README.md", "pkg/a_test.go", "pkg/testdata/a", "Makefile"} {
		require.True(t, g.same(t.Context(), seen, write(name)), name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(g.root, "pkg/a.go"), []byte("y"), 0o600))
	dirty, err := g.commit(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `\+$`, dirty)
	require.False(t, g.same(t.Context(), seen, dirty))
	require.False(t, g.same(t.Context(), seen, write("pkg/b.go")))
	require.False(t, g.same(t.Context(), seen, "0123456789ab"), "of a commit that is not known")
}
