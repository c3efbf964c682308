package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// notWrittenYet are packages that the laws name and that need not be there
// yet: a law about any other package that is gone fails.
var notWrittenYet []string

// Modules by the short names used below.
const (
	grpcModule   = "google.golang.org/grpc"
	otelModule   = "go.opentelemetry.io/otel"
	envoyModule  = "github.com/envoyproxy/go-control-plane"
	protoWriter  = "google.golang.org/protobuf/proto"
	protoFields  = "google.golang.org/protobuf/encoding/protowire"
	protoStructs = "google.golang.org/protobuf/types/known/structpb"
	etcdModule   = "go.etcd.io/etcd"
	k8sModules   = "k8s.io"
	zmqModule    = "github.com/go-zeromq"
	natsModule   = "github.com/nats-io"
	fsnotifyMod  = "github.com/fsnotify/fsnotify"
	anyModule    = "…" // every module but the standard library and our own
	ourPackages  = "ours"
	selfPackages = "self" // subpackages of the package itself
)

// ban says what a package may not import.
type ban struct {
	pkg   string // and everything in it, except what `spare` names
	spare []string
	not   []string
	may   []string // these very packages all the same
	own   bool     // held is what its files import, and not what is reached through our other packages
	why   string
}

// bans is the table of the house.
var bans = []ban{
	{
		pkg: "pkg/worker", not: []string{ourPackages, anyModule},
		why: "it is the vocabulary, which everything imports",
	},
	{
		pkg: "pkg/picker",
		not: []string{
			"pkg/kvindex", "pkg/discovery", "internal", "context", "time", "log/slog", "log", "sync", "net", "os",
			grpcModule, otelModule,
		},
		why: "a decision is a function of its arguments",
	},
	{
		pkg: "pkg/kvindex",
		not: []string{"pkg/picker", "pkg/discovery", "pkg/kvevents", "net", "net/http", grpcModule, otelModule, zmqModule, natsModule},
		why: "it knows hashes and ranks",
	},
	{
		pkg: "pkg/kvindex/oracle", not: []string{ourPackages, "net", "os", "log", "log/slog"}, own: true,
		may: []string{"pkg/kvindex", "pkg/worker"},
		why: "what a tree should answer follows from maps alone",
	},
	{
		pkg: "pkg/kvevents", not: []string{"pkg/picker", "pkg/discovery", "internal/extproc", grpcModule, otelModule},
		why: "it turns engines' streams into index events and nothing more",
	},
	{
		pkg: "pkg/prefill", not: []string{"pkg/picker", "pkg/discovery", "net/http", grpcModule, otelModule, "internal/extproc"},
		why: "it is given the chosen rank, names headers and bodies, and sends nothing",
	},
	{
		pkg: "pkg/tokens", not: []string{"pkg/picker", "pkg/discovery", "internal/extproc", grpcModule, otelModule},
		why: "it turns a request into block hashes; who uses them is not its business",
	},
	{
		pkg: "pkg/tokens/bpe", own: true, not: []string{ourPackages, "context", "net", "net/http", "os", "time", "log", "log/slog"}, may: []string{"internal/invariants"},
		why: "ids follow from a file and a text alone",
	},
	{
		pkg: "pkg/tokens/jinja",
		not: []string{"cmd", "pkg/tokens/chat", "pkg/kvindex", "pkg/worker", anyModule, "net", "net/http", "os", "time", "log", "log/slog"},
		why: "what a template renders follows from its text and its variables",
	},
	{
		pkg: "pkg/tokens/chat",
		not: []string{"cmd", "internal/openai", "pkg/kvindex", "pkg/worker", anyModule, "net", "net/http", "os", "time", "log", "log/slog"},
		why: "a request's text follows from its bytes and the template; text goes nowhere else",
	},
	{
		pkg: "pkg/discovery", spare: []string{"pkg/discovery/cache", "pkg/discovery/etcd", "pkg/discovery/file", "pkg/discovery/kubernetes", "pkg/discovery/record"},
		not: []string{etcdModule, k8sModules, fsnotifyMod, "os", "net", "log/slog", selfPackages},
		why: "the reducer and the view do no I/O; only the subpackages reach a store",
	},
	{
		pkg: "pkg/discovery/record", not: []string{"pkg/discovery", "cmd", etcdModule, k8sModules, grpcModule, fsnotifyMod, "context", "sync", "os", "net", "time", "log/slog"},
		why: "it is the form of a worker in a text; who keeps such texts, and where, is the sources' business",
	},
	{
		pkg: "internal/wholefile", not: []string{ourPackages, anyModule, "context", "net", "time", "log/slog"},
		why: "it replaces the file that it is told; whose that is and what it holds is not its business",
	},
	{
		pkg: "pkg/discovery/cache", not: []string{etcdModule, k8sModules, grpcModule},
		why: "it remembers any source and knows no store",
	},
	{
		pkg: "internal/register", not: []string{etcdModule, "internal/extproc", "pkg/picker", grpcModule, otelModule},
		why: "it is told to announce and withdraw; where the record is kept is wired by cmd",
	},
	{
		pkg: "internal/facts",
		not: []string{
			etcdModule, k8sModules, "internal/extproc", "internal/health", "internal/load", "pkg/picker", "pkg/kvevents", grpcModule, otelModule,
		},
		why: "it asks engines and completes workers of any source; who keeps the set, and who judges a worker, is not its business",
	},
	{
		pkg: "internal/activation", not: []string{"internal/extproc", grpcModule, otelModule, "net", "os"},
		why: "it follows the view and judges; requests and sources are not its business",
	},
	{
		pkg: "pkg/discovery/file", not: []string{etcdModule, k8sModules, grpcModule},
		why: "a file needs no store's client",
	},
	{
		pkg: "pkg/discovery/kubernetes", not: []string{etcdModule, grpcModule, otelModule, "internal/extproc", "internal/register", "log/slog"},
		why: "it reads pools and pods; what is wrong is told by its events, and engines are asked elsewhere",
	},
	{
		pkg: "internal/openai", not: []string{ourPackages, grpcModule, "net/http"}, may: []string{"internal/edits"},
		why: "it reads bytes and splices bytes",
	},
	{
		pkg: "internal/pin", not: []string{"internal/extproc", "pkg/picker", "pkg/discovery", "internal/load", grpcModule, otelModule, "net/http", "os", "time"},
		why: "what a request names is judged by the request and a snapshot alone",
	},
	{
		pkg: "internal/subset", not: []string{ourPackages, grpcModule, otelModule, envoyModule, "net", "os", "time"},
		why: "a hint is read by itself; who may be picked of those it allows is not its business",
	},
	{
		pkg: "internal/strictyaml", not: []string{ourPackages, grpcModule, otelModule, "net", "os"}, may: []string{"internal/edits"},
		why: "it reads the bytes that it is given; which keys there are is the struct's",
	},
	{
		pkg: "internal/ownenvoy", not: []string{"cmd", "internal/plugin"},
		why: "it writes and checks a file for the command, beside any plugin",
	},
	{
		pkg: "internal/envoyfile", not: []string{"pkg", "cmd", "internal", grpcModule, otelModule, "net", "os"},
		why: "it reads and writes the bytes that it is given; how the plugin's configuration becomes Envoy's is the command's business",
	},
	{
		pkg: "internal/eppconfig", not: []string{"pkg", "cmd", "internal/config", "internal/extproc", "internal/route", grpcModule, otelModule, "net", "os", "time"},
		why: "it reads the text that it is given; what follows for Baton's own keys is internal/config's business",
	},
	{
		pkg: "internal/replicas", not: []string{
			"internal/extproc", "internal/plugin", "internal/config", "internal/admin", "pkg/discovery", grpcModule, otelModule, etcdModule, k8sModules,
		},
		why: "what is believed of a replica follows from what is told of it: connections and clocks are internal/mesh's",
	},
	{
		pkg: "internal/mesh", not: []string{"internal/extproc", "internal/plugin", "internal/config", "internal/admin", "pkg/discovery", otelModule, etcdModule, k8sModules, envoyModule},
		why: "it carries messages; who lists replicas, and what follows from what they tell, is given to it",
	},
	{
		pkg: "internal/trouble", not: []string{ourPackages, anyModule, "net", "os", "log/slog"},
		why: "every part may tell of trouble, so it knows none of them",
	},
	{
		pkg: "internal/pace", not: []string{"internal", "pkg", grpcModule, otelModule, "net", "os", "sync", "log/slog"},
		may: []string{"pkg/worker"},
		why: "what it believes follows from the legs that it is told alone",
	},
	{
		pkg: "internal/replay", not: []string{ourPackages, anyModule, "context", "sync", "sync/atomic", "net", "os", "log", "log/slog"},
		may: []string{"internal/heap", "internal/stats"},
		why: "what a run gives follows from its arguments alone; who chooses is told to it as an interface",
	},
	{
		pkg: "test/bench/policies", own: true, not: []string{"internal/extproc", "internal/route", "net", "os", "log", "log/slog"},
		why: "it chooses in simulated time, by rules that are written here",
	},
	{
		pkg: "internal/whatif", own: true, not: []string{"internal/extproc", "internal/route", "internal/config", "net", "os", "log", "log/slog", "sync"},
		why: "it chooses in simulated time, with the parts that are pure or take the time as an argument; files and settings are given to it",
	},
	{
		pkg: "internal/record", own: true, not: []string{"internal/extproc", "internal/route", "internal/load", "internal/config", "internal/replay", "internal/whatif", grpcModule, otelModule, "net"},
		why: "it writes and reads what it is told; who decides, and who plays it again, is not its business",
	},
	{
		pkg: "internal/shadow", own: true, not: []string{"internal/extproc", "internal/route", "internal/load", "internal/config", grpcModule, otelModule, "net", "os"},
		why: "it plays what was recorded: no request, no booking and no pick of the plugin is within its reach",
	},
	{
		pkg: "internal/budget", not: []string{ourPackages, anyModule, "net", "os", "time", "log/slog"},
		why: "it counts what it is told",
	},
	{
		pkg: "internal/recent", not: []string{ourPackages, anyModule, "context", "sync", "sync/atomic", "net", "os", "log/slog"},
		why: "it holds what it is given, under its owner's lock; what that is and who asks is not its business",
	},
	{
		pkg: "internal/edits", not: []string{ourPackages, anyModule, "context", "sync", "net", "os", "time", "log/slog"},
		why: "it compares two words; which words there are, and what follows, is its callers' business",
	},
	{
		pkg: "internal/heap", not: []string{ourPackages, anyModule, "context", "sync", "sync/atomic", "net", "os", "time", "log/slog"},
		why: "it orders what it is given, under its owner's lock; what that is and what the order means is not its business",
	},
	{
		pkg: "internal/hour",
		not: []string{"internal", "cmd", "pkg", anyModule, "context", "net", "net/http", "os", "log", "log/slog"}, may: []string{"pkg/worker"},
		why: "it keeps what it is told at the times that it is told: who ends requests, and who draws, is not its business",
	},
	{
		pkg: "internal/decision",
		not: []string{
			"internal", "cmd", "pkg/picker", "pkg/kvindex", "pkg/kvevents", "pkg/discovery", "pkg/tokens", "pkg/prefill", anyModule,
			"context", "sync", "net", "net/http", "os", "log", "log/slog",
		},
		why: "what was decided is told to it in values and words: whoever reads a record needs to know nobody who decides",
	},
	{
		pkg: "internal/load", not: []string{"internal/extproc", "pkg/discovery", grpcModule, otelModule},
		why: "bookings are numbers by rank; who streams and who watches is told to them",
	},
	{
		pkg: "internal/loads", not: []string{"internal/load", "internal/health", "internal/extproc", "pkg/discovery", grpcModule, otelModule},
		why: "it asks engines and hands on what they say; who books is told by internal/plugin",
	},
	{
		pkg: "internal/hitloss", not: []string{"internal", "pkg/kvindex", "pkg/picker", "pkg/discovery", grpcModule, otelModule, "context", "sync", "net", "os", "log/slog"},
		why: "why a token was lost, and who lies, follows from numbers alone; who has them and what follows is the caller's business",
	},
	{
		pkg: "internal/outlen", not: []string{"internal/load", "internal/extproc", "pkg/discovery", grpcModule, otelModule, "net", "os"},
		why: "what to expect of an answer follows from the answers before it alone",
	},
	{
		pkg: "internal/extproc", not: []string{"internal/admin", "pkg/kvevents", etcdModule, k8sModules, zmqModule},
		why: "what it is fed with and who shows it is wired by internal/plugin",
	},
	{
		pkg: "internal/extproc", not: []string{"pkg/picker"}, own: true, // internal/route, which it asks, imports it
		why: "it does not choose: settings of picks go through it to internal/route, which names them",
	},
	{
		pkg: "internal/wire", not: []string{ourPackages, otelModule, "log/slog", "net", "os"},
		may: []string{"pkg/prefill", "pkg/worker"},
		why: "it turns Envoy's messages into values and back; of ours it knows the names of headers, which pkg/prefill has",
	},
	{
		pkg: "internal/leg", own: true, // wire, which it has plain values of, imports grpc
		not: []string{ourPackages, anyModule, "context", "sync", "sync/atomic", "net", "net/http", "os", "log", "log/slog"},
		may: []string{
			"internal/blame", "internal/budget", "internal/engine/handoff", "internal/openai", "internal/wire", "pkg/prefill", "pkg/worker",
		},
		why: "what becomes of a leg follows from its events: who picks, books, sends and keeps records is told by its effects",
	},
	{
		pkg: "cmd/extproc", not: []string{ourPackages, grpcModule, envoyModule, otelModule}, own: true,
		may: []string{
			"internal/activation", "internal/admin", "internal/config", "internal/decision", "internal/ownenvoy", "internal/plugin", "internal/register",
			"internal/telemetry", "pkg/discovery", "pkg/discovery/etcd", "pkg/discovery/record", "pkg/kvevents", "pkg/kvindex", "pkg/worker",
		},
		why: "a command reads its flags, starts a process and prints results: it decides nothing, and the parts of the plugin are connected elsewhere",
	},
	{
		pkg: "internal/config",
		not: []string{
			"internal/plugin", "cmd", grpcModule, envoyModule, otelModule, etcdModule, zmqModule, natsModule,
			"context", "sync", "sync/atomic", "net/http", "os/exec", "os/signal",
		},
		own: true, // it imports the parts for the bounds and words of their settings, and they import grpc
		why: "it reads, validates and converts; making and running the parts is internal/plugin's",
	},
	{
		pkg: "internal/sources",
		not: []string{
			"internal/plugin", "internal/config", "internal/extproc", "internal/facts", "internal/health", "cmd", grpcModule, otelModule,
			etcdModule, k8sModules, "context", "net/http", "os/exec",
		},
		own: true, // it imports the sources, and they their stores' clients
		why: "it lists and opens the sources; what the process wraps them with is told to it, and running them is internal/plugin's",
	},
	{
		pkg: "internal/route",
		not: []string{
			"internal/extproc", "internal/blame", "internal/journal", "internal/admin", "internal/telemetry", "pkg/kvevents",
			grpcModule, otelModule, envoyModule, "context", "net", "net/http", "os", "log", "log/slog",
		},
		why: "who serves a request follows from the request and the fleet: what streams, phases and errors are is not its business",
	},
	{
		pkg: "test/enginesim",
		not: []string{
			"pkg/picker", "pkg/kvindex", "pkg/kvevents", "pkg/prefill", "pkg/tokens",
			"internal/extproc", "internal/openai", "internal/load",
		},
		why: "a simulated engine that shared code with the plugin would share its mistakes",
	},
	{
		pkg: "test/enginesim/core", not: []string{ourPackages, zmqModule}, may: []string{"pkg/worker"},
		why: "what a worker of any engine does knows no engine: engines are given to it",
	},
	{
		pkg: "test/enginesim/sidechannel", not: []string{ourPackages}, may: []string{"test/enginesim/core", "pkg/worker"},
		why: "KV under a lease is the same for every engine that has a side channel",
	},
	{
		pkg: "test/enginesim/sglang", not: []string{ourPackages}, may: []string{"test/enginesim/core", "pkg/worker"},
		why: "a simulated engine knows no other one: a change of one cannot break two",
	},
	{
		pkg: "test/enginesim/vllm", not: []string{ourPackages},
		may: []string{"test/enginesim/core", "test/enginesim/sidechannel", "pkg/worker"},
		why: "a simulated engine knows no other one: a change of one cannot break two",
	},
	{
		pkg: "test/enginesim/trtllm", not: []string{ourPackages},
		may: []string{"test/enginesim/core", "test/enginesim/sidechannel", "pkg/worker"},
		why: "a simulated engine knows no other one: a change of one cannot break two",
	},
}

