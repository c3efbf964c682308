package redact

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsersAndPasswordsAreRemoved(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"no address":                         "no address",
		`endpoint "http://u:secret@h:1": no`: `endpoint "http://xxxxx@h:1": no`,
		"nats://token@h, tls://u:s@b":        "nats://xxxxx@h, tls://xxxxx@b",
		"http://a:1,http://u:s@b:2":          "http://xxxxx@b:2",
		"http://u:s@e@h/path":                "http://xxxxx@h/path",
		"http://u:s/e?c#r@h":                 "http://xxxxx@h",
		`"http://u:se cret@h"`:               `"http://xxxxx@h"`,
		`msg="no \"http://u:s@h\" here" n=1`: `msg="no \"http://xxxxx@h\" here" n=1`,
		`"u:secret@h:2379"`:                  `"xxxxx@h:2379"`,
		"--admin=u:s@h":                      "xxxxx@h",
		`"http://u:secre"`:                   `"http://xxxxx"`,
		`"http://u:secre…"`:                  `"http://xxxxx"`,
		"file: http://u:s@h/x\n":             "file: http://xxxxx@h/x\n",
	} {
		got := Text(in)
		require.Equal(t, want, got, in)
		var out bytes.Buffer
		n, err := Writer(&out).Write([]byte(in))
		require.NoError(t, err)
		require.Equal(t, len(in), n)
		require.Equal(t, got, out.String())
	}
	for _, same := range []string{
		"expected host:port, http://host:port or https://host:port", `expected "http://host:port"`, `"http://[::1]:80/x": refused`,
		`Get "http://10.0.0.1:8000/health": refused`, `"tcp://10.0.0.1:5557"`, "topic=kv@10.0.0.1:8000@org/model", `"unix:///run/x:y.sock"`,
		"http://127.0.0.1:9902, see", `"http://10.0.0.1:8000: refused"`, "mail a@b.example", `"https://example.com/a:b"`,
	} {
		require.Equal(t, same, Text(same))
	}
}

func FuzzText(f *testing.F) {
	f.Add("http", "u", "secret", "h:1")
	f.Fuzz(func(t *testing.T, scheme, user, password, host string) {
		if strings.ContainsAny(scheme+user+password+host, " \t\n\r\f\v\"@:") || strings.TrimSpace(password) != password || len(password) < 6 || strings.Contains(host+user+scheme+mark, password) {
			return
		}
		require.NotContains(t, Text("the address "+scheme+"://"+user+":"+password+"@"+host+" is wrong"), password)
		require.NotContains(t, Text("the address "+user+":"+password+"@"+host+" is wrong"), password)
	})
}
