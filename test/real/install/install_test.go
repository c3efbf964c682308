package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// scene is an installer in a folder of its own, with steps that note when they are made.
type scene struct {
	*installer
	out  *bytes.Buffer
	made []string
	fail string // the step that fails
}

func newScene(t *testing.T) *scene {
	t.Helper()
	dir := t.TempDir()
	s := &scene{out: &bytes.Buffer{}}
	s.installer = &installer{root: dir, home: filepath.Join(dir, "home"), python: fakePython(t, "3.12"), out: s.out}
	require.NoError(t, os.MkdirAll(s.at("pins"), 0o750))
	s.pin(t, "1")
	return s
}

// fakePython is a program that says its version, and puts an npm on the path.
func fakePython(t *testing.T, version string) string {
	t.Helper()
	bin := t.TempDir()
	for name, text := range map[string]string{"python": "echo " + version, "npm": "true"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700)) //nolint:gosec // a program
	}
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	return filepath.Join(bin, "python")
}

func (s *scene) pin(t *testing.T, version string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.at("pins/b.txt"), []byte(version), 0o600))
}

func (s *scene) steps() []step {
	one := func(name string, pins ...string) step {
		return step{name: name, what: name, pins: pins, make: func(_ context.Context, _ *installer, dir string) error {
			left, err := os.ReadDir(dir)
			if err != nil || len(left) > 0 {
				return errors.Join(err, errors.New("the folder is not empty"))
			}
			if err := os.WriteFile(filepath.Join(dir, "part"), nil, 0o600); err != nil {
				return err
			}
			if s.fail == name {
				return errors.New("the registry is away")
			}
			s.made = append(s.made, name)
			return nil
		}}
	}
	return []step{one("a"), one("b", "pins/b.txt"), one("c")}
}

func (s *scene) install(t *testing.T) error {
	t.Helper()
	s.made = nil
	s.out.Reset()
	return s.installer.install(t.Context(), s.steps())
}

func TestAnInstallThatIsCutGoesOnWhereItWas(t *testing.T) {
	s := newScene(t)
	s.fail = "b"
	require.EqualError(t, s.install(t), "b: the registry is away (run it again: what was downloaded is kept)")
	require.Equal(t, []string{"a"}, s.made)

	s.fail = ""
	require.NoError(t, s.install(t), "the half of b that was there is cleared")
	require.Equal(t, []string{"b", "c"}, s.made)
	require.Contains(t, s.out.String(), "1 of 2: b\n")

	require.NoError(t, s.install(t))
	require.Empty(t, s.made, "all is there")
	require.Empty(t, s.out.String())

	s.pin(t, "2")
	require.NoError(t, s.install(t))
	require.Equal(t, []string{"b"}, s.made, "its pins have changed")
}

func TestAllThatSpeaksAgainstAnInstallIsToldAtOnce(t *testing.T) {
	s := newScene(t)
	s.python = fakePython(t, "3.9")
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(s.python), "npm")))
	t.Setenv("PATH", filepath.Dir(s.python))
	steps := s.steps()
	steps[0].size = 1 << 62
	err := s.installer.install(t.Context(), steps)
	require.ErrorContains(t, err, "free space: 4294967296 GB are needed and")
	require.ErrorContains(t, err, `Python 3.11, 3.12 or 3.13 is needed, this is "3.9" (PYTHON=… names another)`)
	require.ErrorContains(t, err, "npm: not found")
	require.Empty(t, s.made)
}
