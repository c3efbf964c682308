package worker_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestAHostIsAnAddressOfOneMachineOrAName(t *testing.T) {
	for _, h := range []string{
		"10.0.0.7", "fd00::7", "::1", "::ffff:10.0.0.7", "boot", "boot-1.ns.svc.cluster.local", "a_b", "xn--bcher-kva", "fe80::1",
		strings.Repeat("a", 253),
	} {
		require.NoError(t, worker.CheckHost(h), h)
	}
	for _, h := range []string{
		"", " ", "a b", "a:1", "10.0.0.7:8998", "[fd00::7]", "http://a", "a/b", "a@b", "-a", "bücher", "a\n", "a\x00b", "a\"b", `a\b`,
		`fe80::1%","admin":true,"x":"`, "fe80::1%eth0", "0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "::ffff:224.0.0.1",
		"255.255.255.255", strings.Repeat("a", 254),
	} {
		require.Error(t, worker.CheckHost(h), h)
	}
}

func TestEveryTextOfAWorkerIsChecked(t *testing.T) {
	long := strings.Repeat("a", worker.MaxNameBytes+1)
	hosts := []string{`fe80::1%","x":"`, "a\r\nx-admin: 1", "a b"}
	texts := []string{"a\nb", "a\x00", "\xff", "a\u202eb", long}
	for name, c := range map[string]struct {
		set  func(w *worker.Worker, s string)
		bad  []string
		says string
	}{
		"the bootstrap host":        {func(w *worker.Worker, s string) { w.Bootstrap.Host = s }, hosts, "bootstrap host"},
		"the host of KV events":     {func(w *worker.Worker, s string) { w.KVEvents.Host = s }, hosts, "kv_events host"},
		"the topic":                 {func(w *worker.Worker, s string) { w.KVEvents.Topic = s }, texts, "kv_events topic"},
		"a model":                   {func(w *worker.Worker, s string) { w.Models = []string{"m", s} }, texts, "models"},
		"the namespace":             {func(w *worker.Worker, s string) { w.Namespace = s }, texts, "namespace"},
		"the deployment":            {func(w *worker.Worker, s string) { w.Deployment = s }, texts, "deployment"},
		"an engine's id":            {func(w *worker.Worker, s string) { w.Bootstrap.EngineIDs = []string{s} }, []string{"", `a"`, "a b", "é", long}, "bootstrap engine id"},
		"a taint":                   {func(w *worker.Worker, s string) { w.Taints = []string{s} }, texts, "taint"},
		"a topology domain":         {func(w *worker.Worker, s string) { w.TopologyDomains = map[string]string{s: "a"} }, texts, "topology domain"},
		"a topology domain's value": {func(w *worker.Worker, s string) { w.TopologyDomains = map[string]string{"zone": s} }, texts, "topology domain"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range c.bad {
				w := good(t, 1, worker.Prefill, "127.0.0.1:1")
				require.NoError(t, w.Validate())
				c.set(w, s)
				require.ErrorContains(t, w.Validate(), c.says, "%q", s)
				require.Less(t, len(w.Validate().Error()), 2*worker.MaxNameBytes+200, "a fault does not repeat all of a long text")
			}
		})
	}
}

func TestOneMachineHasAnEndpoint(t *testing.T) {
	for _, s := range []string{"224.0.0.1:1", "[ff02::1]:1", "255.255.255.255:1", "[::ffff:239.1.2.3]:1"} {
		_, err := worker.ParseEndpoint(s)
		require.ErrorContains(t, err, "one machine", s)
	}
}
