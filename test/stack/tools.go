package stack

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// EnvoyVersion is the Envoy that `make tools` installs and the tests expect.
const EnvoyVersion = "1.40.0"

// ErrNoEnvoy says that no Envoy was found, and how to get one.
var ErrNoEnvoy = errors.New("stack: no envoy: set ENVOY, put envoy on PATH, or run `make tools`")

// FindEnvoy returns the path of Envoy: env (the value of $ENVOY), else envoy on PATH,
// else the one that `make tools` has put below the repository's root.
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

// Root returns the repository's root: the nearest folder upwards with cmd/extproc.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("stack: working folder: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "extproc")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("stack: no cmd/extproc in this folder or above it: run inside the repository")
		}
		dir = up
	}
}

// Build puts commands into dir, built with the go on PATH. They are named from the root; those
// below ./test are of the module of tests. tags may be
// empty. With race, the binaries check themselves for data races. They are built below
// .run/bin of the root, where go keeps binaries that are up to date, and are then linked
// into dir. So a second build of the same commands takes no time, and another build that
// runs meanwhile does not change dir.
func Build(dir, tags string, race bool, packages ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	flags := []string{"-tags", tags, fmt.Sprintf("-race=%t", race)}
	if strings.Contains(os.Getenv("GOFLAGS"), "-overlay") { // an overlay is made for one build (test/faults), so its binaries are not worth keeping
		return Compile(dir, flags, nil, packages...)
	}
	kind := sha256.Sum256([]byte(strings.Join(append(flags, os.Getenv("GOFLAGS")), " ")))
	shared := filepath.Join(root, ".run", "bin", hex.EncodeToString(kind[:4]))
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return fmt.Errorf("stack: %w", err)
	}
	unlock, err := lock(shared + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := Compile(shared, flags, nil, packages...); err != nil {
		return err
	}
	for _, p := range packages {
		if err := place(filepath.Join(shared, path.Base(p)), filepath.Join(dir, path.Base(p))); err != nil {
			return fmt.Errorf("stack: %w", err)
		}
	}
	return nil
}

// ModuleOf returns the folder of the module that a package is of, and the package's name in it: the
// folder is relative to the root, from which the package is named, as ./test/stack.
func ModuleOf(pkg string) (module, name string) {
	if below, ok := strings.CutPrefix(pkg, "./test/"); ok {
		return "test", "./" + below
	}
	return ".", pkg
}

// Compile runs go build in the module of each package, which are named as for Build: flags are
// go build's own, env follows this process's environment, and dir gets the programs.
func Compile(dir string, flags, env []string, packages ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	dir, err = filepath.Abs(dir) // go build runs in a module's folder
	if err != nil {
		return fmt.Errorf("stack: %w", err)
	}
	modules := map[string][]string{}
	for _, p := range packages {
		module, name := ModuleOf(p)
		modules[module] = append(modules[module], name)
	}
	for module, packages := range modules {
		cmd := exec.Command("go", slices.Concat([]string{"build", "-o", dir + string(filepath.Separator)}, flags, packages)...)
		cmd.Dir, cmd.Env = filepath.Join(root, module), append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("stack: build %v: %w\n%s", packages, err, out)
		}
	}
	return nil
}

// lock waits until it holds the lock on the file. unlock releases it.
func lock(name string) (unlock func(), err error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("stack: lock %s: %w", name, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// place makes to a hard link to from, or a copy if they are on different disks.
func place(from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(from, to); err == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // read only
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
