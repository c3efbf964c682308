package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// documented is a row of docs/config.md.
type documented struct{ unit, def, text string }

func readConfigDoc(t *testing.T) map[string]documented {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "config.md"))
	require.NoError(t, err)
	rows := map[string]documented{}
	for line := range strings.SplitSeq(string(page), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		if !strings.HasPrefix(line, "| `") || len(cells) < 4 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		key := strings.Trim(cells[0], "`")
		require.NotContains(t, rows, key, "documented twice")
		rows[key] = documented{cells[1], strings.Trim(cells[2], "`"), strings.Join(cells[3:], "|")}
	}
	return rows
}

// keysOf returns the default of each key of v, by its name as the page writes
// it: the three roles share one row.
func keysOf(v reflect.Value, prefix string, into map[string]reflect.Value) {
	for i := range v.NumField() {
		name := prefix + v.Type().Field(i).Tag.Get("yaml")
		f := v.Field(i)
		switch {
		case !v.Type().Field(i).IsExported():
		case f.Type() == reflect.TypeFor[PickConfig]():
			keysOf(f, "routing.<role>.", into)
		case f.Kind() == reflect.Struct:
			keysOf(f, name+".", into)
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			into[name] = f
			keysOf(reflect.Zero(f.Type().Elem()), name+"[].", into)
		case f.Kind() == reflect.Map:
			keysOf(reflect.Zero(f.Type().Elem()), name+".NAME.", into)
		default:
			into[name] = f
		}
	}
}

// elsewhere are defaults that other packages hold.
func elsewhere() map[string]string {
	p, whole := picker.DefaultParams(), picker.DefaultParamsFor(worker.Aggregated)
	return map[string]string{
		"models.NAME.disaggregation":                     "auto",
		"shadow.routing":                                 `""`,
		"routing.<role>.mode":                            p.Mode.String(),
		"routing.<role>.overlap_score_credit":            fmt.Sprintf("%v`, aggregated `%v", p.OverlapScoreCredit, whole.OverlapScoreCredit),
		"routing.<role>.prefill_load_scale":              fmt.Sprintf("%v`, aggregated `%v", p.PrefillLoadScale, whole.PrefillLoadScale),
		"routing.<role>.temperature":                     fmt.Sprint(p.Temperature),
		"routing.<role>.fetch_cost":                      fmt.Sprint(p.FetchCost),
		"routing.<role>.shared_cache_multiplier":         fmt.Sprint(p.SharedCacheMultiplier),
		"routing.<role>.track_prefill_tokens":            fmt.Sprint(p.TrackPrefillTokens),
		"routing.<role>.active_prefill_tokens_threshold": fmt.Sprint(p.PrefillTokensThreshold),
		"routing.<role>.active_decode_blocks_threshold":  fmt.Sprint(p.DecodeBlocksThreshold),
		"routing.<role>.serve_overloaded":                fmt.Sprint(p.ServeOverloaded),
	}
}

func TestEveryKeyIsDocumentedWithItsUnitAndDefault(t *testing.T) {
	rows := readConfigDoc(t)
	keys := map[string]reflect.Value{}
	keysOf(reflect.ValueOf(Default()), "", keys)
	require.Contains(t, keys, "routing.<role>.temperature", "the walk sees nested keys")
	for key, def := range keys {
		t.Run(key, func(t *testing.T) {
			row, ok := rows[key]
			require.True(t, ok, "docs/config.md has no row for it")
			require.NotEmpty(t, row.unit)
			require.NotEmpty(t, row.text)
			if want, ok := elsewhere()[key]; ok {
				require.Equal(t, want, row.def)
				return
			}
			if def.Type() == reflect.TypeFor[time.Duration]() {
				got, err := time.ParseDuration(row.def)
				require.NoError(t, err)
				require.Equal(t, time.Duration(def.Int()), got)
				return
			}
			if def.Kind() == reflect.Pointer {
				def = def.Elem()
			}
			want := fmt.Sprint(def)
			if key == "index.max_bytes" {
				want = strings.Fields(as64BitLinux(" max_bytes: " + want))[1]
			}
			if want == "" {
				want = `""`
			}
			require.Equal(t, want, row.def)
		})
	}
	for key := range rows {
		require.Contains(t, keys, key, "docs/config.md has a row for a key that does not exist")
	}
}

// TestZeroIsZeroOrRefused: a 0 in the file is never another value. Where it is taken,
// the page says what it means.
func TestZeroIsZeroOrRefused(t *testing.T) {
	rows := readConfigDoc(t)
	taken := 0
	for key, def := range keysOfConfig() {
		switch def.Kind() {
		case reflect.Int, reflect.Int64, reflect.Float64:
		default:
			continue
		}
		t.Run(key, func(t *testing.T) {
			got, err := withKey(t, key, "0")
			if err != nil {
				require.ErrorContains(t, err, key+" 0")
				return
			}
			taken++
			require.True(t, got.IsZero())
			require.Contains(t, rows[key].text, "0:", "docs/config.md says what 0 means")
		})
	}
	require.Positive(t, taken)
}

// TestAnEmptyTextIsEmptyOrRefused: where a key has a default that is not empty, "" is no
// other way to write it. Where it is taken, the page says what it means.
func TestAnEmptyTextIsEmptyOrRefused(t *testing.T) {
	rows := readConfigDoc(t)
	refused := 0
	for key, def := range keysOfConfig() {
		if def.Kind() != reflect.String || def.IsZero() {
			continue
		}
		t.Run(key, func(t *testing.T) {
			got, err := withKey(t, key, `""`)
			if err != nil {
				refused++
				require.ErrorContains(t, err, key)
				return
			}
			require.Empty(t, got.String())
			require.Contains(t, strings.ToLower(rows[key].text), "empty:", "docs/config.md says what an empty text means")
		})
	}
	require.Positive(t, refused)
}

// keysOfConfig are the keys with their defaults, those of roles and those that may be unset
// apart.
func keysOfConfig() map[string]reflect.Value {
	keys := map[string]reflect.Value{}
	keysOf(reflect.ValueOf(Default()), "", keys)
	maps.DeleteFunc(keys, func(key string, def reflect.Value) bool {
		return def.Kind() == reflect.Pointer || strings.Contains(key, "<role>")
	})
	return keys
}

// withKey reads a configuration in which one key is given, and returns what it is then.
func withKey(t *testing.T, key, value string) (reflect.Value, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "baton.yaml")
	for part := range strings.SplitSeq(reverse(key), ".") {
		value = "{" + part + ": " + value + "}"
	}
	if key != "listen" {
		value = strings.Replace(value, "{", "{listen: \"127.0.0.1:0\", ", 1)
	}
	require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
	fs := NewFlagSet("check", "", t.Output())
	config := Flags(fs)
	require.NoError(t, fs.Parse([]string{"--config", file, "--workers", "workers.yaml"}))
	c, err := config()
	got := map[string]reflect.Value{}
	keysOf(reflect.ValueOf(c), "", got)
	return got[key], err
}

// reverse turns a.b.c into c.b.a.
func reverse(key string) string {
	parts := strings.Split(key, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}

// as64BitLinux is a text of this build with the index's bounds as they are on 64-bit Linux.
// Elsewhere, and under the race detector, they are lower, and the default is the most.
func as64BitLinux(text string) string {
	if kvindex.DefaultMaxBytes != kvindex.MostBytes {
		return text
	}
	most := strconv.Itoa(kvindex.MostBytes)
	return strings.NewReplacer(" to "+most, " to 8589934592", " max_bytes: "+most, " max_bytes: 536870912").Replace(text)
}
