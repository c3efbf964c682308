package worker

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ID is the discovery identity of one worker ("instance id" on the wire). Zero
// is not a valid ID.
type ID uint64

// String returns the decimal form used in headers, keys and logs.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// ParseID reads the decimal form of an ID. It refuses zero, signs and values
// over 2^64-1.
func ParseID(s string) (ID, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("worker: instance id %q: expected a decimal number from 1 to 2^64-1", s)
	}
	return ID(n), nil
}

// DPRank is the data-parallel rank within a worker; 0 when data parallelism is
// off.
type DPRank uint32

// Rank is one data-parallel rank of one worker: the unit the picker picks and
// the index stores. It is comparable and used as a map key.
type Rank struct {
	ID     ID
	DPRank DPRank
}

// String returns "id/rank", the form used in scenario files, logs and pages.
func (r Rank) String() string {
	return r.ID.String() + "/" + strconv.FormatUint(uint64(r.DPRank), 10)
}

// Compare orders ranks by their worker, then by their number, for slices.SortFunc.
func (r Rank) Compare(o Rank) int {
	return cmp.Or(cmp.Compare(r.ID, o.ID), cmp.Compare(r.DPRank, o.DPRank))
}

// In reports whether r is o or, if the flag whole is set, any rank of o's worker: ranks
// that share a port live and die together.
func (r Rank) In(o Rank, whole bool) bool { return r == o || whole && r.ID == o.ID }

// Role is what a worker may do: prefill, decode, or both (aggregated).
type Role uint8

// The roles. The zero value is not a role.
const (
	Prefill Role = iota + 1
	Decode
	Aggregated
)

var roleNames = [...]string{Prefill: "prefill", Decode: "decode", Aggregated: "aggregated"}

// String returns the lower-case name of the role, or "invalid".
func (r Role) String() string {
	if r < Prefill || r > Aggregated {
		return "invalid"
	}
	return roleNames[r]
}

// ParseRole reads a lower-case role name.
func ParseRole(s string) (Role, error) {
	for r := Prefill; r <= Aggregated; r++ {
		if roleNames[r] == s {
			return r, nil
		}
	}
	return 0, fmt.Errorf("worker: role %q: expected prefill, decode or aggregated", s)
}

// Endpoint is the address where Envoy sends a worker's requests: always an IP address
// and a port, since an original-destination cluster accepts nothing else. The zero
// value is no endpoint.
type Endpoint struct {
	addr netip.AddrPort
	text string
}

// ParseEndpoint reads "ip:port" or "[ipv6]:port". It refuses names, since names are
// resolved before a worker is registered, and addresses that do not stand for one
// machine. An IPv4 address in IPv6 form becomes the IPv4 address, so that one place has
// one endpoint.
func ParseEndpoint(s string) (Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	ip := a.Addr().Unmap()
	if err != nil || a.Port() == 0 || a.Addr().Zone() != "" || !oneMachine(ip) {
		return Endpoint{}, fmt.Errorf("worker: endpoint %.100q: expected ip:port of one machine: an IP address, not a name, in brackets if it is IPv6, and a port from 1 to 65535", s)
	}
	a = netip.AddrPortFrom(ip, a.Port())
	return Endpoint{addr: a, text: a.String()}, nil
}

// String returns "ip:port", with IPv6 in brackets. It does not allocate.
func (e Endpoint) String() string { return e.text }

// AddrPort returns the parsed address.
func (e Endpoint) AddrPort() netip.AddrPort { return e.addr }

// IsZero reports whether e is the zero value, no endpoint.
func (e Endpoint) IsZero() bool { return e.text == "" }

// Bootstrap is where a decode worker meets a prefill worker to fetch KV. The zero value
// means that the worker has no bootstrap address. A host without a port counts as
// absent (docs/behaviour.md#addresses).
type Bootstrap struct {
	Host string // IP or name as the engines need it; IPv6 without brackets
	Port uint16
	// EngineIDs name the ranks of a VLLMMooncake prefill worker, in the order of the
	// ranks. Each process of the engine has new ones.
	EngineIDs []string
}

// Equal reports whether all fields of b and o are equal.
func (b Bootstrap) Equal(o Bootstrap) bool {
	return b.Host == o.Host && b.Port == o.Port && slices.Equal(b.EngineIDs, o.EngineIDs)
}

// IsZero reports whether the worker offers no rendezvous.
func (b Bootstrap) IsZero() bool { return b.Host == "" || b.Port == 0 }

// KVEvents says where a worker publishes its KV events over ZMQ. Each rank has a
// publisher of its own: rank r uses Port + r, and ReplayPort + r, unless Ranks has its
// place. The zero value means that the worker publishes no KV events.
type KVEvents struct {
	Host       string
	Port       uint16 // PUB socket of rank 0
	ReplayPort uint16 // ROUTER socket of rank 0; 0: events cannot be replayed
	Topic      string
	// Ranks are the places of the ranks, in their order, if they are not a row of ports at
	// Host: ranks on several machines, or with ports that the system gave. Nil: they are.
	// The first one is Host, Port and ReplayPort again, for readers that do not know Ranks.
	Ranks []EventsPlace
}

