package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// kservesCerts is the folder in which KServe mounts the picker's certificate.
const kservesCerts = "/var/run/kserve/tls"

// TestWhatOthersTemplatesPassIsAccepted reads argument lists as charts and controllers
// render them, with Baton's own --workers in front. The verbs of the scenario files are:
//
//	text name=N   keeps the input; an argument that is $N stands for it
//	args          reads the input, one argument a line, "" for an empty one; shows what is
//	              set and what is noted
//
// KServe's folder of certificates is one of the test's, and so is /config.
func TestWhatOthersTemplatesPassIsAccepted(t *testing.T) {
	datadriven.Walk(t, filepath.Join("testdata", "epp"), func(t *testing.T, path string) {
		certs, folder := t.TempDir(), t.TempDir()
		for _, name := range []string{"tls.crt", "tls.key"} {
			require.NoError(t, os.WriteFile(filepath.Join(certs, name), nil, 0o600))
		}
		texts := map[string]string{}
		there, back := strings.NewReplacer(kservesCerts, certs, "/config", folder), strings.NewReplacer(certs, kservesCerts, folder, "/config")
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "text":
				var name string
				d.ScanArgs(t, "name", &name)
				texts["$"+name] = d.Input
				require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(d.Input), 0o600))
				return "ok\n"
			case "args":
				args := []string{"--workers", "workers.yaml"}
				for line := range strings.SplitSeq(strings.TrimSuffix(d.Input, "\n"), "\n") {
					if text, ok := texts[line]; ok {
						line = text
					}
					args = append(args, there.Replace(strings.Trim(line, `"`)))
				}
				return back.Replace(toldOf(t, args))
			default:
				d.Fatalf(t, "unknown verb %s", d.Cmd)
				return ""
			}
		})
	})
}

// toldOf shows what is set by a command line beyond what no argument sets, and the notes.
func toldOf(t *testing.T, args []string) string {
	var b strings.Builder
	c, notes, err := EPP(NewFlagSet("epp", "", t.Output()), args)
	if err != nil {
		return err.Error() + "\n"
	}
	bare, _ := readEPP(t)
	for _, x := range []struct {
		key       string
		got, none any
	}{
		{"listen", c.Listen, bare.Listen},
		{"probes.listen", c.Probes.Listen, bare.Probes.Listen},
		{"metrics.listen", c.Metrics.Listen, bare.Metrics.Listen},
		{"tls", c.TLS, bare.TLS},
		{"log", c.Log, bare.Log},
		{"trace", c.Trace, bare.Trace},
		{"admin", c.Admin, bare.Admin},
		{"routing.headers", c.Routing.Headers, bare.Routing.Headers},
		{"drain_timeout", c.DrainTimeout, bare.DrainTimeout},
	} {
		if fmt.Sprint(x.got) != fmt.Sprint(x.none) {
			fmt.Fprintf(&b, "%s: %+v\n", x.key, x.got)
		}
	}
	for _, n := range notes {
		reason := n.Reason
		if r := []rune(reason); len(r) > 100 && !strings.HasPrefix(n.Flag, "--config") {
			reason = string(r[:100]) + "…"
		}
		fmt.Fprintf(&b, "%s %s: %s\n", n.Level, n.Flag, reason)
	}
	return b.String()
}
