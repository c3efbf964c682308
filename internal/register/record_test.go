package register

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata/resolve:
//
//	choose [present=A] [prefer-ipv6]   the input is what a name was resolved to
//	advertise url=U [by=A]             the host and port that are advertised
func TestAddresses(t *testing.T) {
	datadriven.Walk(t, "testdata/resolve", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			arg := func(key string) (v string) {
				if d.HasArg(key) {
					d.ScanArgs(t, key, &v)
				}
				return v
			}
			if d.Cmd == "advertise" {
				host, port, err := advertised(arg("by"), arg("url"))
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return fmt.Sprintf("host %s port %d\n", host, port)
			}
			var present netip.Addr
			if p := arg("present"); p != "" {
				present = netip.MustParseAddr(p)
			}
			var answers []netip.Addr
			for f := range strings.FieldsSeq(d.Input) {
				answers = append(answers, netip.MustParseAddr(f))
			}
			a, err := choose(present, answers, d.HasArg("prefer-ipv6"))
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			return a.String() + "\n"
		})
	})
}

type names map[string][]netip.Addr

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if as, ok := n[host]; ok {
		return as, nil
	}
	return nil, fmt.Errorf("no such host %s", host)
}

func TestNamesAreLookedUpAndAddressesAreNot(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	n := names{"w": {a}, "10.0.0.2": nil}
	got, err := lookup(t.Context(), n, "w")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{a}, got)
	got, err = lookup(t.Context(), n, "10.0.0.2")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.2")}, got)
	_, err = lookup(t.Context(), n, "x")
	require.ErrorContains(t, err, "resolve x: no such host")
}

// Flag, then annotation, then what the engine says, then the worker's
// own address (docs/behaviour.md#addresses); a host without a port counts as absent.
func TestWhereDecodeWorkersMeetAPrefillWorker(t *testing.T) {
	own := netip.MustParseAddrPort("10.0.0.7:30000")
	six := netip.MustParseAddrPort("[fd00::7]:30000")
	both := map[string]string{annotationHost: "noted", annotationPort: "7000"}
	for _, c := range []struct {
		name  string
		o     Override
		f     engine.Facts
		notes map[string]string
		at    netip.AddrPort
		want  worker.Bootstrap
		err   string
	}{
		{name: "the flag beats all", o: Override{BootstrapHost: "flag", BootstrapPort: 1}, f: engine.Facts{Host: "said", BootstrapPort: 2}, notes: both, want: worker.Bootstrap{Host: "flag", Port: 1}},
		{name: "the annotation beats the engine", f: engine.Facts{Host: "said", BootstrapPort: 2}, notes: both, want: worker.Bootstrap{Host: "noted", Port: 7000}},
		{name: "the engine beats the address", f: engine.Facts{Host: "said", BootstrapPort: 2}, want: worker.Bootstrap{Host: "said", Port: 2}},
		{name: "the address is last", f: engine.Facts{BootstrapPort: 2}, want: worker.Bootstrap{Host: "10.0.0.7", Port: 2}},
		{name: "IPv6 stands without brackets", f: engine.Facts{BootstrapPort: 2}, at: six, want: worker.Bootstrap{Host: "fd00::7", Port: 2}},
		{name: "a flag in brackets, too", o: Override{BootstrapHost: "[fd00::8]", BootstrapPort: 1}, want: worker.Bootstrap{Host: "fd00::8", Port: 1}},
		{name: "host and port may come from different places", o: Override{BootstrapHost: "flag"}, f: engine.Facts{Host: "said", BootstrapPort: 2}, want: worker.Bootstrap{Host: "flag", Port: 2}},
		{name: "a host without a port is none", o: Override{BootstrapHost: "flag"}, err: "without a bootstrap port"},
		{name: "an annotated host without a port is none", notes: map[string]string{annotationHost: "noted"}, err: "without a bootstrap port"},
		{name: "an annotated port must be one", notes: map[string]string{annotationPort: "0"}, err: `annotation sglang.ai/bootstrap-port "0": expected a port`},
		{name: "an annotated host must be one", f: engine.Facts{BootstrapPort: 2}, notes: map[string]string{annotationHost: "a:1"}, err: `annotation baton.dev/bootstrap-host "a:1": expected an IP address or a name`},
		{name: "a flag makes a bad annotation harmless", o: Override{BootstrapHost: "flag", BootstrapPort: 1}, notes: map[string]string{annotationHost: "a:1", annotationPort: "x"}, want: worker.Bootstrap{Host: "flag", Port: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.f.Engine, c.f.Role, c.f.Models, c.f.BlockSize = worker.SGLang, worker.Prefill, []string{"m"}, 16
			if !c.at.IsValid() {
				c.at = own
			}
			w, _, err := compose(c.o, c.f, c.notes, c.at)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, w.Bootstrap)
			c.f.Role = worker.Decode
			w, _, err = compose(c.o, c.f, c.notes, c.at)
			require.NoError(t, err)
			require.True(t, w.Bootstrap.IsZero(), "nobody is met at a decode worker")
		})
	}
}

