package plugin

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestTheMetricOfSilentWorkersSaysAfterWhichTime(t *testing.T) {
	i := slices.IndexFunc(telemetry.Metrics(), func(m telemetry.Metric) bool { return m.Name == telemetry.MetricKVSilent })
	require.Contains(t, telemetry.Metrics()[i].Help, fmt.Sprintf("for %.0f s or more", eventsGrace.Seconds()))
}

func (r *running) get(path string) string {
	r.t.Helper()
	resp, err := http.Get("http://" + r.page.Addr().String() + path)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return string(b)
}

// TestWhatComesByDynamosEventPlaneIsShown: blocks of a worker that names no
// address for its events, and what is refused of others.
func TestWhatComesByDynamosEventPlaneIsShown(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	pub := zmq4.NewPub(ctx)
	require.NoError(t, pub.Listen("tcp://127.0.0.1:0"))
	channel := "tcp://" + pub.Addr().String()
	r := startPlugin(t, "events: {dynamo: {zmq: [\""+channel+"\"]}}\n")
	t.Cleanup(func() {
		_ = pub.Close()
		cancel()
	})
	r.writeWorkers("workers:\n- {id: 7, role: decode, engine: vllm, models: [m], endpoint: \"127.0.0.1:1\", block_size: 16}\n")
	type m = map[string]any
	stored := func(id worker.ID, event uint64) m {
		return m{"worker_id": id, "event": m{"event_id": event, "data": m{"stored": m{"blocks": []m{{"block_hash": event, "tokens_hash": event}}}}}}
	}
	seq := uint64(0)
	require.Eventually(t, func() bool {
		payload, err := msgpack.Marshal([]m{stored(7, seq), stored(8, seq)})
		require.NoError(t, err)
		e, err := msgpack.Marshal(m{"publisher_id": 1, "sequence": seq, "topic": "kv-events", "payload": payload})
		require.NoError(t, err)
		frame := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(e))), e...)
		be := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
		_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("kv-events"), be(1), be(seq), frame))
		seq++
		state := r.get("/debug/state")
		return strings.Contains(state, `"via": "`+channel+`"`) && strings.Contains(state, `"name": "`+channel+`"`)
	}, 20*time.Second, 5*time.Millisecond)
	require.Contains(t, r.get("/debug/state"), `"unknown_worker"`)
	require.Contains(t, r.get("/"), channel)
	require.True(t, r.plugin.events.Tells(worker.Rank{ID: 7}))
	blocks, _ := r.plugin.indexed(worker.Rank{ID: 7})
	require.Positive(t, blocks)
	require.Contains(t, r.get("/metrics"), `baton_kv_refused_total{reason="unknown_worker"} `)
}

func TestWhatThePageSaysOfEvents(t *testing.T) {
	refused := kvevents.Refusals{kvevents.PartialBlock: 3, kvevents.TokenCount: 1, kvevents.BlockSizeMismatch: 2}
	for name, c := range map[string]struct {
		status kvevents.RankStatus
		want   admin.EventStream
	}{
		"none": {kvevents.RankStatus{}, admin.EventStream{}},
		"a dump waits for a plane": {
			kvevents.RankStatus{Kept: 5},
			admin.EventStream{State: admin.Connecting, Degraded: true, Reason: "5 blocks from before the restart are not used until the events confirm them"},
		},
		"in step":     {kvevents.RankStatus{State: kvevents.StateConnected, LastSeq: 4, Seen: true, Via: "x"}, admin.EventStream{State: admin.Connected, LastSequence: new(uint64(4)), Via: "x"}},
		"replaying":   {kvevents.RankStatus{State: kvevents.StateReplaying}, admin.EventStream{State: admin.Replaying, Degraded: true, Reason: "it catches up"}},
		"never there": {kvevents.RankStatus{State: kvevents.StateConnecting, LastError: "kvevents: connect to x: refused"}, admin.EventStream{State: admin.Connecting, Degraded: true, Reason: "connect to x: refused"}},
		"gone":        {kvevents.RankStatus{State: kvevents.StateConnecting, LastError: "EOF", Messages: 1}, admin.EventStream{State: admin.Lost, Degraded: true, Reason: "EOF"}},
		"degraded":    {kvevents.RankStatus{State: kvevents.StateDegraded}, admin.EventStream{State: admin.Connected, Degraded: true, Reason: "some events were lost"}},
		"partial blocks are normal": {
			kvevents.RankStatus{State: kvevents.StateConnected, Refused: kvevents.Refusals{kvevents.PartialBlock: 3}},
			admin.EventStream{State: admin.Connected, Refused: map[string]uint64{"partial_block": 3}},
		},
		"blocks of another size": {
			kvevents.RankStatus{State: kvevents.StateConnected, Refused: refused, Missing: refused, Told: kvevents.Told{BlockSize: 32}},
			admin.EventStream{State: admin.Connected, Degraded: true, Reason: "events refused: block_size_mismatch" + remedy(kvevents.BlockSizeMismatch, &kvevents.Told{BlockSize: 32}), Refused: map[string]uint64{"partial_block": 3, "token_count": 1, "block_size_mismatch": 2}},
		},
		"no block can be used": {
			kvevents.RankStatus{State: kvevents.StateConnected, Refused: kvevents.Refusals{kvevents.ForeignGroup: 3}, Told: kvevents.Told{Unusable: true, Why: kvevents.ForeignGroup}},
			admin.EventStream{State: admin.Connected, Degraded: true, Reason: "all events about stored blocks were refused, the latest as foreign_group: what the rank holds is guessed", Refused: map[string]uint64{"foreign_group": 3}},
		},
		"an event larger than the index": {
			kvevents.RankStatus{State: kvevents.StateConnected, Refused: kvevents.Refusals{kvevents.NoRoom: 1}, Missing: kvevents.Refusals{kvevents.NoRoom: 1}},
			admin.EventStream{State: admin.Connected, Degraded: true, Reason: "events refused: no_room", Refused: map[string]uint64{"no_room": 1}},
		},
		"blocks that cannot be read": {
			kvevents.RankStatus{State: kvevents.StateConnected, LeftOut: 2, Refused: kvevents.Refusals{kvevents.ExtraKeys: 2}},
			admin.EventStream{State: admin.Connected, Reason: "2 of its blocks are left out: they depend on what cannot be read, such as a picture, or share a hash with one of another adapter or salt", Refused: map[string]uint64{"extra_keys": 2}},
		},
		"refused before the worker cleared": {
			kvevents.RankStatus{State: kvevents.StateConnected, Refused: kvevents.Refusals{kvevents.TokenCount: 1}},
			admin.EventStream{State: admin.Connected, Refused: map[string]uint64{"token_count": 1}},
		},
		"token pairs of a worker without EAGLE": {
			kvevents.RankStatus{State: kvevents.StateConnected, Refused: kvevents.Refusals{kvevents.EagleMismatch: 1}, Missing: kvevents.Refusals{kvevents.EagleMismatch: 1}},
			admin.EventStream{State: admin.Connected, Degraded: true, Reason: "events refused: eagle_mismatch: expected --eagle of extproc register, or eagle in a workers file, as the engine speculates", Refused: map[string]uint64{"eagle_mismatch": 1}},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, eventStream(&c.status)) })
	}
}

