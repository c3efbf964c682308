package kubernetes

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// kubeconfig writes a file by which the server at url is reached, with the token that a file has.
func kubeconfig(t *testing.T, url, tokenFile string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {tokenFile: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, url, tokenFile), 0o600))
	return path
}

// The token is read from its file: the kubelet replaces it.
func TestTheTokenIsThatOfTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	conf, err := ClientConfig{Kubeconfig: kubeconfig(t, "https://127.0.0.1:1", file)}.rest()
	require.NoError(t, err)
	require.Equal(t, file, conf.BearerTokenFile, "client-go reads it again each minute")
}

// What other pickers read and Baton does not is told, once, where it is there.
func TestResourcesThatAreNotReadAreNamed(t *testing.T) {
	for name, has := range map[string]bool{"none": false, "both": true} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if !has || r.URL.Path != "/apis/llm-d.ai/v1alpha2" {
					http.NotFound(w, r)
					return
				}
				_, _ = w.Write([]byte(`{"resources":[{"name":"inferenceobjectives","kind":"InferenceObjective"},` +
					`{"name":"inferenceobjectives/status","kind":"InferenceObjective"},{"name":"others","kind":"Other"}]}`))
			}))
			t.Cleanup(api.Close)
			token := filepath.Join(t.TempDir(), "token")
			require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
			client, err := Dial(ClientConfig{Kubeconfig: kubeconfig(t, api.URL, token)})
			require.NoError(t, err)
			t.Cleanup(func() { _ = client.Close() })
			var told []string
			s, err := New(Config{Client: client, Namespace: "infra", Pool: "primary", Notice: func(text string) { told = append(told, text) }})
			require.NoError(t, err)
			s.notice(t.Context())
			require.EqualValues(t, len(unreadKinds()), asked.Load(), "each group is asked for")
			if !has {
				require.Empty(t, told)
				return
			}
			require.Equal(t, []string{"the cluster has resources that are not read here: InferenceObjective (llm-d.ai/v1alpha2)"}, told)
		})
	}
}

func TestWhatCannotBeReachedAtAllIsToldAtTheStart(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := Dial(ClientConfig{})
	require.ErrorContains(t, err, "set a kubeconfig")
	missing := filepath.Join(t.TempDir(), "none")
	_, err = Dial(ClientConfig{Kubeconfig: missing})
	require.ErrorContains(t, err, missing)
}

func TestWhatIsWrongInAConfigIsToldAtOnce(t *testing.T) {
	for text, c := range map[string]Config{
		"expected the name of a pool, or a selector": {Namespace: "a"},
		"not both":                       {Namespace: "a", Pool: "p", Selector: map[string]string{"a": "b"}},
		"expected ports, too":            {Namespace: "a", Selector: map[string]string{"a": "b"}},
		"namespace":                      {Pool: "p"},
		"group":                          {Namespace: "a", Pool: "p", Group: "x"},
		"none twice":                     {Namespace: "a", Selector: map[string]string{"a": "b"}, Ports: []uint16{1, 1}},
		"expected at most 8":             {Namespace: "a", Selector: map[string]string{"a": "b"}, Ports: make([]uint16, 9)},
		"expected a prefill selector":    {Namespace: "a", Pool: "p", PrefillPorts: []uint16{1}},
		"label \"a b\"":                  {Namespace: "a", Pool: "p", PrefillSelector: map[string]string{"a b": "c"}},
		"value \"?\"":                    {Namespace: "a", Pool: "p", PrefillSelector: map[string]string{"a": "?"}},
		"value: expected one":            {Namespace: "a", Pool: "p", Rules: []Rule{{Label: "l"}}},
		"label: expected the name":       {Namespace: "a", Pool: "p", Rules: []Rule{{Value: "v"}}},
		"pace {Least:-1ns":               {Namespace: "a", Pool: "p", Pace: Pace{Least: -1}},
		"role: expected prefill, decode": {Namespace: "a", Pool: "p", Rules: []Rule{by("l", "v", 9)}},
	} {
		_, err := New(c)
		require.ErrorContains(t, err, text)
	}
}

func TestASelectorIsReadAsText(t *testing.T) {
	got, err := ParseSelector("app=llama, tier==a,x/y=")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"app": "llama", "tier": "a", "x/y": ""}, got)
	require.Equal(t, "app=llama,tier=a,x/y=", SelectorText(got))
	for _, bad := range []string{"", "app", "app!=x", "app in (a)", "=x", "a=b,,c=d"} {
		_, err := ParseSelector(bad)
		require.Error(t, err, bad)
	}
}

// An id is of one life of a pod, and does not depend on where it is.
func TestAnIdIsOfALife(t *testing.T) {
	a := &Pod{Namespace: "n", Name: "p", UID: "1", IP: "10.0.0.1"}
	moved, again, other := *a, *a, *a
	moved.IP, again.UID, other.Name = "10.0.0.2", "2", "q"
	require.Equal(t, idOf(a, 1), idOf(&moved, 1))
	seen := map[worker.ID]bool{idOf(a, 1): true, idOf(a, 2): true, idOf(&again, 1): true, idOf(&other, 1): true}
	require.Len(t, seen, 4)
}