func TestEveryFlagBeatsTheEngine(t *testing.T) {
	f := engine.Facts{
		Engine: worker.SGLang, Role: worker.Prefill, Models: []string{"m"}, DPSize: 2, BlockSize: 16, CapacityBlocks: 100, BootstrapPort: 8998,
		KV: engine.KVEvents{KVEvents: worker.KVEvents{Port: 5557, ReplayPort: 6557, Topic: "t"}, BlockSize: 16},
	}
	at := netip.MustParseAddrPort("10.0.0.7:30000")
	endpoint, err := worker.ParseEndpoint("10.0.0.7:30000")
	require.NoError(t, err)

	got, warnings, err := compose(Override{}, f, nil, at)
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, worker.Worker{
		Role: worker.Prefill, Engine: worker.SGLang, Endpoint: endpoint, Models: []string{"m"}, DPSize: 2, BlockSize: 16, CapacityBlocks: 100,
		Bootstrap: worker.Bootstrap{Host: "10.0.0.7", Port: 8998},
		KVEvents:  worker.KVEvents{Host: "10.0.0.7", Port: 5557, ReplayPort: 6557, Topic: "t"},
	}, got)

	o := Override{
		Role: worker.Decode, Models: []string{"a", "b"}, Namespace: "ns", Deployment: "d", DPSize: 4, PortPerRank: true, CapacityBlocks: 7,
		KVHosts: []string{"events"}, KVPort: 1, KVReplayPort: 2, KVTopic: new(""), AcceptsAggregated: new(true), HeaderOverrides: true,
	}
	got, warnings, err = compose(o, f, nil, at)
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, worker.Worker{
		Role: worker.Decode, Engine: worker.SGLang, Endpoint: endpoint, Models: []string{"a", "b"}, Namespace: "ns", Deployment: "d",
		DPSize: 4, PortPerRank: true, BlockSize: 16, CapacityBlocks: 7, AcceptsAggregated: true, HeaderOverrides: true,
		KVEvents: worker.KVEvents{Host: "events", Port: 1, ReplayPort: 2},
	}, got)

	_, _, err = compose(Override{PortPerRank: true, DPSize: 9}, f, nil, netip.MustParseAddrPort("10.0.0.7:65528"))
	require.ErrorContains(t, err, "port_per_rank: rank 8 would be at port 65536")

	got, warnings, err = compose(Override{BlockSize: 32}, f, nil, at)
	require.NoError(t, err)
	require.Equal(t, uint64(50), got.CapacityBlocks, "as many tokens in larger blocks")
	require.True(t, got.KVEvents.IsZero())
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "blocks of 16 tokens")

	f.Eagle = true
	for o, want := range map[*bool]bool{nil: true, new(true): true, new(false): false} {
		got, _, err = compose(Override{Eagle: o}, f, nil, at)
		require.NoError(t, err)
		require.Equal(t, want, got.Eagle)
	}

	got, warnings, err = compose(Override{NoKVEvents: true, BlockSize: 32}, f, nil, at)
	require.NoError(t, err)
	require.Empty(t, warnings, "whoever wants no events need not be warned of them")
	require.True(t, got.KVEvents.IsZero())
}