func TestOnlyAWholeStreamIsBelieved(t *testing.T) {
	for s, want := range map[kvevents.State]bool{
		kvevents.StateNone: false, kvevents.StateConnected: false,
		kvevents.StateConnecting: true, kvevents.StateReplaying: true, kvevents.StateDegraded: true,
	} {
		require.Equal(t, want, doubtful(s), s.String())
		require.Equal(t, want, eventStream(&kvevents.RankStatus{State: s}).Degraded, "the page says of %s what the pick counts", s)
	}
}

// TestEventsThatDoNotComeAreTrouble: nothing listens at the port that a worker names.
func TestEventsThatDoNotComeAreTrouble(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	require.NoError(t, l.Close())
	_, port, _ := net.SplitHostPort(at)
	r := startPlugin(t, "")
	r.writeWorkers("workers:\n- {id: 7, role: decode, engine: vllm, models: [m], endpoint: \"127.0.0.1:1\", block_size: 16, kv_events: {port: " + port + "}}\n" +
		"- {id: 8, role: decode, engine: vllm, models: [m], endpoint: \"127.0.0.1:2\", block_size: 16}\n")
	const refused = "connection refused"
	require.Eventually(t, func() bool { return strings.Contains(r.get("/debug/state"), refused) }, 20*time.Second, 5*time.Millisecond)
	metrics := r.get("/metrics")
	require.Contains(t, metrics, `baton_kv_event_streams{state="connecting"} 1`)
	require.Contains(t, metrics, `baton_kv_event_streams{state="none"} 1`)
	require.Contains(t, metrics, `baton_kv_event_streams{state="lost"} 0`)
	require.Contains(t, metrics, "baton_kv_events_silent_workers 0\n", "by the same rule as below")

	snap, now := r.plugin.board.Load().Snapshot, time.Now()
	var s admin.WorkerRow
	for _, x := range r.plugin.events.Status() {
		if x.Rank.ID == 7 {
			s = r.plugin.workerRow(snap.Worker(7), nil, map[worker.Rank]kvevents.RankStatus{x.Rank: x}, admin.FactsRow{}, now.Add(eventsGrace))
		}
	}
	require.True(t, s.Ranks[0].Events.Late)
	require.True(t, s.Ranks[0].Events.Degraded)
}

func TestOnlyOfWorkersThatAnswerEventsAreExpected(t *testing.T) {
	for name, c := range map[string]struct {
		draining bool
		health   admin.Health
		facts    string
		want     bool
	}{
		"one in service":                    {health: admin.Healthy, want: true},
		"one whose facts are known":         {health: admin.Healthy, facts: "known", want: true},
		"one that is set aside":             {health: admin.Aside},
		"one that has not answered yet":     {health: admin.Unheard},
		"one that leaves":                   {health: admin.Draining, draining: true},
		"one that has not said what it is":  {health: admin.Healthy, facts: "unknown"},
		"one that does not answer any more": {health: admin.Healthy, facts: "failing"},
	} {
		t.Run(name, func(t *testing.T) {
			got := expected(&worker.Worker{Draining: c.draining}, &standing{Health: c.health}, &admin.FactsRow{State: c.facts})
			require.Equal(t, c.want, got)
		})
	}
}
