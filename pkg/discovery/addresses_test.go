package discovery_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// at returns a worker with an endpoint and a bootstrap host.
func at(t *testing.T, endpoint, bootstrap string) *worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint(endpoint)
	require.NoError(t, err)
	w := &worker.Worker{ID: 1, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16}
	if bootstrap != "" {
		w.Bootstrap = worker.Bootstrap{Host: bootstrap, Port: 8998}
	}
	return w
}

func networks(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

const (
	secrets  = ", where clouds tell a machine its secrets: no worker can be there"
	loopback = " is on loopback, where workers of etcd and Kubernetes may be only if discovery.networks names it: if engines run on this machine, set it to [127.0.0.0/8] (--discovery-networks)"
	spelling = " is an address in another spelling: write it as four decimal numbers"
)

// Each address is tried as an endpoint, if it can be one, and as a bootstrap host.
func TestNoWorkerIsAtAnAddressThatOnlyThisMachineOrThisCloudReaches(t *testing.T) {
	allowed := discovery.Addresses{Networks: networks("127.0.0.0/8", "::1/128", "0.0.0.0/0", "::/0")}
	for host, why := range map[string]string{
		"169.254.169.254":    "is link-local" + secrets,
		"169.254.7.7":        "is link-local" + secrets,
		"fe80::1":            "is link-local" + secrets,
		"64:ff9b::a9fe:a9fe": "is link-local" + secrets,
		"::a9fe:a9fe":        "is link-local" + secrets,
		"::ffff:0:a9fe:a9fe": "is link-local" + secrets,
		"2002:a9fe:a9fe::1":  "is link-local" + secrets,
		"fd00:ec2::254":      "is where a cloud tells a machine its secrets: no worker can be there",
		"100.100.100.200":    "is where a cloud tells a machine its secrets: no worker can be there",
		"168.63.129.16":      "is where a cloud tells a machine its secrets: no worker can be there",
		"0.0.0.9":            "is no machine's address",
	} {
		for _, operator := range []bool{true, false} {
			e := netip.AddrPortFrom(netip.MustParseAddr(host), 80).String()
			require.Equal(t, "endpoint "+e+" "+why, allowed.Refuse(at(t, e, ""), operator))
			require.Regexp(t, "^bootstrap .*:8998 "+why+"$", allowed.Refuse(at(t, "10.0.0.1:80", host), operator))
		}
	}
	for _, host := range []string{"127.1", "2130706433", "0x7f.0.0.1", "0x7f000001", "0251.0376.0251.0376", "169.254.43518", "1.2.3.4.", "x.0xa9fea9fe"} {
		require.Equal(t, "bootstrap "+host+":8998"+spelling, allowed.Refuse(at(t, "10.0.0.1:80", host), true))
	}
	mapped := at(t, "10.0.0.1:80", "::ffff:169.254.169.254")
	require.Equal(t, "bootstrap [::ffff:169.254.169.254]:8998 is link-local"+secrets, allowed.Refuse(mapped, true))
	for _, host := range []string{"10.0.0.1", "fd00::1", "2001:db8::1", "64:ff9b::a00:1", "pod-0.prefill", "1.pods.cluster.local", "worker-1", "not-localhost"} {
		require.Empty(t, allowed.Refuse(at(t, "10.0.0.1:80", host), false), host)
	}
}

func TestLoopbackIsForTheWorkersFileAndWhereANetworkNamesIt(t *testing.T) {
	own := []discovery.Addresses{{}, {Networks: networks("0.0.0.0/0", "::/0")}}
	for _, a := range own {
		for _, endpoint := range []string{"127.0.0.1:30000", "127.9.9.9:30000", "[::ffff:127.0.0.1]:30000"} {
			w := at(t, endpoint, "")
			require.Equal(t, "endpoint "+w.Endpoint.String()+loopback, a.Refuse(w, false))
			require.Empty(t, a.Refuse(w, true), "its operator has written it")
		}
		for _, host := range []string{"localhost", "LocalHost.", "a.localhost", "ip6-localhost"} {
			require.Equal(t, "bootstrap "+host+":8998"+loopback, a.Refuse(at(t, "10.0.0.1:80", host), false))
		}
		require.Contains(t, a.Refuse(at(t, "[::1]:30000", ""), false), "set it to [::1/128]")
		require.Empty(t, a.Refuse(at(t, "10.0.0.1:80", "10.0.0.1"), false))
	}
	named := discovery.Addresses{Networks: networks("127.0.0.0/8", "10.1.0.0/16")}
	require.Empty(t, named.Refuse(at(t, "127.0.0.1:30000", "localhost"), false))
	require.Empty(t, named.Refuse(at(t, "10.1.0.1:30000", "127.0.0.1"), false))
	const outside = " is in none of discovery.networks ([127.0.0.0/8 10.1.0.0/16]): add its network there, if workers may be in it"
	require.Equal(t, "endpoint 10.2.0.1:30000"+outside, named.Refuse(at(t, "10.2.0.1:30000", ""), false))
	require.Equal(t, "bootstrap 10.2.0.1:8998"+outside, named.Refuse(at(t, "10.1.0.1:30000", "10.2.0.1"), false))
	require.Contains(t, named.Refuse(at(t, "[::1]:30000", ""), false), "set it to [::1/128]")
	require.Empty(t, named.Refuse(at(t, "10.2.0.1:30000", "10.2.0.1"), true), "the networks are for what others write")
}

// The plugin's own addresses, and Envoy's, by every port that a worker's fields name.
func TestNoWorkerIsWhereThePluginOrEnvoyListens(t *testing.T) {
	a := discovery.Addresses{
		Networks: networks("127.0.0.0/8", "10.0.0.0/8"), Here: []netip.Addr{netip.MustParseAddr("10.0.0.7")},
		Own: []discovery.Own{
			{At: netip.MustParseAddrPort("127.0.0.1:9902"), Name: "ours (admin.listen)"}, {At: netip.MustParseAddrPort("0.0.0.0:9003"), Name: "ours (probes.listen)"},
		},
	}
	fields := map[string]func(w *worker.Worker, port uint16){
		"facts_port":       func(w *worker.Worker, port uint16) { w.FactsPort = port },
		"model_files":      func(w *worker.Worker, port uint16) { w.ModelFiles.Port = port },
		"bootstrap":        func(w *worker.Worker, port uint16) { w.Bootstrap.Host, w.Bootstrap.Port = "127.0.0.1", port },
		"kv_events":        func(w *worker.Worker, port uint16) { w.KVEvents.Host, w.KVEvents.Port = "localhost", port },
		"kv_events replay": func(w *worker.Worker, port uint16) { w.KVEvents.Host, w.KVEvents.ReplayPort = "127.0.0.1", port },
	}
	for what, set := range fields {
		w := at(t, "127.0.0.1:30000", "")
		set(w, 9902)
		require.Regexp(t, "^"+what+` (127.0.0.1|localhost):9902 is ours \(admin.listen\): no worker can be there$`, a.Refuse(w, true))
		set(w, 9901)
		require.Contains(t, a.Refuse(w, true), "is where Envoy's admin listens by custom: no worker can be there")
		set(w, 9903)
		require.Empty(t, a.Refuse(w, true))
	}
	ranks := at(t, "127.0.0.1:9899", "")
	ranks.DPSize = 4
	require.Empty(t, a.Refuse(ranks, true))
	ranks.PortPerRank = true
	require.Equal(t, "endpoint 127.0.0.1:9899 is where Envoy's admin listens by custom: no worker can be there", a.Refuse(ranks, true))
	for endpoint, why := range map[string]string{
		"127.0.0.2:9902": "", "10.0.0.7:9902": "", "10.0.0.8:9901": "", "10.0.0.8:9003": "",
		"10.0.0.7:9901": "is where Envoy's admin listens by custom: no worker can be there",
		"10.0.0.7:9003": "is ours (probes.listen): no worker can be there", "127.0.0.9:9003": "is ours (probes.listen): no worker can be there",
	} {
		got := a.Refuse(at(t, endpoint, ""), false)
		if why != "" {
			why = "endpoint " + endpoint + " " + why
		}
		require.Equal(t, why, got)
	}
}

// scripted is a source that sends some events and ends.
type scripted []discovery.Event

func (s scripted) Run(_ context.Context, sink discovery.Sink) error {
	for _, ev := range s {
		if err := sink.Send(ev); err != nil {
			return err
		}
	}
	return nil
}

// reduced is a sink that keeps the set.
type reduced struct{ discovery.Reducer }

func (r *reduced) Send(ev discovery.Event) error { return r.Apply(ev) }

// A refused worker is a fault of its key, also where a good one was before, and in each
// kind of event.
func TestARefusedWorkerIsAFaultOfItsKey(t *testing.T) {
	good, bad := at(t, "10.0.0.1:80", "10.0.0.1"), at(t, "169.254.169.254:80", "")
	events := scripted{
		discovery.Begin{},
		discovery.List{Revision: 1, Entries: []discovery.Entry{{Key: "a", Worker: good}, {Key: "b", Worker: bad}}},
		discovery.Batch{Revision: 2, Ops: []discovery.Op{discovery.Put(discovery.Entry{Key: "a", Worker: bad}), discovery.Put(discovery.Entry{Key: "c", Fault: "broken"})}},
		discovery.Batches{{Revision: 3, Ops: []discovery.Op{discovery.Put(discovery.Entry{Key: "d", Worker: bad}), discovery.Delete("c", 0)}}},
	}
	var set reduced
	require.NoError(t, (&discovery.Guard{Inner: events, Addresses: new(discovery.Addresses), Unvouched: true}).Run(t.Context(), &set))
	why := "endpoint 169.254.169.254:80 is link-local" + secrets
	var faults []string
	for _, e := range set.Entries() {
		faults = append(faults, e.Key+": "+e.Fault)
	}
	require.Equal(t, []string{"a: " + why, "b: " + why, "d: " + why}, faults)
	kept := set.Entries()[0].Worker
	require.Equal(t, good.Endpoint, kept.Endpoint, "one broken write takes away no worker")
	require.True(t, kept.Unvouched)
	require.False(t, good.Unvouched, "others may be reading it")
	require.Nil(t, set.Entries()[1].Worker)
}
