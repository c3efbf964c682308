package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/sources"
)

// byTier has a scheduler whose only filter is by a label.
const byTier = `{"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": [
	{"type": "label-selector-filter", "parameters": {"matchLabels": {"tier": "gold"}}}, {"type": "max-score-picker"}]}`

func TestFiltersByLabelsOfASchedulerAreRulesOfThePool(t *testing.T) {
	c, notes, err := EPP(NewFlagSet("epp", "", t.Output()), []string{"--pool-name", "p", "--config-text", byTier})
	require.NoError(t, err)
	require.Equal(t, []sources.RoleConfig{{Selector: "tier=gold", Role: "aggregated"}, {Selector: "*", Role: "none"}}, c.Discovery.Kubernetes[0].Roles)
	require.Contains(t, notes[len(notes)-1].Reason, "but for filters by labels")
	text, err := c.Effective()
	require.NoError(t, err)
	require.Contains(t, text, "selector: tier=gold")
}

func TestFiltersByLabelsAreRefusedWhereWorkersHaveNone(t *testing.T) {
	for _, args := range [][]string{{"--workers", "w.yaml"}, {"--workers", "w.yaml", "--pool-name", "p"}} {
		_, _, err := EPP(NewFlagSet("epp", "", t.Output()), append(args, "--config-text", byTier))
		require.ErrorContains(t, err, "--config-text is refused: it selects workers by the labels of pods, but the workers that are set have no labels: remove its filters by labels, and list only the workers that may serve")
	}
}

func TestASelectorOfARuleIsCheckedAtTheStart(t *testing.T) {
	for selector, want := range map[string]string{"a in b": "roles[0].selector", "": "label: expected"} {
		k := sources.KubernetesConfig{Pool: "p", Namespace: "n", Roles: []sources.RoleConfig{{Selector: selector, Role: "decode"}}}
		_, err := k.Source()
		require.ErrorContains(t, err, want)
	}
	k := sources.KubernetesConfig{Pool: "p", Roles: []sources.RoleConfig{{Label: "a", Value: "b", Selector: "c", Role: "decode"}}}
	_, err := k.Source()
	require.ErrorContains(t, err, "not both")
}
