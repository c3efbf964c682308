package etcd

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func newJoiner() *joiner { return &joiner{instances: "v1/instances/", cards: "v1/mdc/"} }

// Verbs of testdata/dynamo. A line is "put KEY VALUE" or "delete KEY"; a value is JSON,
// without spaces in front. Both verbs print the workers of the reducer afterwards, as
// records.
//
//	list      the lines are a listing: only puts
//	change    the lines are one revision
func TestDynamoScenarios(t *testing.T) {
	var j *joiner
	var r discovery.Reducer
	revision := int64(0)
	datadriven.RunTest(t, "testdata/dynamo", func(t *testing.T, d *datadriven.TestData) string {
		revision++
		var events []*clientv3.Event
		var kvs []*mvccpb.KeyValue
		for line := range strings.Lines(d.Input) {
			verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			key, value, _ := strings.Cut(rest, " ")
			ev := &clientv3.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: revision}}
			if verb == "delete" {
				ev.Type = clientv3.EventTypeDelete
			}
			events, kvs = append(events, ev), append(kvs, ev.Kv)
		}
		var b strings.Builder
		switch d.Cmd {
		case "list":
			j = newJoiner()
			require.NoError(t, r.Apply(discovery.List{Revision: uint64(revision), Entries: j.list(kvs)}))
		case "change":
			ops := j.change(events)
			for _, op := range ops {
				if op.Gone {
					fmt.Fprintf(&b, "delete %s\n", op.Key)
				} else {
					fmt.Fprintf(&b, "put %s\n", op.Key)
				}
			}
			require.NoError(t, r.Apply(discovery.Batch{Revision: uint64(revision), Ops: ops}))
		default:
			d.Fatalf(t, "verb %q is unknown", d.Cmd)
		}
		for _, e := range r.Entries() {
			fmt.Fprintf(&b, "%s at %d\n", e.Key, e.Revision)
			if e.Worker != nil {
				line, err := record.Marshal(e.Worker)
				require.NoError(t, err)
				fmt.Fprintf(&b, "  %s\n", line)
			}
			if e.Fault != "" {
				fmt.Fprintf(&b, "  fault: %s\n", e.Fault)
			}
		}
		if len(r.Entries()) == 0 {
			b.WriteString("no workers\n")
		}
		return b.String()
	})
}

const (
	someInstance = `{"type":"Endpoint","component":"c","endpoint":"e","namespace":"n","instance_id":%d,"transport":{"tcp":"127.0.0.1:%d/x/n/c/e"}}`
	someCard     = `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":%d,"card_json":{"display_name":"m%d","kv_cache_block_size":16,"worker_type":"decode"}}`
)

// A change must have the same result as a new listing of everything.
func TestWhatFollowsFromChangesIsWhatAListingSays(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		j := newJoiner()
		var followed discovery.Reducer
		require.NoError(t, followed.Apply(discovery.List{Revision: 1, Entries: j.list(nil)}))
		held := map[string]*mvccpb.KeyValue{}
		for revision := int64(2); revision < 40; revision++ {
			var events []*clientv3.Event
			for range 1 + rng.IntN(3) {
				id := 1 + rng.IntN(3)
				key := fmt.Sprintf("v1/instances/n/c/e/%x", id)
				value := fmt.Sprintf(someInstance, id, 1+rng.IntN(9))
				if kind := rng.IntN(4); kind > 0 {
					key = fmt.Sprintf("v1/mdc/n/c/e/%x", id) + []string{"", "", "/lora", "/other"}[kind]
					value = fmt.Sprintf(someCard, id, rng.IntN(9))
				}
				if slices.ContainsFunc(events, func(ev *clientv3.Event) bool { return string(ev.Kv.Key) == key }) {
					continue // etcd writes a key at most once in a revision
				}
				ev := &clientv3.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: revision}}
				if held[key] != nil && rng.IntN(2) == 0 {
					ev.Type = clientv3.EventTypeDelete
					delete(held, key)
				} else {
					held[key] = ev.Kv
				}
				events = append(events, ev)
			}
			require.NoError(t, followed.Apply(discovery.Batch{Revision: uint64(revision), Ops: j.change(events)}))

			var kvs []*mvccpb.KeyValue
			for _, kv := range held {
				kvs = append(kvs, kv)
			}
			want := newJoiner().list(kvs)
			have := followed.Entries()
			require.Len(t, have, len(want))
			for i := range want {
				require.Equal(t, want[i].Key, have[i].Key)
				require.Equal(t, want[i].Worker, have[i].Worker)
			}
		}
		for _, p := range j.parts {
			require.False(t, p.instance == nil && len(p.cards) == 0, "what is empty is forgotten")
		}
	}
}

func TestDynamoConfigsAreRefusedWithEveryFaultNamed(t *testing.T) {
	_, err := NewDynamo(&clientv3.Client{}, DynamoConfig{Instances: "v1", Cards: "v1/mdc", Silence: 1})
	require.ErrorContains(t, err, "silence 1ns")
	require.ErrorContains(t, err, "expected neither within the other")
	_, err = NewDynamo(&clientv3.Client{}, DynamoConfig{Instances: "/v1"})
	require.ErrorContains(t, err, `prefix "/v1"`)
	_, err = NewDynamo(nil, DynamoConfig{})
	require.ErrorContains(t, err, "expected a client")
}

// FuzzDynamo: no pair of values panics. An accepted worker has the id of the key.
func FuzzDynamo(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(someInstance, 7, 8000)), []byte(fmt.Sprintf(someCard, 7, 1)))
	f.Add([]byte(`{"type":"Endpoint","instance_id":7,"transport":{"nats_tcp":"x"}}`), []byte(`{"type":"Model","instance_id":7,"card_json":null}`))
	f.Add([]byte(`{"type":"Endpoint","instance_id":7.0,"transport":{"tcp":"[::1]:9"}}`), []byte(`{"card_json":{"needs":[[]],"runtime_config":{"disaggregated_endpoint":{"bootstrap_port":70000}}}}`))
	f.Fuzz(func(t *testing.T, instance, card []byte) {
		j := newJoiner()
		es := j.list([]*mvccpb.KeyValue{
			{Key: []byte("v1/instances/n/c/e/7"), Value: instance}, {Key: []byte("v1/mdc/n/c/e/7"), Value: card}, {Key: []byte("v1/mdc/n/c/e/7/x"), Value: card},
		})
		require.Len(t, es, 1)
		require.NotEqual(t, es[0].Worker == nil, es[0].Fault == "", "one or the other")
		if w := es[0].Worker; w != nil {
			require.Equal(t, worker.ID(7), w.ID)
			require.True(t, w.Fronted)
			require.True(t, json.Valid(instance) && json.Valid(card))
		}
	})
}

// FuzzRecord: no key and value panics. An accepted worker has the id of the key, and a
// view accepts it.
func FuzzRecord(f *testing.F) {
	f.Add("7", []byte(`{"id":7,"role":"prefill","engine":"sglang","models":["m"],"endpoint":"10.0.0.7:1","block_size":16,"x":{"y":[1]}}`))
	f.Add("18446744073709551615", []byte(`{"id":"18446744073709551615"}`))
	f.Add("", []byte("id: 7\nid: 7"))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		p := plain{"baton/v1/workers/"}
		e := p.entry(&mvccpb.KeyValue{Key: []byte(p.dir + name), Value: value})
		require.NotEqual(t, e.Worker == nil, e.Fault == "", "one or the other")
		if e.Worker != nil {
			require.Equal(t, name, e.Worker.ID.String())
			require.NoError(t, e.Worker.Validate())
		}
	})
}
