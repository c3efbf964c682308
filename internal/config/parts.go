package config

import (
	"errors"

	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file converts to the settings of parts. internal/plugin, which makes the parts,
// adds the other parts that each works with, and its hooks.

// Server converts to the server's settings: policies, bounds and names.
func (c *Config) Server() (extproc.Config, error) {
	policy := c.Policy()
	out := extproc.Config{
		Predicts:  c.Routing.PredictedTTL > 0,
		Namespace: policy.Namespace, EnforceDisagg: policy.Rules.Enforced, NeverSplit: policy.NeverSplit,
		Targets: c.targets(),
		Gateway: c.gateway(), Sidecar: c.Routing.sidecar(),
		Conditional: extproc.Conditional(c.Routing.Conditional), FallbackAggregated: policy.Rules.Fallback,
		PrefillListener: c.PrefillListener(),
		DefaultTimeout:  c.Request.DefaultTimeout, MaxTimeout: c.Request.MaxTimeout, MaxWait: c.Request.MaxWait,
		MaxBodyBytes: c.Request.MaxBodyBytes, MaxAttempts: c.Request.MaxAttempts,
		MaxBodiesBytes: c.Request.MaxBodiesBytes,
		NoHold:         !unlessFalse(c.Prefill.HoldResponse),
		RefuseOther:    !unlessFalse(c.Request.PassOtherPaths),
		HandedOver:     c.Request.HandedOver,
		FirstToken:     c.Answer.FirstToken, AnswerBase: c.Answer.OverdueBase,
		DebugHeader:  c.Routing.DebugHeader,
		CachedHeader: c.Routing.CachedHeader,
		Overrides:    unlessFalse(c.Routing.RequestOverrides),
		StartTimeout: c.Prefill.StartTimeout, PrefillTimeout: c.Prefill.Timeout,
		OverdueBase: c.Prefill.OverdueBase, OverduePerToken: c.Prefill.OverduePerToken, OrphanGrace: c.Prefill.OrphanGrace, HandOffLease: c.Prefill.HandOffLease,
		Advertise: c.Leg.Self(), Shares: c.Leg.Shares(), MaxQueuedISLTokens: c.Prefill.MaxQueuedISLTokens,
	}
	var errs [4]error
	out.Names, errs[0] = prefill.NamesOf(c.Routing.Headers)
	out.Prefill, errs[1] = c.Routing.Prefill.Params(worker.Prefill)
	out.Decode, errs[2] = c.Routing.Decode.Params(worker.Decode)
	out.Aggregated, errs[3] = c.Routing.Aggregated.Params(worker.Aggregated)
	return out, errors.Join(errs[:]...)
}

// unlessFalse returns true for a key that is not set.
func unlessFalse(b *bool) bool { return b == nil || *b }

// Tracker converts to the settings that say when a worker is set aside.
func (c *HealthConfig) Tracker() health.Config {
	return health.Config{ServerErrors: c.ServerErrors, ProbeInterval: c.ProbeInterval}
}

// Resolver converts to the settings that say how tokens are counted.
func (c *TokensConfig) Resolver() tokens.Config {
	return tokens.Config{
		Mode: tokens.Mode(c.Mode), Pictures: tokens.PictureMode(c.Pictures), Wait: c.Wait,
	}
}

// Spans converts to the settings of spans, in which a ratio of 0 means all.
func (c *TraceConfig) Spans() telemetry.TraceConfig {
	ratio := c.Ratio
	if ratio == 0 {
		ratio = -1
	}
	return telemetry.TraceConfig{Endpoint: c.Endpoint, Insecure: c.Insecure, SampleRatio: ratio}
}
