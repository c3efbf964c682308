package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Bounds of the texts of one worker. Anyone who may write to discovery chooses these
// texts, and they end up in bodies and headers of requests, on pages and in logs.
const (
	MaxNameBytes = 256 // for a model, a namespace, a deployment, a topic, a pair fact
	maxHostBytes = 253 // for a host name (RFC 1035, 2.3.4)
)

// CheckHost returns nil if h can be dialled as it is: an IP address (IPv6 without
// brackets), or a name of letters, digits, dots, dashes and underscores, in each case
// without a port. It refuses an address with a zone, since a zone may be any text and
// has a meaning on one machine only. It also refuses addresses that stand for every
// address of a machine or for many machines.
func CheckHost(h string) error {
	if a, err := netip.ParseAddr(h); err == nil {
		switch {
		case a.Zone() != "":
			return fmt.Errorf("%.60q: expected an address without a zone", h)
		case !oneMachine(a):
			return fmt.Errorf("%q: expected the address of one machine, which others can reach", h)
		}
		return nil
	}
	if h == "" || len(h) > maxHostBytes || strings.HasPrefix(h, "-") || strings.ContainsFunc(h, notOfNames) {
		return fmt.Errorf("%.60q: expected an IP address or a name, without a port", h)
	}
	return nil
}

// oneMachine reports whether a can be the address of one machine. 255.255.255.255 is
// every machine of a network.
func oneMachine(a netip.Addr) bool {
	a = a.Unmap()
	return !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// notOfNames reports whether r is a character that host names and engines' ids may not
// have: they consist of letters, digits, dots, dashes and underscores.
func notOfNames(r rune) bool {
	return r > 'z' || !strings.ContainsRune("._-", r) && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
}

// CheckTexts returns the faults of w's texts, which are those that [Worker.Validate] finds,
// joined, or nil.
func (w *Worker) CheckTexts() error {
	var errs []error
	w.badTexts(func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) })
	return errors.Join(errs...)
}

// badTexts calls bad for each text of w that is too long, is not printable, or is no
// host.
func (w *Worker) badTexts(bad func(format string, a ...any)) {
	for _, m := range w.Models {
		if m != "" && (!printable(m) || len(m) > MaxNameBytes) {
			bad("models: %.60q: expected 1 to %d bytes of printable text", m, MaxNameBytes)
		}
	}
	texts := []struct{ key, text string }{{"namespace", w.Namespace}, {"deployment", w.Deployment}, {"kv_events topic", w.KVEvents.Topic}}
	for i, text := range w.Pair {
		texts = append(texts, struct{ key, text string }{pairFactNames[i], text})
	}
	for _, t := range texts {
		if t.text != "" && (!printable(t.text) || len(t.text) > MaxNameBytes) {
			bad("%s %.60q: expected at most %d bytes of printable text", t.key, t.text, MaxNameBytes)
		}
	}
	hosts := []struct{ key, host string }{{"bootstrap", w.Bootstrap.Host}, {"kv_events", w.KVEvents.Host}}
	for _, at := range w.KVEvents.Ranks {
		hosts = append(hosts, struct{ key, host string }{"kv_events.ranks", at.Host})
	}
	for _, h := range hosts {
		if h.host == "" {
			continue
		}
		if err := CheckHost(h.host); err != nil {
			bad("%s host %w", h.key, err)
		}
	}
	for _, id := range w.Bootstrap.EngineIDs {
		if id == "" || len(id) > 128 || strings.ContainsFunc(id, notOfNames) {
			bad("bootstrap engine id %.40q: expected up to 128 letters, digits, dots, dashes and underscores", id)
		}
	}
}
