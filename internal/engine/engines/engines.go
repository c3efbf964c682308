package engines

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/internal/engine/capability"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/trtllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllmmooncake"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// list has the engines, in the order in which an obstacle is named if several have one.
var list = []*engine.Engine{&vllm.Engine, &vllmmooncake.Engine, &trtllm.Engine, &sglang.Engine}

var none engine.Engine

// Of returns what is known of an engine; of an unknown one, nothing. The result is never nil,
// and must not be changed.
func Of(name worker.Engine) *engine.Engine {
	for _, e := range list {
		if e.Name == name {
			return e
		}
	}
	return &none
}

// Unnamed returns the engines that are asked for their facts if nobody has named one, in the order
// in which they are asked.
func Unnamed() []*engine.Engine { return unnamed }

// The first two are told apart by pages that the third may lack.
var unnamed = []*engine.Engine{&sglang.Engine, &trtllm.Engine, &vllm.Engine}

// HandOff returns how an engine's workers hand over, or nil.
func HandOff(name worker.Engine) handoff.Kind { return Of(name).HandOff }

// Sidecar is the hand-off of decode workers with a sidecar, whatever their engine is.
var Sidecar = func() handoff.Kind {
	var tables []*capability.Table
	for _, e := range list {
		tables = append(tables, e.HandOff.Takes)
	}
	return handoff.SidecarOf(tables...)
}()

// Served are the paths that one of the engines serves to clients. Nobody changes them.
var Served = func() openai.Paths {
	var s openai.Paths
	for _, apart := range []bool{true, false} {
		for _, e := range list {
			for _, p := range e.HandOff.Takes.Paths {
				switch {
				case p.Apart != apart || slices.Contains(s.Read, p.Pattern) || slices.Contains(s.Passed, p.Pattern):
				case apart:
					s.Read = append(s.Read, p.Pattern)
				default:
					s.Passed = append(s.Passed, p.Pattern)
				}
			}
		}
	}
	s.Read = append(s.Read, "/v1/models", "/health") // which Baton answers itself
	return s
}()

// OfAnyRole are those of the Served paths that a worker of any role serves, by each engine that serves
// them. Nobody changes them.
var OfAnyRole = func() openai.Paths {
	by := map[bool][]string{} // whether a worker of any role serves them
	for _, e := range list {
		for _, p := range e.HandOff.Takes.Paths {
			by[p.Any] = append(by[p.Any], p.Pattern)
		}
	}
	return openai.Paths{Passed: slices.DeleteFunc(by[true], func(p string) bool { return slices.Contains(by[false], p) })}
}()
