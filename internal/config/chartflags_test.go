package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// TestTheChartKnowsWhatEachFlagSets: the chart refuses a flag and a key of the configuration that say
// the same. Its list has, of each flag of the epp command, exactly the keys that the flag changes.
func TestTheChartKnowsWhatEachFlagSets(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "charts", "baton", "files", "flags.yaml"))
	require.NoError(t, err)
	var listed map[string][]string
	require.NoError(t, yaml.Unmarshal(text, &listed))

	sets := map[string][]string{}
	for _, s := range settings() {
		sets[s.flag] = []string{s.key}
	}
	for _, s := range etcdSettings() {
		sets[s.flag] = []string{s.key}
	}
	for _, f := range eppFlags() {
		if f.fate != eppSets {
			continue
		}
		byValue := map[string][]string{}
		for _, v := range valuesOf(f) {
			byValue[v] = changedBy(t, f, v)
		}
		if f.form != eppYesNo {
			sets[f.name] = slices.Concat(slices.Collect(maps.Values(byValue))...)
			continue
		}
		for v, keys := range byValue {
			for _, key := range keys {
				if name := f.name; slices.Contains(byValue["true"], key) && slices.Contains(byValue["false"], key) {
					sets[name] = append(sets[name], key)
				} else {
					sets[name+"="+v] = append(sets[name+"="+v], key)
				}
			}
		}
	}
	for flag, keys := range sets {
		slices.Sort(keys)
		sets[flag] = slices.Compact(keys)
	}
	require.Equal(t, sets, listed)
}

func valuesOf(f eppFlag) []string {
	switch f.form {
	case eppYesNo:
		return []string{"true", "false"}
	case eppPort, eppNumber:
		return []string{"1", "5"}
	case eppDuration:
		return []string{"7s"}
	case eppText:
	}
	switch f.name {
	case "zap-log-level":
		return []string{"debug", "error"}
	case "zap-encoder":
		return []string{"json", "console"}
	case "endpoint-target-ports":
		return []string{"8000,8001"}
	}
	return []string{"x"}
}

// changedBy returns the keys that the flag changes where each key that a flag may set has a value, and
// each switch is on, or off.
func changedBy(t *testing.T, f eppFlag, v string) (out []string) {
	for _, on := range []bool{false, true} {
		c := Default()
		c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA, c.Trace.Endpoint, c.Log.Level, c.Log.Format = "c", "k", "a", "t", "warn", "none"
		c.TLS.SelfSigned, c.Admin.Pprof = on, on
		before := flat(t, c)
		require.NoError(t, f.set(&c, v))
		after := flat(t, c)
		for _, key := range slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after))) {
			if before[key] != after[key] {
				out = append(out, key)
			}
		}
	}
	return out
}

func flat(t *testing.T, c Config) map[string]string {
	text, err := yaml.Marshal(c)
	require.NoError(t, err)
	var tree map[string]any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	out := map[string]string{}
	flatten(out, "", tree)
	return out
}

func flatten(out map[string]string, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			flatten(out, strings.TrimPrefix(at+"."+key, "."), inner)
		}
	case []any:
		for i, inner := range v {
			if _, is := inner.(map[string]any); !is {
				out[at] += fmt.Sprint(inner) + ","
				continue
			}
			flatten(out, fmt.Sprintf("%s.%d", at, i), inner)
		}
	case nil:
	default:
		if text := fmt.Sprint(v); text != "" && text != "0" && text != "false" {
			out[at] = text
		}
	}
}
