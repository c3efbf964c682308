package plugin

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// pools is which of the pools exist whose pods are workers. That a pool does not exist is a
// fact and not an outage: there is nobody to serve, and a probe is told so. While one of
// several exists, or another source of workers is set, the plugin serves. Safe for
// concurrent use.
type pools struct {
	told func(absent bool) // called, with the lock held, whenever something may have changed

	// Set before the first call of note, read-only.
	all    int  // the number of pools that are watched
	beside bool // other sources of workers are set

	mu     sync.Mutex        // guards absent
	absent map[string]string // why there is no pool of the name
}

// note takes what a source knows of its pool.
func (p *pools) note(name string, exists bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.absent == nil {
		p.absent = make(map[string]string)
	}
	delete(p.absent, name)
	if !exists {
		p.absent[name] = "pool " + name + " " + why
	}
	p.told(p.whyLocked() != "")
}

// why says why nobody can be served for lack of a pool, or returns "".
func (p *pools) why() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.whyLocked()
}

func (p *pools) whyLocked() string {
	if p.beside || p.all == 0 || len(p.absent) < p.all {
		return ""
	}
	return strings.Join(slices.Sorted(maps.Values(p.absent)), "; ")
}
