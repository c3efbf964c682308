package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
)

// withPassword are addresses as somebody may write them into a setting.
var withPassword = []string{
	"http://user:hunter2word@127.0.0.1:1", "nats://hunter2word@db.example:4222/x?y=z", "tcp://user:hunter2/word@db.example:1",
	"http://user:hunter2%zz@word@db.example:1", "user:hunter2word@db.example:2379",
	"http://user:hunter2" + strings.Repeat("word", 30) + "@db.example:1",
}

// TestNoPasswordOfASettingIsPrinted: not where the value is refused, nor where it is a name that
// is shown.
func TestNoPasswordOfASettingIsPrinted(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	silent := func(what string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		run(t.Context(), args, &out, &out)
		require.NotEmpty(t, out.String(), what)
		require.NotContains(t, out.String(), "hunter2", what)
		require.NotContains(t, out.String(), "word@", what)
	}
	keys := textSettings(reflect.TypeFor[config.Config](), nil)
	require.Greater(t, len(keys), 60)
	for _, value := range withPassword {
		for _, key := range keys {
			require.NoError(t, os.WriteFile(file, []byte(yamlOf(key, value)), 0o600))
			silent(strings.Join(key, ".")+": "+value, "check", "--config", file)
		}
		workers := []byte("workers:\n- {id: 1, role: decode, endpoint: \"" + value + "\", models: [\"" + value + "\"], bootstrap: \"" + value + "\", kv_events: \"" + value + "\"}\n")
		require.NoError(t, os.WriteFile(file, workers, 0o600))
		silent("workers: "+value, "check", "--workers", file)

		require.NoError(t, os.WriteFile(file, []byte("log: {level: none}\n"), 0o600)) // so that nothing begins
		for _, name := range flagsOf(func(fs *flag.FlagSet) { config.Flags(fs) }) {
			silent("--"+name+" "+value, "check", "--"+name, value)
		}
		for _, name := range flagsOf(func(fs *flag.FlagSet) { config.RegisterFlags(fs) }) {
			silent("register --"+name+" "+value, "register", "--etcd-endpoints", "a,b", "--"+name, value, "--role", "none")
		}
		for _, name := range flagsOf(func(fs *flag.FlagSet) { _, _, _ = config.EPP(fs, nil) }) {
			silent("epp --"+name+" "+value, "epp", "--baton-config", file, "--"+name, value)
		}
		silent("explain", "explain", "--admin", value, os.DevNull)
		silent("a file", "explain", "--admin", "127.0.0.1:1", value)
		silent("a file", "index", value)
		silent("a command", value)
		silent("an argument", "serve", value)
	}
	silent("a password with a comma", "check", "--etcd-endpoints", "http://user:hunter2,word@db.example:1")
}

// textSettings returns the keys of the settings that are texts or lists of texts.
func textSettings(t reflect.Type, path []string) (keys [][]string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		key := append(append([]string{}, path...), name)
		of := f.Type
		if of.Kind() == reflect.Slice {
			of, key = of.Elem(), append(key, "[]")
		}
		switch {
		case of.Kind() == reflect.String:
			keys = append(keys, key)
		case of.Kind() == reflect.Struct && name != "":
			keys = append(keys, textSettings(of, key)...)
		}
	}
	return keys
}

// yamlOf writes a file that gives one key, [] for an entry of a list.
func yamlOf(key []string, value string) string {
	text := `"` + value + `"`
	for i := len(key) - 1; i >= 0; i-- {
		if key[i] == "[]" {
			text = "[" + text + "]"
		} else {
			text = "{" + key[i] + ": " + text + "}"
		}
	}
	return text + "\n"
}

func flagsOf(add func(*flag.FlagSet)) (names []string) {
	fs := config.NewFlagSet("x", "", io.Discard)
	add(fs)
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return names
}
