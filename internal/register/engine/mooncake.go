package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// DefaultMooncakeBootstrap is the port of Mooncake's bootstrap server in vLLM, unless
// VLLM_MOONCAKE_BOOTSTRAP_PORT sets another.
const DefaultMooncakeBootstrap = 8998

// mooncakeFacts is vllmFacts with the engine ids that decode needs.
func (c *Client) mooncakeFacts(ctx context.Context) (Facts, error) {
	f, err := c.vllmFacts(ctx)
	if err != nil {
		return Facts{}, err
	}
	f.Engine = worker.VLLMMooncake
	if c.cfg.Bootstrap == 0 {
		return f, nil
	}
	f.BootstrapPort = c.cfg.Bootstrap
	f.EngineIDs, f.Unread.Engines = c.engineIDs(ctx)
	return f, nil
}

// engineIDs asks the bootstrap server which engines have registered there.
func (c *Client) engineIDs(ctx context.Context) ([]string, error) {
	host, _, err := HostPort(c.cfg.URL)
	if err != nil {
		return nil, err
	}
	at := "http://" + net.JoinHostPort(host, strconv.Itoa(int(c.cfg.Bootstrap)))
	body, err := c.getFrom(ctx, at, "/query")
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
		return nil, wrongJSON(err)
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
