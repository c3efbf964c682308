package oncall

import (
	"fmt"
	"strings"
)

const (
	generated  = "# Written by `make alerts-files` from test/oncall; do not edit.\n"
	runbookURL = "https://github.com/seed-60ae5743/baton/blob/HEAD/docs/runbook.md"
)

// Files returns each generated file by its path in the repository. The chart cannot reach outside of its own
// folder, so it has copies.
func Files() (map[string][]byte, error) {
	rules, err := Rules(1)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{
		"docs/runbook.md":                []byte(runbook()),
		"examples/monitoring/rules.yaml": rules,
		"charts/baton/files/rules.yaml":  rules,
	}
	boards, err := dashboards()
	if err != nil {
		return nil, err
	}
	for name, board := range boards {
		out["examples/monitoring/"+name] = board
		out["charts/baton/files/"+name] = board
	}
	return out, nil
}

// runbook returns the text of docs/runbook.md.
func runbook() string {
	var b strings.Builder
	b.WriteString("# Runbook\n\nGenerated from test/oncall (`make alerts-files`), as the rules are; do not edit.\n\n" +
		"One section for each alert of [examples/monitoring](../examples/monitoring/README.md). Those that page have requests that fail or wait; the " +
		"others are tickets. An alert stands for all replicas of a deployment.\n\n| alert | | fires after |\n| --- | --- | --- |\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "| [%s](%s) | %s | %s |\n", a.Name, a.anchor(), a.severity(), after(&a))
	}
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "\n## %s\n\n", a.Name)
		for _, part := range []struct{ what, text string }{
			{"What it means", a.Meaning}, {"What users notice", a.Users}, {"How to look", a.Look}, {"What to do", a.Do},
			{"Fires after", after(&a) + ": " + a.Because + "."},
		} {
			fmt.Fprintf(&b, "- **%s.** %s\n", part.what, strings.TrimSpace(part.text))
		}
	}
	return b.String()
}

func after(a *Alert) string {
	if a.For == 0 {
		return "at once"
	}
	return promTime(a.For)
}