// EventsPlace is where one rank publishes its KV events. Without a port it publishes none.
type EventsPlace struct {
	Host       string
	Port       uint16
	ReplayPort uint16
}

// IsZero reports whether the worker publishes no KV events.
func (k KVEvents) IsZero() bool { return k.Host == "" || k.Port == 0 }

// Equal reports whether all fields of k and o are equal.
func (k KVEvents) Equal(o KVEvents) bool {
	return k.Host == o.Host && k.Port == o.Port && k.ReplayPort == o.ReplayPort && k.Topic == o.Topic && slices.Equal(k.Ranks, o.Ranks)
}

// Of returns where a rank publishes. A port that would exceed 65535 is 0.
func (k KVEvents) Of(dp DPRank) EventsPlace {
	if k.Ranks != nil {
		if int(dp) < len(k.Ranks) {
			return k.Ranks[dp]
		}
		return EventsPlace{}
	}
	at := func(base uint16) uint16 {
		if n := uint64(base) + uint64(dp); base != 0 && n <= maxPort {
			return uint16(n)
		}
		return 0
	}
	return EventsPlace{Host: k.Host, Port: at(k.Port), ReplayPort: at(k.ReplayPort)}
}

// Placed returns k for a worker with so many ranks. With hosts, the ranks are on these
// machines, each of which has as many of them as the others, in their order.
func (k KVEvents) Placed(ranks uint32, hosts ...string) KVEvents {
	places := make([]EventsPlace, ranks)
	for dp := range places {
		places[dp] = k.Of(DPRank(dp)) //nolint:gosec // MaxDPSize bounds it
		if len(hosts) > 0 {
			places[dp].Host = hosts[dp*len(hosts)/len(places)]
		}
	}
	k.Host, k.Ranks = places[0].Host, nil
	for dp := range places {
		if k.Of(DPRank(dp)) != places[dp] { //nolint:gosec // as above
			k.Ranks = places
			break
		}
	}
	return k
}

// ModelFiles names the files with which a worker's model is published, and says where
// they are served beside the worker, over HTTP (package modelfiles has the path and the
// form). The zero value means that nobody serves them.
type ModelFiles struct {
	Digest string // of what is served: "sha256:" and 64 hexadecimal digits
	Port   uint16 // at the host of the worker's Endpoint
}

// IsZero reports whether nobody serves the files.
func (m ModelFiles) IsZero() bool { return m.Digest == "" || m.Port == 0 }

// CheckDigest returns an error if the text is not a digest as ModelFiles has it.
func CheckDigest(digest string) error {
	hexa, ok := strings.CutPrefix(digest, "sha256:")
	if ok && len(hexa) == 64 && strings.Trim(hexa, "0123456789abcdef") == "" {
		return nil
	}
	return fmt.Errorf("%.80q: expected sha256: and 64 hexadecimal digits", digest)
}

// MaxDPSize bounds the ranks of one worker, so that one wrong record in discovery
// cannot use up memory.
const MaxDPSize = 4096

