package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// EnvoyVersion is the Envoy that `make tools` installs and the tests expect.
const EnvoyVersion = "1.40.0"

// ErrNoEnvoy says that no Envoy was found, and what to do.
var ErrNoEnvoy = errors.New("stack: no envoy: set ENVOY, put envoy on PATH, or run `make tools`")

// FindEnvoy returns the Envoy to run: $ENVOY (given as env), else envoy on
// PATH, else the one that `make tools` has put below the repository's root.
func FindEnvoy(env string) (string, error) {
	if env != "" {
		return env, nil
	}
	if p, err := exec.LookPath("envoy"); err == nil {
		return p, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	p := filepath.Join(root, ".tools", "envoy-"+EnvoyVersion)
	if _, err := os.Stat(p); err != nil {
		return "", ErrNoEnvoy
	}
	return p, nil
}

// Root returns the repository's root: the nearest folder upwards with a go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("stack: working folder: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("stack: no go.mod in this folder or above it: run inside the repository")
		}
		dir = up
	}
}

// Build compiles commands of this module into dir with the go on PATH and
// returns nothing but an error; tags may be empty. With race, binaries check
// themselves for data races.
func Build(dir, tags string, race bool, packages ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if tags != "" {
		args = append(args, "-tags", tags)
	}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("stack: build %v: %w\n%s", packages, err, out)
	}
	return nil
}
