package vllm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

// job is a planned request.
type job struct {
	v          *engine
	c          *core.Call
	transfer   *sidechannel.Transfer // the hand-off that a decode request brought; nil: none
	transferID string                // of a prefill request with MooncakeConnector
}

// Abandon frees the KV at the prefill worker: the engine has the request already, and ends
// it.
func (j job) Abandon() { j.v.channel.Drop(j.transfer) }

func (job) Release() {}

func (j job) Prepare(ctx context.Context, it *core.Item) error {
	v, c := j.v, j.c
	switch c.Leg {
	case core.LegPrefill:
		if err := c.Admit(ctx, it, c.Output()-1); err != nil { // the last token's KV is not computed
			return err
		}
		return c.ComputeNow(ctx, it, true)
	case core.LegDecode:
		return v.channel.Receive(ctx, c, it, j.transfer, func(err error) error {
			if v.cfg.KVLoadFailure == core.LoadRecompute {
				v.channel.Recomputed()
				return c.ComputeNow(ctx, it, false)
			}
			return &core.APIError{Status: http.StatusInternalServerError, Reason: "kv_load", Msg: "KV load failure: " + err.Error()}
		})
	default:
		return c.PrepareWhole(ctx, it)
	}
}

func (j job) Output() (int, string) { return j.c.Limit() }

// HandOver writes the hand-off into a prefill's answer and holds the KV, if the prefill
// ended by length or by itself (docs/engines.md#vllm-stop-holds). For other reasons the
// hand-off is null.
func (j job) HandOver(reason string) {
	v, c := j.v, j.c
	text := "null"
	ended := reason == "length" || reason == "stop" && !v.cfg.NullOnStop && !v.mooncake
	if c.Leg == core.LegPrefill && ended && c.Fault.Mode != core.FaultNoHandoff {
		for _, it := range c.Items {
			if v.mooncake {
				v.channel.Keep(c, it, j.transferID, "{}")
				continue
			}
			id := fmt.Sprintf("%s-%08x", c.Q.Rid, rand.Uint32())
			if c.Q.API == core.APICompletion {
				id = fmt.Sprintf("%s-%d-%08x", c.Q.Rid, it.Index, rand.Uint32())
			}
			text = v.handoff(it, id)
			v.channel.Keep(c, it, id, text)
		}
	}
	c.BodyTail = append([]byte{','}, sidechannel.Spoil(c.Fault, "kv_transfer_params", text)...)
}
