package kubesim

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type asked struct {
	t *testing.T
	s *Server
	c *http.Client
}

func start(t *testing.T, c Config) *asked {
	c.Resources = []Resource{Pools()}
	s := New(c)
	require.NoError(t, s.Start())
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(func() { tr.CloseIdleConnections(); s.Stop() })
	return &asked{t, s, &http.Client{Transport: tr, Timeout: time.Minute}}
}

func (a *asked) get(query string) (int, map[string]any) {
	a.t.Helper()
	resp, err := a.c.Get(a.s.URL() + "/api/v1/namespaces/infra/pods?" + query)
	require.NoError(a.t, err)
	defer resp.Body.Close()
	out := map[string]any{}
	require.NoError(a.t, json.NewDecoder(resp.Body).Decode(&out))
	return resp.StatusCode, out
}

// watch returns the types and names of what a watch tells until its time is over.
func (a *asked) watch(query string) string {
	a.t.Helper()
	resp, err := a.c.Get(a.s.URL() + "/api/v1/namespaces/infra/pods?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&" + query)
	require.NoError(a.t, err)
	defer resp.Body.Close()
	var out []string
	for d := json.NewDecoder(resp.Body); ; {
		var ev struct {
			Type   string
			Object map[string]any
		}
		if err := d.Decode(&ev); err != nil {
			require.ErrorIs(a.t, err, io.EOF)
			return strings.Join(out, " ")
		}
		m := metadata(ev.Object)
		name, _ := m["name"].(string)
		if ev.Type == "ERROR" {
			name, _ = ev.Object["reason"].(string)
		}
		if m["annotations"] != nil {
			name = "initial"
		}
		version, _ := m["resourceVersion"].(string)
		out = append(out, strings.TrimSuffix(strings.ToLower(ev.Type)+"/"+name+"@"+version, "@"))
	}
}

func pod(name, app string) map[string]any {
	return map[string]any{"metadata": map[string]any{"namespace": "infra", "name": name, "labels": map[string]any{"app": app}}}
}

func TestAListHasPagesOfOneVersion(t *testing.T) {
	a := start(t, Config{})
	for _, n := range []string{"a", "b", "c"} {
		a.s.Put(Pods(), pod(n, "x"))
	}
	code, first := a.get("limit=2")
	require.Equal(t, 200, code)
	require.Len(t, first["items"], 2)
	a.s.Put(Pods(), pod("d", "x"))
	token := metadata(first)["continue"].(string)
	_, second := a.get("limit=2&continue=" + token)
	require.Len(t, second["items"], 1, "as it was")
	require.Equal(t, metadata(first)["resourceVersion"], metadata(second)["resourceVersion"])
	_, all := a.get("limit=2&resourceVersion=0")
	require.Len(t, all["items"], 4)
	_, none := a.get("labelSelector=app=y")
	require.Empty(t, none["items"])
	a.s.Compact()
	code, gone := a.get("limit=2&continue=" + token)
	require.Equal(t, 410, code)
	require.Equal(t, "Expired", gone["reason"])
	code, early := a.get("resourceVersion=99")
	require.Equal(t, 504, code)
	require.Equal(t, "Timeout", early["reason"])
}

func TestAWatchTellsWhatComesAfterItsVersion(t *testing.T) {
	a := start(t, Config{Bookmarks: time.Hour})
	a.s.Put(Pods(), pod("a", "x"))                 // 2
	a.s.Put(Pods(), pod("b", "y"))                 // 3
	a.s.Put(Pods(), pod("a", "y"))                 // 4
	a.s.Put(Pods(), pod("b", "y"))                 // 5
	a.s.Delete(Pods(), "infra", "b", nil)          // 6
	a.s.Delete(Pods(), "elsewhere", "nobody", nil) // none
	require.Equal(t, "deleted/a@4 bookmark/@6", a.watch("resourceVersion=2&labelSelector=app=x"), "it ceases to match")
	require.Equal(t, "added/a@4 modified/b@5 deleted/b@6 bookmark/@6", a.watch("resourceVersion=3&labelSelector=app=y"))
	require.Equal(t, "added/a@4 bookmark/@6", a.watch(""))
	require.Equal(t, "added/a@4 bookmark/initial@6 bookmark/@6", a.watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"))
	a.s.Compact()
	require.Equal(t, "error/Expired", a.watch("resourceVersion=4"))
}

func TestWhatIsRefused(t *testing.T) {
	a := start(t, Config{NoWatchList: true})
	a.s.Refuse("list", "pods")
	code, st := a.get("")
	require.Equal(t, 403, code)
	require.Contains(t, st["message"], `cannot list resource "pods" in API group "" in the namespace "infra"`)
	code, _ = a.get("watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	require.Equal(t, 422, code)
	a.s.Allow("list", "pods")
	code, _ = a.get("")
	require.Equal(t, 200, code)
}
