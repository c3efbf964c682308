package vllm

import (
	_ "embed"

	"github.com/seed-60ae5743/baton/internal/engine/capability"
)

//go:embed capabilities.txt
var capabilities string

// Takes is what the engine takes of a client.
var Takes = capability.Must(capabilities)