// Worker is one engine process. A Worker in a Snapshot is immutable and shared:
// callers must not write to it or to its slices.
type Worker struct {
	ID       ID
	Role     Role
	Engine   Engine
	Endpoint Endpoint
	Models   []string // names that requests may ask for; at least one
	// Adapters are those names of Models that are LoRA adapters. An engine salts the KV
	// blocks of an adapter with the adapter's name, so that they differ from the blocks
	// that the model itself has for the same prompt.
	Adapters  []string
	Namespace string // separates fleets of one model; may be empty
	// Deployment names the deployment that the worker was started with, and with which
	// it comes and goes. The decode workers of one deployment are one decode side for
	// prefill activation. The empty name is a deployment like any other.
	Deployment string

	DPSize uint32 // data-parallel ranks; at least 1
	// PortPerRank says that each rank listens on a port of its own: the port of
	// Endpoint plus the rank. vLLM does so when it leaves balancing to others. A
	// request is then sent to the rank's own endpoint and names no rank. See
	// EndpointOf.
	PortPerRank    bool
	BlockSize      uint32 // tokens per KV block; at least 1
	CapacityBlocks uint64 // KV blocks per rank; 0: unknown
	// MaxModelLen is the most tokens that a prompt and its answer may have together; 0:
	// unknown. Clients are told this limit.
	MaxModelLen uint32
	// Eagle says that each KV block is identified by pairs of tokens, as in SGLang with
	// EAGLE speculation. A block then depends also on the token behind it, and prompts
	// must be hashed accordingly (kvindex.AppendPairHashes).
	Eagle bool
	// Pair has what the worker's partner must share with it, as far as it is known.
	Pair PairFacts

	Bootstrap Bootstrap
	KVEvents  KVEvents
	// ModelFiles are what the tokens of the worker's prompts may be made from.
	ModelFiles ModelFiles

	// Taints are the worker's own taints, which requests may require. Each entry of
	// TopologyDomains is one more taint; see HasTaint.
	Taints          []string
	TopologyDomains map[string]string // domain to value: "zone" to "us-east-1a"
	KVTransfer      KVTransfer

	AcceptsAggregated bool // a decode worker that can serve without a prefill
	HeaderOverrides   bool // the engine takes bootstrap data as x-override-* headers
	Draining          bool // takes no new picks; running requests go on
	Expired           bool // its record is gone, and nobody has withdrawn it; see package discovery
	// Fronted says that the worker speaks no HTTP: only the frontend of another program
	// can reach it, at Endpoint and by its id. Other workers of the same process may
	// share that Endpoint. Envoy cannot send the worker anything.
	Fronted bool

	// Unvouched says that anybody may have written the worker who reaches its source's
	// store: the plugin tells it no secret.
	Unvouched bool

	// FactsUnknown says that not all of Engine, Models and BlockSize are known, as of a
	// worker that was found as a pod and whose engine has not answered yet; those that
	// are not known are zero. Until they are, an aggregated worker is picked for the
	// models of its deployment and for NoModel, without an overlap; a prefill or decode
	// worker is not picked for its role. Whoever learns the facts fills in fields that
	// are not Fixed, and clears FactsUnknown when the worker is Complete.
	FactsUnknown bool
	// Fixed has the facts that the worker's source has set, also those that it has set
	// to zero, as "no KV events". What the engine says does not change them. If FactRole
	// is not in it, as of a pod without a role's label, the engine may say the role;
	// until then it is Aggregated. Only sources whose workers are asked for their facts
	// set Fixed.
	Fixed Facts
	// EngineRank is what the engine calls the worker's rank 0, if other processes have the
	// ranks before it, as with external and hybrid load balancing of vLLM, or if each rank
	// is a worker of its own: rank r of a pod with several ports. Batches of KV events and
	// pages of the engine count from it; requests count from 0.
	EngineRank DPRank
	// FactsPort is the port at which the engine itself answers HTTP, if something else
	// has that of Endpoint, as a sidecar that shares a pod with its engine; 0: Endpoint's.
	// Only questions for facts go there.
	FactsPort uint16

	ranks []Endpoint // endpoints of the ranks if PortPerRank is set; filled by NewSnapshot; see tabled
}

// CanServe reports whether the worker may be picked for the role. A prefill worker that
// lacks bootstrap data may not, nor may a worker whose transfer domain has no value
// (docs/behaviour.md#transfer-domain). A worker whose facts are not known may only serve
// whole requests.
func (w *Worker) CanServe(r Role) bool {
	switch {
	case w.Draining, w.Fronted, w.TopologyFault() != "":
		return false
	case r == Prefill && w.LacksBootstrap():
		return false
	case r != Aggregated && !w.Complete():
		return false
	}
	return w.Role == r || (r == Aggregated && w.Role == Decode && w.AcceptsAggregated)
}

// Base returns the key of the model that the worker has loaded: its first name that is no
// adapter's. Without such a name it is the first, or the zero Key if there is none.
func (w *Worker) Base() Key {
	for _, m := range w.Models {
		if !slices.Contains(w.Adapters, m) {
			return Key{Model: m, Namespace: w.Namespace}
		}
	}
	if len(w.Models) == 0 {
		return Key{}
	}
	return Key{Model: w.Models[0], Namespace: w.Namespace}
}

// Validate returns every fault of w, joined, or nil.
func (w *Worker) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if w.ID == 0 {
		bad("id: expected a number above 0")
	}
	if w.Role < Prefill || w.Role > Aggregated {
		bad("role: expected prefill, decode or aggregated")
	}
	if _, err := ParseEngine(string(w.Engine)); err != nil && !(w.FactsUnknown && w.Engine == "") {
		bad("engine %q: expected %s", string(w.Engine), EngineNames())
	}
	for _, a := range w.Adapters {
		if !slices.Contains(w.Models, a) {
			bad("adapters: %.60q is none of models", a)
		}
	}
	w.badTexts(bad)
	if w.Endpoint.IsZero() {
		bad("endpoint: expected ip:port")
	}
	if len(w.Models) == 0 && !w.FactsUnknown || slices.Contains(w.Models, NoModel) {
		bad("models: expected at least one name, none of them empty")
	}
	if err := CheckDigest(w.ModelFiles.Digest); err != nil && w.ModelFiles != (ModelFiles{}) {
		bad("model_files.digest %w", err)
	}
	if w.DPSize == 0 || w.DPSize > MaxDPSize {
		bad("dp_size %d: expected 1 to %d", w.DPSize, MaxDPSize)
	}
	if why := w.portFault(); why != "" {
		bad("%s", why)
	}
	if w.BlockSize == 0 && !w.FactsUnknown {
		bad("block_size: expected at least 1 token")
	}
	if err := w.ValidateTopology(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil
	}
	if w.ID == 0 {
		return fmt.Errorf("a worker without id: %w", errors.Join(errs...))
	}
	return fmt.Errorf("worker %d: %w", w.ID, errors.Join(errs...))
}
