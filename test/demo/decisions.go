package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// workerState is one worker as GET /debug/state tells it.
type workerState struct {
	ID     worker.ID `json:"worker_id,string"`
	State  string    `json:"state"`
	Reason string    `json:"reason"`
	Ranks  []struct {
		Requests      int `json:"requests"`
		PrefillTokens int `json:"prefill_tokens"`
		DecodeBlocks  int `json:"decode_blocks"`
		IndexBlocks   int `json:"index_blocks"`
		Events        *struct {
			State string `json:"state"`
		} `json:"kv_events"`
	} `json:"ranks"`
}

// admin reads the plugin's admin address.
type admin struct{ url string }

// activation returns what the plugin holds of the story's model: whether its
// workers are known to serve with prefill and decode apart.
func (a admin) activation(ctx context.Context) (string, error) {
	var doc struct {
		Keys []struct{ Model, Activation string }
	}
	if err := a.get(ctx, "/debug/state", &doc); err != nil {
		return "", err
	}
	for _, k := range doc.Keys {
		if k.Model == model {
			return k.Activation, nil
		}
	}
	return "absent", nil
}

// attempts returns the attempts of a request, the first one first; none while
// nothing has been decided for it.
func (a admin) attempts(ctx context.Context, id string) ([]decision.Record, error) {
	var doc struct {
		Decisions []decision.Record `json:"decisions"`
	}
	if err := a.get(ctx, "/debug/decisions", &doc); err != nil {
		return nil, err
	}
	var out []decision.Record
	for _, d := range doc.Decisions {
		if d.RequestID == id {
			out = append([]decision.Record{d}, out...) // they come newest first
		}
	}
	return out, nil
}

func (a admin) workers(ctx context.Context) (map[worker.ID]workerState, error) {
	var doc struct {
		Workers []workerState `json:"workers"`
	}
	if err := a.get(ctx, "/debug/state", &doc); err != nil {
		return nil, err
	}
	out := make(map[worker.ID]workerState)
	for _, w := range doc.Workers {
		out[w.ID] = w
	}
	return out, nil
}

func (a admin) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return fmt.Errorf("%w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the plugin's admin address: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", path, resp.StatusCode)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
