package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func readText(t *testing.T, text string) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "baton.yaml")
	require.NoError(t, os.WriteFile(file, []byte("listen: \"127.0.0.1:0\"\n"+text), 0o600))
	fs := NewFlagSet("serve", "", t.Output())
	given := Flags(fs)
	require.NoError(t, fs.Parse([]string{"--config", file}))
	return given()
}

func TestPoolsAreRead(t *testing.T) {
	c, err := readText(t, `discovery:
  kubernetes:
    - {pool: primary, prefill_selector: "tier=prefill,app=x", prefill_target_ports: [9000], kv_group_label: example.com/release}
    - {selector: app=phi, target_ports: [8000, 8001], namespace: other, presets: [llm-d], roles: [{label: tier, value: a, role: decode}, {label: tier, value: "*", role: none}]}
`)
	require.NoError(t, err)
	c.Discovery.In("here")
	first, err := c.Discovery.Kubernetes[0].Source()
	require.NoError(t, err)
	require.Equal(t, kubernetes.Config{
		Namespace: "here", Pool: "primary", PrefillSelector: map[string]string{"tier": "prefill", "app": "x"}, PrefillPorts: []uint16{9000},
		KVGroupLabel: "example.com/release", Rules: kubernetes.DefaultRules(),
	}, first)
	second, err := c.Discovery.Kubernetes[1].Source()
	require.NoError(t, err)
	llmd, err := kubernetes.Preset("llm-d")
	require.NoError(t, err)
	require.Equal(t, kubernetes.Config{
		Namespace: "other", Selector: map[string]string{"app": "phi"}, Ports: []uint16{8000, 8001},
		Rules: append([]kubernetes.Rule{{Label: "tier", Value: "a", Role: worker.Decode}, {Label: "tier", Value: "*", Role: kubernetes.NoRole}}, llmd...),
	}, second)
}

func TestWhatIsWrongInAPoolIsToldWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "discovery.kubernetes[0]: expected the name of a pool, or a selector",
		"{pool: a, selector: b=c, target_ports: [1]}":            "discovery.kubernetes[0]: expected a pool, or a selector with ports, not both",
		"{pool: a, kv_group_label: \"a b\"}":                     "discovery.kubernetes[0]: label \"a b\"",
		"{selector: b}":                                          "baton.yaml:2: discovery.kubernetes[0].selector: selector \"b\": expected name=value",
		"{selector: b=c}":                                        "discovery.kubernetes[0]: selector: expected ports, too",
		"{pool: a, group: x}":                                    "discovery.kubernetes[0]: group \"x\": expected inference.networking.k8s.io",
		"{pool: a, presets: [x]}":                                "discovery.kubernetes[0].presets[0] \"x\": expected baton, llm-d, dynamo, aibrix",
		"{pool: a, roles: [{label: l, value: v, role: encode}]}": "discovery.kubernetes[0].roles[0].role \"encode\": expected prefill, decode, aggregated, none",
		"{pool: a, roles: [{value: v, role: none}]}":             "discovery.kubernetes[0].roles[0]: label: expected the name of a label",
		"{selector: b=c, target_ports: [0, 70000]}":              "discovery.kubernetes[0].target_ports: 70000: expected ports from 1 to 65535",
		"{pool: a}, {pool: a}":                                   "discovery.kubernetes[1]: default/a is discovery.kubernetes[0] already",
		"{pol: a}":                                               "did you mean discovery.kubernetes[0].pool?",
	} {
		_, err := readText(t, "discovery: {kubernetes: ["+text+"]}\n")
		require.ErrorContains(t, err, want, text)
	}
}

func TestAReferencePickersFlagsNameThePool(t *testing.T) {
	read := func(file string, args ...string) (Config, []string, error) {
		if file != "" {
			name := filepath.Join(t.TempDir(), "baton.yaml")
			require.NoError(t, os.WriteFile(name, []byte(file), 0o600))
			args = append(args, "--baton-config", name)
		}
		c, notes, err := EPP(NewFlagSet("epp", "", t.Output()), append(args, "--metrics-endpoint-auth=false"))
		var flags []string
		for _, n := range notes {
			flags = append(flags, n.Flag)
		}
		return c, flags, err
	}
	c, notes, err := read("", "--pool-name", "a", "--pool-namespace", "n", "--pool-group", "inference.networking.k8s.io", "--kubeconfig", "/k")
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Equal(t, []sources.KubernetesConfig{{Pool: "a", Namespace: "n", Group: "inference.networking.k8s.io", Kubeconfig: "/k"}}, c.Discovery.Kubernetes)

	c, _, err = read("", "--endpoint-selector", "app=a", "--endpoint-target-ports", "8000,8001", "--pool-name=")
	require.NoError(t, err)
	require.Equal(t, []sources.KubernetesConfig{{Selector: "app=a", TargetPorts: []int{8000, 8001}}}, c.Discovery.Kubernetes)

	c, _, err = read("discovery: {kubernetes: [{pool: file, prefill_selector: a=b}, {pool: second}]}", "--pool-name", "a")
	require.NoError(t, err)
	require.Equal(t, []sources.KubernetesConfig{{Pool: "a", PrefillSelector: "a=b"}, {Pool: "second"}}, c.Discovery.Kubernetes)

	c, notes, err = read("", "--pool-name", "a", "--workers", "w.yaml")
	require.NoError(t, err)
	require.Empty(t, c.Discovery.Kubernetes, "the workers are listed")
	require.Equal(t, []string{"--pool-name"}, notes)

	_, _, err = read("")
	require.ErrorContains(t, err, "expected --pool-name, --endpoint-selector")
	_, _, err = read("", "--pool-name", "a", "--endpoint-selector", "a=b", "--endpoint-target-ports", "1")
	require.ErrorContains(t, err, "not both")
	_, _, err = read("", "--endpoint-selector", "a=b", "--endpoint-target-ports", "http")
	require.ErrorContains(t, err, "expected ports")
	require.NotContains(t, strings.ToLower(err.Error()), "strconv")
}
