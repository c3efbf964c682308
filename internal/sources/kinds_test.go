package sources

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// world is a process that wraps no source.
func world() World {
	return World{
		Log: slog.New(slog.DiscardHandler), Allowed: &discovery.Addresses{}, Dry: true,
		Asking:   func(s discovery.Source) (discovery.Source, error) { return s, nil },
		Expires:  func(s discovery.Source, _ func() ([]discovery.Entry, bool)) discovery.Source { return s },
		Presence: func(string, bool, string) {},
	}
}

// all has a source of each kind.
func all() Config {
	c := Default()
	c.File = "w.yaml"
	c.Etcd.Endpoints = []string{"127.0.0.1:1"}
	c.Dynamo = true
	c.Kubernetes = []KubernetesConfig{{Pool: "a", Namespace: "n"}}
	return c
}

func TestEachKindCanBeGivenAndOpened(t *testing.T) {
	none, c := Default(), all()
	names := map[string]bool{}
	for _, k := range kinds {
		require.NotEmpty(t, k.name)
		require.False(t, names[k.name], "%s stands twice", k.name)
		names[k.name] = true
		require.False(t, k.given(&none), k.name)
		require.True(t, k.given(&c), "%s: all() has one of each kind", k.name)
	}
	require.True(t, none.None())
	require.NoError(t, c.Validate())
}

func TestSourcesAreOpenedInTheOrderOfPrecedence(t *testing.T) {
	c := all()
	c.Cache = filepath.Join(t.TempDir(), "cache")
	opened, err := c.Open(world())
	require.NoError(t, err)
	var names []string
	for _, s := range opened.Sources {
		require.IsType(t, &discovery.Guard{}, s.Source, "%s: every worker passes a guard", s.Name)
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"file w.yaml", "etcd 127.0.0.1:1", "dynamo", "kubernetes n/a"}, names)
	require.Len(t, opened.Closers, 2, "both layouts share a client of etcd")
	for _, o := range opened.Closers {
		require.NoError(t, o.Close())
	}
	require.Equal(t, []string{"etcd (127.0.0.1:1)", "the InferencePool n/a"}, c.Elsewhere())
}

func TestAfterAFaultNothingIsOpen(t *testing.T) {
	c, w := all(), world()
	w.Asking = func(s discovery.Source) (discovery.Source, error) {
		if g, ok := s.(*discovery.Guard); ok && !g.Operator {
			return nil, errors.New("not today")
		}
		return s, nil
	}
	opened, err := c.Open(w) // the pool's source is the last: both clients are there
	require.EqualError(t, err, "not today")
	require.Empty(t, opened)
}

func TestWhatBelongsTogetherIsAskedFor(t *testing.T) {
	c := Default()
	c.Dynamo, c.Cache = true, "x"
	c.Etcd.Username, c.Etcd.Cert = "u", "c"
	require.EqualError(t, errors.Join(c.Needed(), c.Validate()), `discovery.file (--workers), discovery.etcd.endpoints (--etcd-endpoints) or discovery.kubernetes: expected at least one of them: they list the workers
discovery.etcd.username (--etcd-user): expected discovery.etcd.endpoints (--etcd-endpoints), too
discovery.etcd.cert (--etcd-cert): expected discovery.etcd.endpoints (--etcd-endpoints), too
discovery.dynamo: expected discovery.etcd.endpoints (--etcd-endpoints), too
discovery.etcd: expected both username and password_file, or neither
discovery.etcd: expected both cert and key, or neither
discovery.cache (--discovery-cache): expected discovery.etcd.endpoints (--etcd-endpoints) or discovery.kubernetes, too`)
}