// only says who may import something.
type only struct {
	what string
	in   []string
	why  string
}

var onlys = []only{
	{
		what: "pkg/kvindex/oracle", in: []string{"pkg/kvindex/oracle"},
		why: "tests alone compare the index with it: the product has one index",
	},
	{
		what: envoyModule, in: []string{"internal/wire", "test/envoytest", "test/bench", "examples/direct", "examples/gateway-api"},
		why: "protos must not leak into the core",
	},
	{
		what: protoFields, in: []string{"internal/wire"},
		why: "the numbers of a message's fields are known in one place",
	},
	{
		// What replicas say to each other is JSON in a message of one field (wrapperspb),
		// and none of Envoy's: internal/extproc wraps it itself.
		what: protoWriter, in: []string{"internal/wire"},
		why: "messages are read and written in one place",
	},
	{
		what: protoStructs, in: []string{"internal/wire", "internal/subset", "examples/direct", "examples/gateway-api"},
		why: "metadata is read where messages are, and a subset hint, which may be any value, by who judges it",
	},
	{
		what: "internal/extproc", in: []string{"internal/extproc", "test/envoytest", "test/bench", "internal/config", "internal/plugin"},
		why: "the server is the top; only what starts it, and what converts the file to its settings, imports it",
	},
	{
		what: "internal/wire", in: []string{"internal/wire", "internal/leg", "internal/extproc", "internal/plugin"},
		why: "a leg's machine has its values, the server its streams, and who answers probes the service's name; nobody else sees Envoy's messages",
	},
	{
		what: "internal/leg", in: []string{"internal/leg", "internal/extproc"},
		why: "a machine has one runner for each of its legs; nobody else sees its phases or its failures",
	},
	{
		what: "internal/config", in: []string{"cmd/extproc", "internal/ownenvoy", "internal/plugin"},
		why: "a part has settings of its own, and depends on no file and no flag",
	},
	{
		what: "internal/sources", in: []string{"internal/config", "internal/plugin"},
		why: "who serves workers does not know which kinds of sources there are",
	},
	{
		what: "internal/plugin", in: []string{"cmd/extproc"},
		why: "it is the process, which only a command can be",
	},
	{
		what: etcdModule, in: []string{"pkg/discovery/etcd", "test/cmd/devetcd", "test/stack", "test/envoytest", "test/kubetest"},
		why: "a store's client stays with the source that reads it, and with those who start one",
	},
	{
		what: k8sModules, in: []string{"pkg/discovery/kubernetes", "test/kubetest", "test/node", "test/kubeparts"},
		why: "a store's client stays with the source that reads it, and with those who start one",
	},
	{
		what: natsModule, in: []string{"pkg/kvevents/nats"},
		why: "one way into the event plane among others; who reads envelopes need not know which",
	},
	{
		what: "testing", in: []string{"test/envoytest", "test/archtest", "internal/invariants", "test/stack", "test/kubetest"},
		why: "what ships does not link the test framework",
	},
}

