package core

import (
	"errors"
	"net/http"
)

// Lie is what POST /sim/lie and [Sim.Lie] take: how an engine comes to hold something else
// than its KV events say.
type Lie struct {
	// Mute keeps all events back from now on, the replayed ones too, until a lie without it.
	// The sockets stay open, and pings are answered.
	Mute bool `json:"mute,omitempty"`
	// Forget empties the cache of every rank and publishes nothing of it.
	Forget bool `json:"forget,omitempty"`
	// Page is the new number of tokens of a block; 0: as before. It empties the cache as Forget does.
	Page int `json:"page,omitempty"`
}

// ErrHeld is returned by [Sim.Lie] while requests hold blocks of a cache that it would empty.
var ErrHeld = errors.New("enginesim: requests hold KV blocks")

// Lie makes the worker lie. Forget and Page fail while requests hold blocks.
func (s *Sim) Lie(l Lie) error {
	for _, r := range s.Ranks {
		if r.pub != nil {
			r.pub.mu.Lock()
			r.pub.mute = l.Mute
			r.pub.mu.Unlock()
		}
		if (l.Forget || l.Page > 0) && !r.forget(l.Page) {
			return ErrHeld
		}
	}
	if l.Page > 0 {
		s.paged.Store(int64(l.Page))
	}
	return nil
}

// Page is how many tokens a block has.
func (s *Sim) Page() int { return int(s.paged.Load()) }

// forget empties the cache without an event. page is the new size of its blocks; 0: as before.
func (r *Rank) forget(page int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cache.held() > 0 {
		return false
	}
	events, record := r.cache.events, r.cache.record
	r.cache.record = false
	r.cache.clear()
	r.cache.events, r.cache.record = events, record
	if page > 0 {
		r.cache.page = page
	}
	return true
}

func lie(s *Sim, w http.ResponseWriter, r *http.Request) {
	var l Lie
	err := readStrict(r, &l)
	if err == nil && l.Page >= 0 {
		err = s.Lie(l)
	}
	if err != nil || l.Page < 0 {
		WriteError(w, BadRequest("expected mute, forget and page, while no request holds blocks"))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
