package vllmmooncake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// No page names vLLM's connector: nobody is taken for this engine who was not named.
var pages = ask.Reader{Title: "vLLM with MooncakeConnector", Facts: facts, Count: vllm.Pages.Count, Running: vllm.Pages.Running}

// facts are vLLM's with the engine ids that decode needs.
func facts(ctx context.Context, p ask.Pages) (ask.Facts, error) {
	f, err := vllm.Facts(ctx, p)
	if err != nil {
		return ask.Facts{}, err
	}
	f.Engine = worker.VLLMMooncake
	if p.BootstrapPort() == 0 {
		return f, nil
	}
	f.BootstrapPort = p.BootstrapPort()
	f.EngineIDs, f.Unread.Engines = engineIDs(ctx, p)
	return f, nil
}

// engineIDs asks the bootstrap server which engines have registered there.
func engineIDs(ctx context.Context, p ask.Pages) ([]string, error) {
	body, at, err := p.GetAt(ctx, p.BootstrapPort(), "/query")
	if err != nil {
		return nil, fmt.Errorf("bootstrap server %s: %w", at, err)
	}
	ids, err := parseEngineIDs(body)
	if err != nil {
		return nil, fmt.Errorf("bootstrap server %s: %w", at, err)
	}
	return ids, nil
}

// parseEngineIDs reads the answer of /query: the engines by data-parallel rank. A missing
// rank below another one is an error: it has not registered yet.
func parseEngineIDs(body []byte) ([]string, error) {
	var byRank map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if err := json.Unmarshal(body, &byRank); err != nil {
		return nil, ask.WrongJSON(err)
	}
	if len(byRank) == 0 {
		return nil, errors.New("no engine has come to it yet")
	}
	ids := make([]string, 0, min(len(byRank), worker.MaxDPSize))
	for r := range min(len(byRank), worker.MaxDPSize) {
		e, ok := byRank[strconv.Itoa(r)]
		if !ok {
			return nil, fmt.Errorf("rank %d has not come to it yet", r)
		}
		ids = append(ids, e.EngineID)
	}
	return ids, nil
}
