//go:build example

package engines

import "github.com/seed-60ae5743/baton/internal/engine/example"

var _ = func() bool {
	list = append(list, &example.Engine)
	return true
}()
