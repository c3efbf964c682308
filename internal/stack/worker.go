package stack

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/seed-60ae5743/baton/internal/enginesim"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Worker is a running simulated worker.
type Worker struct {
	*Process
	Info *worker.Worker    // what it says of itself
	Sim  *enginesim.Client // its state, its requests, its faults
}

// StartWorker runs one simulated worker and returns once it serves. args are
// flags of the enginesim command.
func StartWorker(ctx context.Context, binDir string, args ...string) (*Worker, error) {
	proc, line, err := startReady(ctx, "worker", filepath.Join(binDir, "enginesim"), args...)
	if err != nil {
		return nil, err
	}
	info, err := file.ParseWorker("ready line", line)
	if err != nil {
		_ = proc.Kill()
		return nil, fmt.Errorf("stack: worker's ready line: %w", err)
	}
	proc.Name = fmt.Sprintf("%s worker %s", info.Role, info.ID)
	return &Worker{Process: proc, Info: info, Sim: &enginesim.Client{BaseURL: "http://" + info.Endpoint.String()}}, nil
}