// matches reports whether an import is what an entry of `not` names.
func matches(entry, pkg, imp string) bool {
	ours := isOurs(imp)
	switch entry {
	case ourPackages:
		return ours
	case selfPackages:
		return under(imp, pkg)
	case anyModule:
		return !ours && strings.Contains(strings.Split(imp, "/")[0], ".")
	}
	if isStd(entry) {
		return imp == entry // net is not net/netip
	}
	return under(imp, entry)
}

// isOurs reports whether a path is one of our two modules' packages, written without the module.
func isOurs(imp string) bool { return underAny(imp, []string{"pkg", "internal", "cmd", "test"}) }

func isStd(imp string) bool {
	return !strings.Contains(strings.Split(imp, "/")[0], ".") && !isOurs(imp)
}

// reached returns everything that the package imports outside its tests, each
// with the way to it; through our own packages, what is not of the standard
// library counts, too.
func (t *tree) reached(pkg string) map[string][]string {
	got := map[string][]string{}
	var walk func(p string, way []string)
	walk = func(p string, way []string) {
		for _, s := range t.pkgs[p] {
			if s.test {
				continue
			}
			for _, imp := range s.imports {
				if _, seen := got[imp]; seen || isStd(imp) && len(way) > 1 {
					continue
				}
				got[imp] = append(slices.Clone(way), imp)
				if _, ours := t.pkgs[imp]; ours {
					walk(imp, got[imp])
				}
			}
		}
	}
	walk(pkg, []string{pkg})
	return got
}

