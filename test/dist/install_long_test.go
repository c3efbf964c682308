//go:build long

package main

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/seed-60ae5743/baton/test/stack"
)

// treeFile is a file of the repository as it goes into a module's archive.
type treeFile struct{ root, path string }

func (f treeFile) Path() string                 { return f.path }
func (f treeFile) Lstat() (fs.FileInfo, error)  { return os.Lstat(filepath.Join(f.root, f.path)) }
func (f treeFile) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.root, f.path)) }

// publish writes the tree as a module proxy would serve that version of it.
func publish(t *testing.T, root, proxy string, v module.Version) {
	t.Helper()
	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	git.Dir = root
	names, err := git.Output()
	require.NoError(t, err)
	var files []zip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(root, name)); err == nil {
			files = append(files, treeFile{root, name})
		}
	}
	dir := filepath.Join(proxy, filepath.FromSlash(v.Path), "@v")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "list"), []byte(v.Version+"\n"), 0o600))
	at := filepath.Join(dir, v.Version)
	require.NoError(t, os.WriteFile(at+".mod", mod, 0o600))
	require.NoError(t, os.WriteFile(at+".info", []byte(`{"Version":"`+v.Version+`"}`), 0o600))
	archive, err := os.Create(at + ".zip")
	require.NoError(t, err)
	require.NoError(t, zip.Create(archive, v, files))
	require.NoError(t, archive.Close())
}

// TestTheCommandIsInstalledByItsVersionFromAnEmptyCache: go install fetches what the plugin
// needs, and none of the servers and browsers of tests. What this machine has of other
// modules stands in for the proxy they come from, so that the test needs no network.
func TestTheCommandIsInstalledByItsVersionFromAnEmptyCache(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	dir := t.TempDir()
	proxy, cache, bin := filepath.Join(dir, "proxy"), filepath.Join(dir, "cache"), filepath.Join(dir, "bin")
	v := module.Version{Path: "github.com/seed-60ae5743/baton", Version: "v0.99.0"}
	publish(t, root, proxy, v)
	had, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	require.NoError(t, err)
	ours := strings.TrimSpace(string(had))

	install := exec.CommandContext(t.Context(), "go", "install", v.Path+"/cmd/extproc@"+v.Version)
	install.Dir = dir
	install.Env = append(install.Environ(), "GOMODCACHE="+cache, "GOBIN="+bin, "GOFLAGS=-modcacherw", "GOWORK=off", "GONOSUMDB=*",
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(ours, "cache", "download"))
	said, err := install.CombinedOutput()
	require.NoError(t, err, "%s", said)

	said, err = exec.CommandContext(t.Context(), filepath.Join(bin, "extproc"), "version").CombinedOutput()
	require.NoError(t, err, "%s", said)
	fetched := filepath.Join(cache, "cache", "download")
	require.DirExists(t, filepath.Join(fetched, "go.etcd.io", "etcd", "client"))
	for _, heavy := range []string{"go.etcd.io/etcd/server", "github.com/nats-io/nats-server", "github.com/chromedp", "github.com/google/go-containerregistry"} {
		require.NoDirExists(t, filepath.Join(fetched, filepath.FromSlash(heavy)), "it is for tests")
	}
}