// TestAnEngineThatDialsWithItsKVEventsListensNowhere: a record that named the host which it dials
// would have plugins ask there, and not listen for it (events.bind).
func TestAnEngineThatDialsWithItsKVEventsListensNowhere(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.7:8000")
	for _, c := range []struct {
		engine worker.Engine
		host   string
		dials  bool
	}{
		{worker.VLLM, "picker.llm-d.svc", true},
		{worker.VLLM, "127.0.0.1", true},
		{worker.VLLM, "10.0.0.9", false}, // of tcp://*:0, perhaps
		{worker.VLLM, "10.0.0.7", false},
		{worker.VLLM, "", false},
		{worker.SGLang, "picker.llm-d.svc", true},
		{worker.SGLang, "10.0.0.9", true},
	} {
		f := engine.Facts{Engine: c.engine, Models: []string{"m"}, BlockSize: 16}
		f.KV.KVEvents, f.KV.Exact = worker.KVEvents{Host: c.host, Port: 5557}, c.engine == worker.VLLM
		got, warnings, err := compose(Override{}, f, nil, at)
		require.NoError(t, err)
		require.Equal(t, c.dials, got.KVEvents.IsZero(), c)
		require.Equal(t, c.dials, len(warnings) == 1, c)
		if c.dials {
			require.Contains(t, warnings[0], "the host in its --kv-events-config")
			require.Contains(t, warnings[0], "events.bind")
		}
		f.KV.Listens = true
		got, _, err = compose(Override{}, f, nil, at)
		require.NoError(t, err)
		require.False(t, got.KVEvents.IsZero(), c)
		f.KV.Listens = false
		got, warnings, err = compose(Override{KVPort: 5600, KVHosts: []string{"relay"}}, f, nil, at)
		require.NoError(t, err)
		require.Empty(t, warnings)
		require.Equal(t, worker.KVEvents{Host: "relay", Port: 5600}, got.KVEvents, "a relay's port is told")
	}
}

func TestAPrefillWorkerOfVLLMNeedsNoBootstrap(t *testing.T) {
	f := engine.Facts{Engine: worker.VLLM, Models: []string{"m"}, BlockSize: 16}
	w, _, err := compose(Override{Role: worker.Prefill}, f, nil, netip.MustParseAddrPort("10.0.0.7:8000"))
	require.NoError(t, err)
	require.True(t, w.Bootstrap.IsZero())
	w, _, err = compose(Override{Role: worker.Prefill, BootstrapPort: 8998}, f, nil, netip.MustParseAddrPort("10.0.0.7:8000"))
	require.NoError(t, err)
	require.Equal(t, worker.Bootstrap{Host: "10.0.0.7", Port: 8998}, w.Bootstrap, "one is kept if it is said")
}

