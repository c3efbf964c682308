package ask

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrometheusText(t *testing.T) {
	page := "# a 1\n\n a{x=\"1\",y=\"q\\\"}\\n\\\\\"} 1 1700000000\na 2\na{} +Inf\na{x=\"1} 3\na{x=1} 3\na\na b\nab 4\na{ x = \"z\" , } 5\r\na 1 2 3\n"
	var got []string
	Samples([]byte(page), func(n string) bool { return n == "a" }, func(s Sample) {
		got = append(got, fmt.Sprintf("%q %q %v", s.Label("x"), s.Label("y"), s.Value))
	})
	require.Equal(t, []string{
		"\"1\" \"q\\\"}\\n\\\\\" 1", `"" "" 2`, `"" "" +Inf`, `"z" "" 5`,
	}, got)
}

// FuzzSamples: any page is read without a fault, and what was read reads back.
func FuzzSamples(f *testing.F) {
	f.Add([]byte(`vllm:cache_config_info{block_size="16",note="a \"b\", c={d}"} 1.0`))
	f.Add([]byte("a{x=\"\\\"\",} 1e3 5\n{ 1\na{b 2"))
	f.Fuzz(func(t *testing.T, page []byte) {
		all := func(string) bool { return true }
		Samples(page, all, func(s Sample) {
			var b strings.Builder
			b.WriteString(s.Name + "{")
			for _, l := range s.labels {
				value := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(l.value)
				fmt.Fprintf(&b, `%s="%s",`, l.name, value)
			}
			b.WriteString("} " + s.Text)
			count := 0
			Samples([]byte(b.String()), all, func(again Sample) {
				count++
				require.Equal(t, s.Name, again.Name)
				require.Equal(t, s.labels, again.labels)
				require.Equal(t, s.Text, again.Text)
			})
			require.Equal(t, 1, count, "%q", b.String())
		})
	})
}

func TestHostsOfSockets(t *testing.T) {
	for host, want := range map[string][2]string{
		"*": {"", ""}, "0.0.0.0": {"", ""}, "::": {"", ""}, "[::]": {"", ""}, "": {"", ""},
		"127.0.0.1": {"127.0.0.1", ""}, "localhost": {"localhost", ""}, "::1": {"::1", ""},
		"10.0.0.7": {"10.0.0.7", "10.0.0.7"}, "[fd00::7]": {"fd00::7", "fd00::7"}, "node-3": {"node-3", "node-3"},
	} {
		require.Equal(t, want, [2]string{Bound(host), Telling(host)}, host)
	}
}
