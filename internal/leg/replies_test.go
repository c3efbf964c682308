package leg

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// mapper is an entry of local_reply_config, as far as it decides.
type mapper struct {
	Filter filter `yaml:"filter"`
	Status int    `yaml:"status_code"`
	Body   struct {
		JSON struct {
			Error struct{ Code string }
		} `yaml:"json_format"`
	} `yaml:"body_format_override"`
	Headers []struct {
		Header struct{ Key string }
	} `yaml:"headers_to_add"`
}

type filter struct {
	Status *struct {
		Comparison struct {
			Op    string
			Value struct {
				Default int `yaml:"default_value"`
			}
		}
	} `yaml:"status_code_filter"`
	Flags     *struct{ Flags []string } `yaml:"response_flag_filter"`
	Extension *struct {
		Config struct{ Expression string } `yaml:"typed_config"`
	} `yaml:"extension_filter"`
	And *struct{ Filters []filter } `yaml:"and_filter"`
}

// envoysReply is a reply that Envoy makes itself.
type envoysReply struct {
	details string
	status  int
	flags   string
}

var beginsWith = regexp.MustCompile(`(!?)response\.code_details\.startsWith\('([^']+)'\)`)

func (f *filter) passes(t *testing.T, r *envoysReply) bool {
	t.Helper()
	switch {
	case f.And != nil:
		return !slices.ContainsFunc(f.And.Filters, func(g filter) bool { return !g.passes(t, r) })
	case f.Status != nil:
		want := f.Status.Comparison.Value.Default
		return map[string]bool{"EQ": r.status == want, "GE": r.status >= want}[f.Status.Comparison.Op]
	case f.Flags != nil:
		return r.flags != "-"
	case f.Extension != nil:
		some := false
		for _, m := range beginsWith.FindAllStringSubmatch(f.Extension.Config.Expression, -1) {
			some = some || strings.HasPrefix(r.details, m[2]) == (m[1] == "")
		}
		return some
	}
	require.Fail(t, "a filter of another kind")
	return false
}

// mappersOf returns the mappers of each listener of a configuration, by its name.
func mappersOf(t *testing.T, file string) map[string][]mapper {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var all struct {
		StaticResources struct {
			Listeners []struct {
				Name   string
				Chains []struct {
					Filters []struct {
						Config struct {
							Reply struct{ Mappers []mapper } `yaml:"local_reply_config"`
						} `yaml:"typed_config"`
					}
				} `yaml:"filter_chains"`
			}
		} `yaml:"static_resources"`
	}
	require.NoError(t, yaml.Unmarshal(b, &all))
	out := map[string][]mapper{}
	for _, l := range all.StaticResources.Listeners {
		out[l.Name] = l.Chains[0].Filters[0].Config.Reply.Mappers
	}
	return out
}

// TestEachReplyOfEnvoysHasAMapperAndATrueEnd walks over what Envoy 1.40 says of the replies that it makes
// itself (docs: response_code_details, and those of the filters that the configurations have): at the
// clients' listener each is an error of ours; on a leg each is told to the plugin, which sees in it what
// the row says. What says nothing of a worker is not_sent.
func TestEachReplyOfEnvoysHasAMapperAndATrueEnd(t *testing.T) {
	table, err := os.ReadFile("testdata/envoys-replies")
	require.NoError(t, err)
	at := mappersOf(t, "../../envoy/standalone.yaml")
	require.NotEmpty(t, at["client"])
	rows := 0
	for line := range strings.Lines(string(table)) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		require.Len(t, f, 6, line)
		status, err := strconv.Atoi(f[1])
		require.NoError(t, err)
		r := &envoysReply{f[0], status, f[2]}
		rows++
		if f[3] != "never" {
			require.Equal(t, f[3], mapped(t, at["client"], r, false), "at the clients' listener: %s", line)
		}
		if f[4] == "never" {
			continue
		}
		for _, leg := range []string{"main_leg", "sync_leg"} {
			require.Equal(t, f[4], mapped(t, at[leg], r, true), "at %s: %s", leg, line)
		}
		require.Equal(t, f[5], string(localSight(r.flags+","+r.details+",100")), line)
	}
	require.Greater(t, rows, 40)
}

// mapped returns the status and the code that a reply gets; told: it must have the plugin's header.
func mapped(t *testing.T, ms []mapper, r *envoysReply, told bool) string {
	t.Helper()
	for i := range ms {
		m := &ms[i]
		if !m.Filter.passes(t, r) {
			continue
		}
		if told {
			require.True(t, slices.ContainsFunc(m.Headers, func(h struct {
				Header struct{ Key string }
			}) bool {
				return h.Header.Key == "x-baton-local-reply"
			}), r.details)
		}
		status := m.Status
		if status == 0 {
			status = r.status
		}
		return fmt.Sprintf("%d/%s", status, m.Body.JSON.Error.Code)
	}
	return "none"
}
