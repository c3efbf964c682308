//go:build example

package engines

import "github.com/seed-60ae5743/baton/internal/engine/example"

func init() { list = append(list, &example.Engine) }