func TestAnnotationsFileOfTheDownwardAPI(t *testing.T) {
	got, err := parseAnnotations([]byte("sglang.ai/bootstrap-port=\"8998\"\n\nnote=\"two\\nlines \\\"x=y\\\"\"\nbaton.dev/bootstrap-host=\"10.0.0.7\"\r\n"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{annotationPort: "8998", "note": "two\nlines \"x=y\"", annotationHost: "10.0.0.7"}, got)
	for _, bad := range []string{"a", "a=b", "a='b'", "a=`b`", `="b"`, `a="b`, "x=\"1\"\na=\n"} {
		_, err := parseAnnotations([]byte(bad))
		require.ErrorContains(t, err, `expected key="value"`, bad)
	}
	_, err = parseAnnotations(make([]byte, maxAnnotations+1))
	require.ErrorContains(t, err, "expected at most")

	_, err = readAnnotations(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzAnnotations(f *testing.F) {
	f.Add([]byte("sglang.ai/bootstrap-port=\"8998\"\n"))
	f.Add([]byte("a=\"\\x\"\n=\"\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseAnnotations(data)
		if err != nil {
			return
		}
		var again strings.Builder
		for k, v := range got {
			fmt.Fprintf(&again, "%s=%q\n", k, v)
		}
		same, err := parseAnnotations([]byte(again.String()))
		require.NoError(t, err)
		require.Equal(t, got, same)
	})
}

// Every field of a record is announced when it changes, and some end the life.
func TestWhatChangesARecordAndWhatEndsALife(t *testing.T) {
	ends := map[string]bool{"Engine": true, "Role": true, "Endpoint": true, "DPSize": true, "PortPerRank": true, "BlockSize": true, "Eagle": true}
	// The first comes with the lease; the others are no registered worker's.
	spared := map[string]bool{"ID": true, "Expired": true, "Fronted": true, "Unvouched": true, "FactsUnknown": true, "Fixed": true, "EngineRank": true, "FactsPort": true}
	typ := reflect.TypeFor[worker.Worker]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		if spared[name] || !typ.Field(i).IsExported() {
			continue
		}
		var a, b worker.Worker
		change(t, reflect.ValueOf(&b).Elem().Field(i))
		require.False(t, a.Equal(&b), name)
		require.Equal(t, !ends[name], sameLife(a, b), name)
	}
}

// change makes a value another one.
func change(t *testing.T, v reflect.Value) {
	switch v.Interface().(type) {
	case worker.Endpoint:
		e, err := worker.ParseEndpoint("10.0.0.1:1")
		require.NoError(t, err)
		v.Set(reflect.ValueOf(e))
	case []string:
		v.Set(reflect.ValueOf([]string{"m"}))
	case worker.Bootstrap:
		v.Set(reflect.ValueOf(worker.Bootstrap{Port: 1}))
	case map[string]string:
		v.Set(reflect.ValueOf(map[string]string{"zone": "a"}))
	case worker.KVTransfer:
		v.Set(reflect.ValueOf(worker.KVTransfer{Domain: "zone"}))
	case worker.ModelFiles:
		v.Set(reflect.ValueOf(worker.ModelFiles{Port: 1}))
	case worker.PairFacts:
		v.Set(reflect.ValueOf(worker.PairFacts{worker.KVDType: "auto"}))
	case worker.KVEvents:
		v.Set(reflect.ValueOf(worker.KVEvents{Topic: "t"}))
	default:
		switch {
		case v.CanUint():
			v.SetUint(1)
		case v.Kind() == reflect.Bool:
			v.SetBool(true)
		case v.Kind() == reflect.String:
			v.SetString("x")
		default:
			require.Fail(t, "a field of a new type", v.Type())
		}
	}
}

// unasked is a registry that holds nothing, and must not be given anything.
type unasked struct{ Registry }

func (unasked) ID() worker.ID { return 0 }

func TestConfigNamesItsFaults(t *testing.T) {
	_, err := New(Config{
		Engine:   engine.Config{URL: "engine:80", HealthPath: "health"},
		Override: Override{BootstrapHost: "h:1", KVHosts: []string{"0.0.0.0"}, Models: []string{""}, DPSize: 1 << 20},
	}, unasked{})
	for _, want := range []string{
		`engine url "engine:80": expected http://host:port`, `health path "health"`,
		`bootstrap host "h:1"`, `kv-events host "0.0.0.0"`, "model: expected", "dp size 1048576",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = New(Config{Engine: engine.Config{URL: "http://0.0.0.0:1"}}, unasked{})
	require.ErrorContains(t, err, "expected --advertise")
	_, err = New(Config{Engine: engine.Config{URL: "http://127.0.0.1:1"}}, nil)
	require.ErrorContains(t, err, "expected a registry")
}

func TestAWorkerIsToldWhetherItHasAPartner(t *testing.T) {
	of := func(role worker.Role, block uint32, change func(*worker.Worker)) *worker.Worker {
		w := &worker.Worker{Role: role, Engine: worker.VLLM, Models: []string{"m"}, BlockSize: block}
		if change != nil {
			change(w)
		}
		return w
	}
	rec := of(worker.Decode, 64, nil)
	far := of(worker.Prefill, 128, nil)
	for name, others := range map[string][]*worker.Worker{
		"nobody is there":      nil,
		"one of them fits":     {far, of(worker.Prefill, 64, nil)},
		"all of the same role": {of(worker.Decode, 128, nil)},
		"another model":        {of(worker.Prefill, 128, func(w *worker.Worker) { w.Models = []string{"n"} })},
		"another namespace":    {of(worker.Prefill, 128, func(w *worker.Worker) { w.Namespace = "n" })},
		"its group is unknown": {of(worker.Prefill, 64, func(w *worker.Worker) { w.Pair[worker.KVDType] = "auto" })},
		"it is leaving":        {of(worker.Prefill, 128, func(w *worker.Worker) { w.Draining = true })},
	} {
		require.Empty(t, partnerless(rec, others), name)
	}
	require.Equal(t, "it and the prefill workers of its model are of different block sizes, 64 and 128 tokens; block sizes, 64 and 16 tokens: "+
		"no two of them are a pair; start them alike", partnerless(rec, []*worker.Worker{far, of(worker.Prefill, 16, nil), far}))
	group := func(w *worker.Worker) { w.Pair[worker.KVGroup] = string("ab"[w.Role&1]) }
	require.Equal(t, "it and the prefill workers of its model are of different kv_group, a and b: "+
		"no two of them are a pair; start them alike", partnerless(of(worker.Decode, 64, group), []*worker.Worker{of(worker.Prefill, 64, group)}))
}