func breachesOfBans(t *tree, bans []ban) []string {
	var out []string
	for _, b := range bans {
		for _, pkg := range t.packages() {
			if !under(pkg, b.pkg) || underAny(pkg, b.spare) {
				continue
			}
			for imp, way := range t.reached(pkg) {
				if b.own && len(way) > 2 {
					continue
				}
				for _, entry := range b.not {
					if entry != selfPackages && under(imp, b.pkg) || slices.Contains(b.may, imp) {
						continue // its own subpackages are held to the same ban
					}
					if matches(entry, b.pkg, imp) {
						out = append(out, fmt.Sprintf("%s imports %s (%s): %s", pkg, imp, strings.Join(way, " → "), b.why))
					}
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func breachesOfOnlys(t *tree, onlys []only) []string {
	var out []string
	t.files(func(s *source) {
		pkg := strings.TrimSuffix(s.path[:strings.LastIndex(s.path, "/")+1], "/")
		for _, o := range onlys {
			if s.test || underAny(pkg, o.in) {
				continue
			}
			for _, imp := range s.imports {
				if imp == o.what || !isStd(o.what) && under(imp, o.what) {
					out = append(out, fmt.Sprintf("%s imports %s, which only %s may: %s", s.path, imp, strings.Join(o.in, ", "), o.why))
				}
			}
		}
	})
	return out
}

// namesNobody returns the packages that the laws name and the tree lacks.
func namesNobody(t *tree, bans []ban, onlys []only, tolerated []string) []string {
	var named []string
	for _, b := range bans {
		named = append(named, b.pkg)
	}
	for _, o := range onlys {
		named = append(named, o.in...)
		if !isStd(o.what) && !strings.Contains(o.what, ".") {
			named = append(named, o.what)
		}
	}
	slices.Sort(named)
	var out []string
	for _, n := range slices.Compact(named) {
		there := slices.ContainsFunc(t.packages(), func(p string) bool { return under(p, n) })
		if !there && !slices.Contains(tolerated, n) {
			out = append(out, fmt.Sprintf("a law names %s, which does not exist: mend the law", n))
		}
	}
	return out
}

func TestPackagesImportOnlyWhatTheyMay(t *testing.T) { obey(t, breachesOfBans(house(t), bans)) }
func TestWhatOnlyAFewMayImportIsImportedByThem(t *testing.T) {
	obey(t, breachesOfOnlys(house(t), onlys))
}
func TestLawsNamePackagesThatExist(t *testing.T) {
	obey(t, namesNobody(house(t), bans, onlys, notWrittenYet))
}

func TestEveryLawHasAReason(t *testing.T) {
	for _, b := range bans {
		require.NotEmpty(t, b.why, b.pkg)
		require.NotEmpty(t, b.not, b.pkg)
	}
	for _, o := range onlys {
		require.NotEmpty(t, o.why, o.what)
	}
}

func TestImportLawsAreSeenToFail(t *testing.T) {
	tr := madeUp(t, map[string]string{
		"pkg/worker/a.go":         "package worker\nimport _ \"github.com/x/y\"",
		"pkg/worker/a_test.go":    "package worker\nimport _ \"github.com/stretchr/testify/require\"",
		"pkg/picker/a.go":         "package picker\nimport (\n_ \"context\"\n_ \"net/netip\"\n_ \"" + module + "/pkg/tokens\"\n)",
		"pkg/tokens/a.go":         "package tokens\nimport (\n_ \"time\"\n_ \"" + module + "/pkg/kvindex\"\n)",
		"pkg/kvindex/a.go":        "package kvindex",
		"pkg/discovery/a.go":      "package discovery\nimport _ \"" + module + "/pkg/discovery/etcd\"",
		"pkg/discovery/etcd/a.go": "package etcd\nimport _ \"go.etcd.io/etcd/client/v3\"",
		"pkg/journal/a.go":        "package journal\nimport (\n_ \"github.com/envoyproxy/go-control-plane/envoy/x\"\n_ \"testing\"\n_ \"testing/fstest\"\n)",
		"main.go":                 "package main\nimport _ \"testing\"",
		"pkg/prefill/a.go":        "package prefill",
		"internal/pin/a.go":       "package pin",
		"internal/extproc/a.go":   "package extproc\nimport (\n_ \"" + module + "/internal/wire\"\n_ \"google.golang.org/protobuf/encoding/protowire\"\n)",
		"internal/wire/a.go":      "package wire\nimport (\n_ \"" + module + "/internal/pin\"\n_ \"" + module + "/pkg/prefill\"\n_ \"google.golang.org/protobuf/proto\"\n)",
	})
	require.Equal(t, []string{
		"internal/wire imports internal/pin (internal/wire → internal/pin): it turns Envoy's messages into values and back; of ours it knows the names of headers, which pkg/prefill has",
		"pkg/discovery imports go.etcd.io/etcd/client/v3 (pkg/discovery → pkg/discovery/etcd → go.etcd.io/etcd/client/v3): the reducer and the view do no I/O; only the subpackages reach a store",
		"pkg/discovery imports pkg/discovery/etcd (pkg/discovery → pkg/discovery/etcd): the reducer and the view do no I/O; only the subpackages reach a store",
		"pkg/picker imports context (pkg/picker → context): a decision is a function of its arguments",
		"pkg/picker imports pkg/kvindex (pkg/picker → pkg/tokens → pkg/kvindex): a decision is a function of its arguments",
		"pkg/worker imports github.com/x/y (pkg/worker → github.com/x/y): it is the vocabulary, which everything imports",
	}, breachesOfBans(tr, bans))
	direct := []ban{{pkg: "pkg/picker", not: []string{"pkg/kvindex", "context"}, own: true, why: "for the test"}}
	require.Equal(t, []string{"pkg/picker imports context (pkg/picker → context): for the test"}, breachesOfBans(tr, direct))
	require.Equal(t, []string{
		"main.go imports testing, which only test/envoytest, test/archtest, internal/invariants, test/stack, test/kubetest may: what ships does not link the test framework",
		"internal/extproc/a.go imports google.golang.org/protobuf/encoding/protowire, which only internal/wire may: the numbers of a message's fields are known in one place",
		"pkg/journal/a.go imports github.com/envoyproxy/go-control-plane/envoy/x, which only internal/wire, test/envoytest, test/bench, examples/direct, examples/gateway-api may: protos must not leak into the core",
		"pkg/journal/a.go imports testing, which only test/envoytest, test/archtest, internal/invariants, test/stack, test/kubetest may: what ships does not link the test framework",
	}, breachesOfOnlys(tr, onlys))
	require.Equal(t, []string{"a law names internal/gone, which does not exist: mend the law"},
		namesNobody(tr, []ban{{pkg: "internal/gone"}, {pkg: "pkg/worker"}, {pkg: "internal/later"}}, nil, []string{"internal/later"}))
}
