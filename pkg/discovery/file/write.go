package file

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/wholefile"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Write replaces the file at path with the workers. It is atomic: a reader sees the old
// file or the new one. Everyone may read the new file, since it has no secrets. If
// several writers write at once, the file of one of them remains.
func Write(path string, ws []*worker.Worker) error {
	data, err := record.MarshalList(ws)
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	if err := wholefile.Replace(path, data); err != nil {
		return fmt.Errorf("file: %w", err)
	}
	return nil
}
