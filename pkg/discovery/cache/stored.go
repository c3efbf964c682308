package cache

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mark begins the line that names the identity whose workers the file has.
const mark = "# workers of "

// leased begins a line that names the workers whose records have a lease of one length:
//
//	# lease 10s: 7587870198238 7587870198239
const leased = "# lease "

// written returns the content of the file for the entries.
func written(identity string, entries []discovery.Entry) ([]byte, error) {
	var head []byte
	if identity != "" {
		head = append(head, mark+identity+"\n"...)
	}
	ws := make([]*worker.Worker, len(entries))
	ids := map[time.Duration][]string{}
	for i, e := range entries {
		ws[i] = e.Worker
		if e.Lease > 0 {
			ids[e.Lease] = append(ids[e.Lease], e.Worker.ID.String())
		}
	}
	for _, lease := range slices.Sorted(maps.Keys(ids)) {
		head = append(head, leased+lease.String()+": "+strings.Join(ids[lease], " ")+"\n"...)
	}
	data, err := record.MarshalList(ws)
	return append(head, data...), err
}

// leases returns how long the records outlive whoever keeps them, by worker. What it cannot
// read has no lease: then a record that is gone went on purpose.
func leases(data []byte) map[worker.ID]time.Duration {
	out := map[worker.ID]time.Duration{}
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		text, names, _ := strings.Cut(strings.TrimPrefix(line, leased), ": ")
		lease, err := time.ParseDuration(text)
		if err != nil {
			continue
		}
		for _, name := range strings.Fields(names) {
			if id, err := worker.ParseID(name); err == nil {
				out[id] = lease
			}
		}
	}
	return out
}

// checkOwner returns an error if the file is of another identity or of none.
func checkOwner(path, identity string, data []byte) error {
	if identity == "" {
		return nil
	}
	first, _, _ := strings.Cut(string(data), "\n")
	owner, ok := strings.CutPrefix(first, mark)
	switch {
	case !ok:
		return fmt.Errorf("cache: %s does not say whose workers it holds; expected those of %s", path, identity)
	case owner != identity:
		return fmt.Errorf("cache: %s holds the workers of %s; expected those of %s", path, owner, identity)
	}
	return nil
}

// stored is what a file has.
type stored struct {
	entries []discovery.Entry // at least one, if err is nil
	at      time.Time         // when it was written
	err     error             // why it cannot be used
}

func read(path, identity string) stored {
	info, err := os.Stat(path)
	if err != nil {
		return stored{err: fmt.Errorf("cache: %w", err)}
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return stored{err: fmt.Errorf("cache: %s: expected a file, found %s", path, info.Mode())}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return stored{err: fmt.Errorf("cache: %w", err)}
	}
	if err := checkOwner(path, identity, data); err != nil {
		return stored{err: err}
	}
	ws, err := record.ParseList(path, data)
	if err != nil {
		return stored{err: fmt.Errorf("cache: %w", err)}
	}
	if len(ws) == 0 {
		return stored{err: errors.New("cache: expected a file with workers")}
	}
	entries, lease := make([]discovery.Entry, len(ws)), leases(data)
	for i, w := range ws {
		entries[i] = discovery.Entry{Key: "cache/" + w.ID.String(), Worker: w, Lease: lease[w.ID]}
	}
	return stored{entries: entries, at: info.ModTime()}
}

// known returns the workers of a set as a file may have them: no id and no endpoint
// occurs twice. If one is claimed twice, the same entry keeps it as in a view. A worker
// whose record has expired is as its record was. The entries are sorted by the workers' ids.
func known(entries []discovery.Entry) []discovery.Entry {
	ids := make(map[worker.ID]bool, len(entries))
	addrs := make(map[netip.AddrPort]bool, len(entries))
	taken := func(a netip.AddrPort) bool { return addrs[a] }
	out := make([]discovery.Entry, 0, len(entries))
	for _, e := range discovery.ByPrecedence(entries) {
		w := e.Worker
		if w == nil {
			continue
		}
		at := slices.Collect(w.Addresses())
		if ids[w.ID] || !w.Fronted && slices.ContainsFunc(at, taken) {
			continue
		}
		ids[w.ID] = true
		if !w.Fronted {
			for _, a := range at {
				addrs[a] = true
			}
		}
		own := *w
		own.Fixed, own.FactsPort = 0, 0 // of use only to who asks the worker, and no field of the file
		own.Draining, own.Expired = w.Draining && !w.Expired, false
		e.Worker = &own
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b discovery.Entry) int { return cmp.Compare(a.Worker.ID, b.Worker.ID) })
	return out
}
