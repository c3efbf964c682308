package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Example returns run.sh of examples/name, ready to run with the tests' Envoy ($ENVOY, or
// the pinned one). The variables named in ports are set to free ports, BATON_ADMIN to an
// address with a free port, and BIN to the folder bin; env follows them. First it builds
// into bin what the script will build there: every script runs its own build, and only
// the first build takes time. Arguments of the script may be added to Args. When ctx or
// this process ends, the script gets SIGTERM, and ends what it has started.
func Example(ctx context.Context, name, bin string, ports []string, env ...string) (*exec.Cmd, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	envoy, err := FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return nil, err
	}
	free, err := FreePorts(ctx, len(ports)+1)
	if err != nil {
		return nil, err
	}
	built := []string{"./cmd/extproc", "./test/cmd/enginesim"}
	own, err := filepath.Glob(filepath.Join(root, "examples", name, "*", "main.go"))
	if err != nil {
		return nil, fmt.Errorf("stack: commands of example %s: %w", name, err)
	}
	for _, file := range own {
		built = append(built, "./examples/"+name+"/"+filepath.Base(filepath.Dir(file)))
	}
	if err := Build(bin, "", false, built...); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "examples", name, "run.sh"))
	cmd.Env = append(os.Environ(), "ENVOY="+envoy, "BIN="+bin, fmt.Sprintf("BATON_ADMIN=127.0.0.1:%d", free[len(ports)]))
	for i, p := range ports {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", p, free[i]))
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	EndWithParent(cmd, syscall.SIGTERM)
	return cmd, nil
}
