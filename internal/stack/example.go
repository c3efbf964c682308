package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Example returns run.sh of examples/name, ready to run with the tests' Envoy
// ($ENVOY, or the pinned one). The variables named in ports are set to free ports,
// BATON_ADMIN to an address on one, and env comes after them. It takes its arguments
// in Args; where ctx or this process ends, it is told to end what it has started.
func Example(ctx context.Context, name string, ports []string, env ...string) (*exec.Cmd, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	envoy, err := FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return nil, err
	}
	free, err := FreePorts(len(ports) + 1)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "examples", name, "run.sh"))
	cmd.Env = append(os.Environ(), "ENVOY="+envoy, fmt.Sprintf("BATON_ADMIN=127.0.0.1:%d", free[len(ports)]))
	for i, p := range ports {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", p, free[i]))
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	EndWithParent(cmd, syscall.SIGTERM)
	return cmd, nil
}
