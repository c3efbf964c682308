//go:build example

package example

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/engine"
	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/engine/capability"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

//go:embed capabilities.txt
var capabilities string

// Engine is what is known of it.
var Engine = engine.Engine{
	Name: worker.Example,
	HandOff: &handoff.Protocol{
		Name:  "kept",
		First: &handoff.First{Hold: hold, Added: []string{"kept"}, Read: read, Append: take},
		Takes: capability.Must(capabilities),
	},
	Pages: ask.Reader{
		Title: "the example", Facts: facts,
		Count: func(context.Context, ask.Pages) (int, error) { return 0, ask.ErrNotCounted },
	},
}

func hold(dst []byte, id uint64) []byte {
	return strconv.AppendUint(append(dst, `,"keep":`...), id, 10)
}

func read(answer []byte, top handoff.Members) (handoff.Parts, error) {
	kept, err := handoff.Check(answer, top.Added[0])
	return handoff.Parts{HandOff: kept}, err
}

func take(dst, answer []byte, p handoff.Parts) []byte {
	return append(append(dst, `,"take":`...), p.HandOff.Of(answer)...)
}

// About is its page /about.
type About struct {
	Model  string `json:"model"`
	Block  uint32 `json:"block"`
	Blocks uint64 `json:"blocks"`
	Life   string `json:"life"`
}

func facts(ctx context.Context, p ask.Pages) (ask.Facts, error) {
	page, err := p.Get(ctx, "/about")
	if err != nil {
		return ask.Facts{}, err
	}
	var a About
	if err := json.Unmarshal(page, &a); err != nil {
		return ask.Facts{}, fmt.Errorf("/about: %w", ask.WrongJSON(err))
	}
	return ask.Facts{
		Engine: worker.Example, Models: []string{a.Model}, DPSize: 1, BlockSize: a.Block, CapacityBlocks: a.Blocks, Mark: ask.Mark{Start: a.Life},
	}, nil
}
