package etcd

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// joiner makes workers from Dynamo's instances and cards. It is pure.
//
// An entry has the key of the instance and no version, since it changes with any of
// several keys, each of which has a version of its own. So the reducer cannot find a
// lost write at the next write. The follower still finds it, since it compares the
// whole range.
type joiner struct {
	instances, cards string // prefixes, with the last slash; set at construction

	parts map[place]*parts
}

// place is what the keys of an instance and of its cards have in common.
type place struct {
	namespace, component, endpoint string
	id                             worker.ID
}

// parts are the keys of one place. There may be no instance, or no cards.
type parts struct {
	instance *part
	cards    map[string]*part // by the suffix of the key; "" is the card of the model itself
	known    bool             // the set has an entry for the place
}

// part is the value of one key.
type part struct {
	key      string
	value    []byte
	revision uint64
}

func (j *joiner) list(kvs []*mvccpb.KeyValue) []discovery.Entry {
	j.parts = make(map[place]*parts)
	for _, kv := range kvs {
		j.set(kv)
	}
	var es []discovery.Entry
	for at, p := range j.parts {
		var e discovery.Entry
		e, p.known = p.join(at)
		if p.known {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, func(a, b discovery.Entry) int { return strings.Compare(a.Key, b.Key) })
	return es
}

func (j *joiner) change(events []*clientv3.Event) []discovery.Op {
	var touched []place
	for _, ev := range events {
		var at place
		var ok bool
		if ev.Type == clientv3.EventTypeDelete {
			at, ok = j.unset(string(ev.Kv.Key))
		} else {
			at, ok = j.set(ev.Kv)
		}
		if ok && !slices.Contains(touched, at) {
			touched = append(touched, at)
		}
	}
	var ops []discovery.Op
	for _, at := range touched {
		p := j.parts[at]
		e, is := p.join(at)
		switch {
		case is:
			ops = append(ops, discovery.Put(e))
		case p.known:
			ops = append(ops, discovery.Delete(j.key(at), 0))
		}
		p.known = is
		if p.instance == nil && len(p.cards) == 0 {
			delete(j.parts, at)
		}
	}
	return ops
}

// set keeps a key's value. False means that the key is neither an instance nor a card.
func (j *joiner) set(kv *mvccpb.KeyValue) (place, bool) {
	at, suffix, card, ok := j.place(string(kv.Key))
	if !ok {
		return at, false
	}
	p := j.parts[at]
	if p == nil {
		p = &parts{cards: make(map[string]*part)}
		j.parts[at] = p
	}
	v := &part{key: string(kv.Key), value: kv.Value, revision: uint64(kv.ModRevision)}
	if card {
		p.cards[suffix] = v
	} else {
		p.instance = v
	}
	return at, true
}

// unset removes a key. False means that the key was not there.
func (j *joiner) unset(key string) (place, bool) {
	at, suffix, card, ok := j.place(key)
	p := j.parts[at]
	if !ok || p == nil {
		return at, false
	}
	if card {
		delete(p.cards, suffix)
	} else {
		p.instance = nil
	}
	return at, true
}

// place reads a key: "<prefix><namespace>/<component>/<endpoint>/<id in hex>", for a
// card possibly followed by "/<suffix>". ok is false for any other key.
func (j *joiner) place(key string) (at place, suffix string, card, ok bool) {
	rest, ok := strings.CutPrefix(key, j.instances)
	if !ok {
		rest, card = strings.CutPrefix(key, j.cards)
		if !card {
			return at, "", false, false
		}
	}
	names := strings.Split(rest, "/")
	if len(names) != 4 && (!card || len(names) != 5) {
		return at, "", false, false
	}
	id, err := strconv.ParseUint(names[3], 16, 64)
	if err != nil || id == 0 || strconv.FormatUint(id, 16) != names[3] {
		return at, "", false, false
	}
	if len(names) == 5 {
		suffix = names[4]
		if suffix == "" {
			return at, "", false, false
		}
	}
	return place{names[0], names[1], names[2], worker.ID(id)}, suffix, card, true
}

// key returns the key of the instance. Two different keys never have the same place.
func (j *joiner) key(at place) string {
	return j.instances + at.namespace + "/" + at.component + "/" + at.endpoint + "/" + strconv.FormatUint(uint64(at.id), 16)
}

// join returns the entry that the parts make. False means that the instance or its card
// is missing.
func (p *parts) join(at place) (discovery.Entry, bool) {
	own := p.cards[""]
	if p.instance == nil || own == nil {
		return discovery.Entry{}, false
	}
	e := discovery.Entry{Key: p.instance.key, Revision: p.instance.revision}
	for _, c := range p.cards {
		e.Revision = max(e.Revision, c.revision)
	}
	w, err := p.worker(at, own)
	if err != nil {
		e.Fault = err.Error()
		return e, true
	}
	e.Worker = w
	return e, true
}

func (p *parts) worker(at place, own *part) (*worker.Worker, error) {
	addr, err := readInstance(p.instance.value, at.id)
	if err != nil {
		return nil, err
	}
	w, err := readCard(own.value, at.id)
	if err != nil {
		return nil, err
	}
	w.Endpoint, w.Namespace = addr, at.namespace
	w.Deployment = at.namespace + "/" + at.component + "/" + at.endpoint
	for _, suffix := range slices.Sorted(maps.Keys(p.cards)) {
		if suffix == "" {
			continue
		}
		lora, err := readCard(p.cards[suffix].value, at.id)
		if err != nil {
			return nil, fmt.Errorf("adapter %q: %w", suffix, err)
		}
		if name := lora.Models[0]; !slices.Contains(w.Models, name) {
			w.Models, w.Adapters = append(w.Models, name), append(w.Adapters, name)
		}
	}
	return w, nil
}
