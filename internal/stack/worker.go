package stack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

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
	r, w := io.Pipe()
	proc, err := start(ctx, "worker", w, filepath.Join(binDir, "enginesim"), args...)
	if err != nil {
		return nil, err
	}
	go func() {
		<-proc.Done()
		_ = w.CloseWithError(io.EOF)
	}()
	lines := make(chan string, 1)
	go func() {
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		if s.Scan() {
			lines <- s.Text()
		}
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case line := <-lines:
		info, err := file.ParseWorker("ready line", []byte(line))
		if err != nil {
			_ = proc.Kill()
			return nil, fmt.Errorf("stack: worker's ready line: %w", err)
		}
		proc.Name = fmt.Sprintf("%s worker %s", info.Role, info.ID)
		return &Worker{Process: proc, Info: info, Sim: &enginesim.Client{BaseURL: "http://" + info.Endpoint.String()}}, nil
	case <-proc.Done():
		return nil, fmt.Errorf("stack: a worker ended before it served: %w\n%s", proc.Err(), proc.Log())
	case <-ctx.Done():
		_ = proc.Kill()
		return nil, fmt.Errorf("stack: a worker did not become ready: %w", ctx.Err())
	case <-time.After(10 * time.Second):
		_ = proc.Kill()
		return nil, fmt.Errorf("stack: a worker did not become ready in 10 s\n%s", proc.Log())
	}
}
