package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestConfigsAreRefusedWithEveryFaultNamed(t *testing.T) {
	_, err := New(&clientv3.Client{}, Config{Prefix: "a/", Silence: time.Second, ListTimeout: -1, PageSize: -1})
	for _, text := range []string{`prefix "a/"`, "silence 1s", "list timeout -1ns", "page size -1"} {
		require.ErrorContains(t, err, text)
	}
	_, err = New(nil, Config{})
	require.ErrorContains(t, err, "expected a client")
	_, err = Dial(ClientConfig{Username: "u", Cert: "c"})
	for _, text := range []string{"endpoints: expected at least one", "both user and password", "both cert and key"} {
		require.ErrorContains(t, err, text)
	}
	_, err = Dial(ClientConfig{Endpoints: []string{"127.0.0.1:1"}, CA: "testdata/absent"})
	require.ErrorContains(t, err, "etcd: tls")
}

func TestEndpointsAreOfOneKindThatFitsWhatIsGiven(t *testing.T) {
	for name, tc := range map[string]struct {
		c     ClientConfig
		urls  []string
		fault string
	}{
		"plain":                   {c: ClientConfig{Endpoints: []string{"a:1", "http://[::1]:2"}}, urls: []string{"http://a:1", "http://[::1]:2"}},
		"a CA means https":        {c: ClientConfig{Endpoints: []string{"a:1", "https://b:2"}, CA: "ca"}, urls: []string{"https://a:1", "https://b:2"}},
		"a server name, too":      {c: ClientConfig{Endpoints: []string{"a:1"}, ServerName: "s"}, urls: []string{"https://a:1"}},
		"https with system roots": {c: ClientConfig{Endpoints: []string{"https://a:1"}}, urls: []string{"https://a:1"}},
		"http with a CA":          {c: ClientConfig{Endpoints: []string{"http://a:1"}, CA: "ca"}, fault: "endpoints with http://: expected https://"},
		"mixed":                   {c: ClientConfig{Endpoints: []string{"http://a:1", "https://b:1"}}, fault: "endpoints http://a:1,https://b:1: expected all with http or all with https"},
		"no scheme is http":       {c: ClientConfig{Endpoints: []string{"a:1", "https://b:1"}}, fault: "expected all with http or all with https"},
		"another scheme":          {c: ClientConfig{Endpoints: []string{"ftp://a:1"}}, fault: `endpoint "ftp://a:1": expected host:port`},
		"no port":                 {c: ClientConfig{Endpoints: []string{"a"}}, fault: `endpoint "a": expected host:port`},
		"port 0":                  {c: ClientConfig{Endpoints: []string{"a:0"}}, fault: `endpoint "a:0": expected host:port`},
		"a path":                  {c: ClientConfig{Endpoints: []string{"http://a:1/x"}}, fault: `endpoint "http://a:1/x": expected host:port`},
		"no host":                 {c: ClientConfig{Endpoints: []string{":1"}}, fault: `endpoint ":1": expected host:port`},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.fault != "" {
				require.ErrorContains(t, tc.c.Validate(), tc.fault)
				return
			}
			urls, err := tc.c.urls()
			require.NoError(t, err)
			require.Equal(t, tc.urls, urls)
			require.NoError(t, tc.c.Validate())
		})
	}
}

func TestRegistrarConfigsAreRefusedWithEveryFaultNamed(t *testing.T) {
	_, err := NewRegistrar(&clientv3.Client{}, RegistrarConfig{Prefix: "/a/", TTL: 1500 * time.Millisecond, RetryMin: -1})
	for _, text := range []string{`prefix "/a/"`, "ttl 1.5s", "retry: -1ns"} {
		require.ErrorContains(t, err, text)
	}
	require.Len(t, strings.Split(errors.Unwrap(err).Error(), "\n"), 3, strconv.Quote(err.Error()))
	require.ErrorContains(t, RegistrarConfig{TTL: time.Hour + time.Second}.Validate(), "ttl 1h0m1s: expected whole seconds, from 1 s to 1h0m0s")
	require.NoError(t, RegistrarConfig{TTL: time.Hour}.Validate())
	_, err = NewRegistrar(nil, RegistrarConfig{})
	require.ErrorContains(t, err, "expected a client")
}

// passwordFile returns the path of a file with the password.
func passwordFile(t *testing.T, word string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(word+"\n"), 0o600))
	return path
}

func TestPasswordFilesThatHoldNoneAreRefused(t *testing.T) {
	t.Parallel()
	c := ClientConfig{Endpoints: []string{"127.0.0.1:1"}, Username: "user", PasswordFile: passwordFile(t, "")}
	_, err := Dial(c)
	require.ErrorContains(t, err, "expected a password, it is empty")
	c.PasswordFile += ".absent"
	_, err = Dial(c)
	require.ErrorContains(t, err, "etcd: password file: open")
	c.Password = "word"
	_, err = Dial(c)
	require.ErrorContains(t, err, "not both")
}
