package enginesim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
)

// vllmJob is a planned request.
type vllmJob struct {
	v          *vllm
	c          *call
	transfer   *transfer // the hand-off that a decode request brought; nil: none
	transferID string    // of a prefill request with MooncakeConnector
}

// abandon frees the KV at the prefill worker: the engine has the request already, and ends
// it.
func (j vllmJob) abandon() { j.v.channel.drop(j.transfer) }

func (vllmJob) release() {}

func (j vllmJob) prepare(ctx context.Context, it *item) error {
	v, c := j.v, j.c
	switch c.leg {
	case legPrefill:
		if err := c.admit(ctx, it, c.output()-1); err != nil { // the last token's KV is not computed
			return err
		}
		return c.computeNow(ctx, it, true)
	case legDecode:
		return v.channel.receive(ctx, c, it, j.transfer, func(err error) error {
			if v.cfg.KVLoadFailure == LoadRecompute {
				v.channel.recomputed()
				return c.computeNow(ctx, it, false)
			}
			return &apiError{status: http.StatusInternalServerError, reason: "kv_load", msg: "KV load failure: " + err.Error()}
		})
	default:
		return c.prepareWhole(ctx, it)
	}
}

func (j vllmJob) output() (int, string) { return j.c.limit() }

// handOver writes the hand-off into a prefill's answer and holds the KV, if the prefill
// ended by length or by itself (docs/engines.md#vllm-stop-holds). For other reasons the
// hand-off is null.
func (j vllmJob) handOver(reason string) {
	v, c := j.v, j.c
	text := "null"
	ended := reason == "length" || reason == "stop" && !v.cfg.NullOnStop && !v.mooncake
	if c.leg == legPrefill && ended && c.fault.Mode != FaultNoHandoff {
		for _, it := range c.items {
			if v.mooncake {
				v.channel.keep(c, it, j.transferID, "{}")
				continue
			}
			id := fmt.Sprintf("%s-%08x", c.q.rid, rand.Uint32())
			if c.q.api == apiCompletion {
				id = fmt.Sprintf("%s-%d-%08x", c.q.rid, it.index, rand.Uint32())
			}
			text = v.handoff(it, id)
			v.channel.keep(c, it, id, text)
		}
	}
	c.bodyTail = append([]byte{','}, spoil(c.fault, "kv_transfer_params", text)...)
}
