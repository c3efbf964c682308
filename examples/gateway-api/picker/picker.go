package main

import (
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// picker chooses in turn: the decode workers go round once for each prefill
// worker, so that every pair comes. Safe for concurrent use.
type picker struct {
	workers []*worker.Worker
	turn    atomic.Uint64
}

// choice is the addresses of who is to serve. Prefill is empty where the model
// has no prefill worker.
type choice struct{ decode, prefill string }

// choose picks among those who serve the model and are in the subset; an empty
// model is any. It reports false where nobody is left.
func (p *picker) choose(model string, s *subset) (choice, bool) {
	var decodes, prefills []string
	split := false
	for _, w := range p.workers {
		if model != "" && !slices.Contains(w.Models, model) {
			continue
		}
		split = split || w.Role == worker.Prefill
		switch at := w.Endpoint.String(); {
		case !s.allows(at):
		case w.Role == worker.Prefill:
			prefills = append(prefills, at)
		case w.Role == worker.Decode:
			decodes = append(decodes, at)
		}
	}
	if len(decodes) == 0 || split && len(prefills) == 0 {
		return choice{}, false
	}
	n := p.turn.Add(1) - 1
	c := choice{decode: decodes[n%uint64(len(decodes))]}
	if split {
		c.prefill = prefills[n/uint64(len(decodes))%uint64(len(prefills))]
	}
	return c, true
}

// subset is the endpoints that a data plane limits a request to; nil is all.
type subset struct{ entries []string }

// subsetOf reads the hint: a list of texts, a text with commas, or a list of
// texts with commas. What is there and cannot be read allows nobody.
func subsetOf(metadata map[string]*structpb.Struct) *subset {
	v, given := metadata[subsetNamespace].GetFields()[subsetKey]
	if !given {
		return nil
	}
	texts := []string{v.GetStringValue()}
	for _, e := range v.GetListValue().GetValues() {
		texts = append(texts, e.GetStringValue())
	}
	s := &subset{}
	for _, t := range texts {
		for e := range strings.SplitSeq(t, ",") {
			e = strings.TrimSpace(e)
			if e != "" {
				s.entries = append(s.entries, e)
			}
		}
	}
	return s
}

// allows reports whether an ip:port is in the subset. An entry without a port is
// every port of its address.
func (s *subset) allows(at string) bool {
	if s == nil {
		return true
	}
	host := strings.Trim(at[:strings.LastIndexByte(at, ':')], "[]")
	return slices.ContainsFunc(s.entries, func(e string) bool { return e == at || strings.Trim(e, "[]") == host })
}
