package cache

import (
	"cmp"
	"errors"
	"fmt"
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

// written returns the content of the file for the workers.
func written(identity string, ws []*worker.Worker) ([]byte, error) {
	data, err := record.MarshalList(ws)
	if err != nil || identity == "" {
		return data, err
	}
	return append([]byte(mark+identity+"\n"), data...), nil
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

// read returns the workers of the file, and when it was written.
func read(path, identity string) ([]discovery.Entry, time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("cache: %w", err)
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return nil, time.Time{}, fmt.Errorf("cache: %s: expected a file, found %s", path, info.Mode())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("cache: %w", err)
	}
	if err := checkOwner(path, identity, data); err != nil {
		return nil, time.Time{}, err
	}
	ws, err := record.ParseList(path, data)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("cache: %w", err)
	}
	if len(ws) == 0 {
		return nil, time.Time{}, errors.New("cache: expected a file with workers")
	}
	entries := make([]discovery.Entry, len(ws))
	for i, w := range ws {
		entries[i] = discovery.Entry{Key: "cache/" + w.ID.String(), Worker: w}
	}
	return entries, info.ModTime(), nil
}

// known returns the workers of a set as a file may have them: no id and no endpoint
// occurs twice. If one is claimed twice, the same entry keeps it as in a view (see
// package discovery). An endpoint goes to the entry written last, since a worker that
// came back at its old address is in the set twice while its old lease runs. An id
// stays with its first key. The workers are sorted by id.
func known(entries []discovery.Entry) []*worker.Worker {
	ids := make(map[worker.ID]bool, len(entries))
	var order, late []discovery.Entry
	for _, e := range entries {
		switch {
		case e.Worker == nil:
		case ids[e.Worker.ID]:
			late = append(late, e)
		default:
			ids[e.Worker.ID] = true
			order = append(order, e)
		}
	}
	slices.SortStableFunc(order, func(a, b discovery.Entry) int { return cmp.Compare(b.Revision, a.Revision) })
	clear(ids)
	addrs := make(map[netip.AddrPort]bool, len(entries))
	taken := func(a netip.AddrPort) bool { return addrs[a] }
	ws := make([]*worker.Worker, 0, len(entries))
	for _, e := range append(order, late...) {
		w := e.Worker
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
		if w.Fixed != 0 || w.FactsPort != 0 { // of use only to who asks the worker, and no field of the file
			own := *w
			own.Fixed, own.FactsPort = 0, 0
			w = &own
		}
		ws = append(ws, w)
	}
	slices.SortFunc(ws, func(a, b *worker.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return ws
}
