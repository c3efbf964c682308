package kvevents

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The envelope of the first message that Dynamo 1.6.1 wrote. Only 400 of its 457 bytes
// were kept, including the header.
var capturedEnvelope = []byte("\x01\x00\x00\x01\xc4\x85\xacpublisher_id\xcf\x00\x16?6;\xd7u\xd3\xa8sequence\x00\xacpublished_at\xcf\x00\x00\x01\xa1\xfb\xa7\xee\xda\xa5topic\xa9kv-events\xa7payload\xc5\x01r\x91\x84\xa9worker_id\xcfS\x15\xa1\xfb\xa7\x82s\n\xacstorage_tier\xa6device\xb0residency_domain\xa6worker\xa5event\x83\xa8event_id\x01\xa4data\x81\xa6stored\x83\xabparent_hash\xc0\xaestart_position\xc0\xa6blocks\x94\x83\xaablock_hash\xcf\x90\x1dv\x90\x1b\xa9T\r\xabtokens_hash\xcf\x90\x1dv\x90\x1b\xa9T\r\xadmm_extra_info\xc0\x83\xaablock_hash\xcfg\r\x88\xcb\xf4]v\xab\xabt")

// The tokens of the same prompt, from the engine's own stream, and the engine hashes of
// its four blocks of 16.
var (
	capturedTokens = []uint32{1, 87, 426, 201, 1023, 71, 223, 402, 273, 77, 315, 283, 89, 80, 691, 90, 223, 76, 448, 719, 271, 308, 269, 590, 92, 91, 405, 73, 16, 481, 223, 402, 273, 77, 315, 283, 89, 80, 691, 90, 223, 76, 448, 719, 271, 308, 269, 590, 92, 91, 405, 73, 16, 697, 958, 858, 14, 296, 409, 260, 1010, 667, 16, 2}
	capturedHashes = []kvindex.EngineHash{10384586677097681933, 7425741770163320491, 2377789684860056493, 4276102178977709886}
)

// restOfEnvelope returns the bytes that the capture lacks, continued by the pattern of
// its last part.
func restOfEnvelope(t testing.TB) []byte {
	t.Helper()
	tokens := kvindex.AppendLocalHashes(nil, capturedTokens, 16, 1337)
	require.Equal(t, uint64(capturedHashes[0]), uint64(tokens[0]), "the first block's sequence hash is its local hash")
	var b bytes.Buffer
	put := func(name string, v uint64) {
		b.WriteByte(0xa0 | byte(len(name)))
		b.WriteString(name)
		b.WriteByte(0xcf)
		b.Write(be64(v))
	}
	nothing := func() { b.WriteString("\xadmm_extra_info\xc0") }
	put("tokens_hash", uint64(tokens[1]))
	nothing()
	for i := 2; i < 4; i++ {
		b.WriteByte(0x83)
		put("block_hash", uint64(capturedHashes[i]))
		put("tokens_hash", uint64(tokens[i]))
		nothing()
	}
	b.WriteString("\xa7dp_rank\x00")
	return b.Bytes()[len("\xabt"):]
}

func capturedWhole(t testing.TB) []byte {
	return append(bytes.Clone(capturedEnvelope), restOfEnvelope(t)...)
}

func TestTheCapturedMessageIsRead(t *testing.T) {
	whole := capturedWhole(t)
	require.Len(t, whole, 457, "as long as the one that was captured")
	frames := [][]byte{[]byte("kv-events"), {0x00, 0x16, 0x3f, 0x36, 0x3b, 0xd7, 0x75, 0xd3}, make([]byte, 8), whole}
	b, err := parsePlane(frames)
	require.NoError(t, err)
	e, err := ParseEnvelope(b)
	require.NoError(t, err)
	require.Equal(t, uint64(0x163f363bd775d3), e.Publisher)
	require.Zero(t, e.Sequence)
	require.Equal(t, "kv-events", string(e.Topic))
	bare, err := ParseEnvelope(whole[5:])
	require.NoError(t, err)
	require.Equal(t, e, bare, "NATS carries it without the header")

	var d PlaneDecoder
	events, malformed, err := d.Decode(e.Payload)
	require.NoError(t, err)
	require.Zero(t, malformed)
	require.Len(t, events, 1)
	require.Equal(t, worker.Rank{ID: 0x5315a1fba782730a}, events[0].Rank)
	require.Equal(t, uint64(1), events[0].ID)
	require.False(t, events[0].Refused)
	require.False(t, events[0].Stored.HasParent)
	require.Equal(t, kvindex.Device, events[0].Stored.Tier)
	// The plane has hashes for what the engine's stream has tokens for.
	raw := payload(t, 0, event{
		"type": "BlockStored", "block_hashes": capturedHashes, "parent_block_hash": nil,
		"token_ids": capturedTokens, "block_size": 16, "group_idx": 0,
	})
	require.Equal(t, decodeOne(t, NewDecoder(16, 0, false), raw).Stored, events[0].Stored)

	for n := range whole {
		_, err := ParseEnvelope(whole[:n])
		require.Error(t, err, "cut to %d bytes", n)
	}
	for n := range e.Payload {
		_, malformed, err := d.Decode(e.Payload[:n])
		require.Error(t, err)
		require.Equal(t, uint64(1), malformed)
	}
}

func TestFramesMustBeThoseOfTheEnvelope(t *testing.T) {
	e := envelope(t, 7, 3, "kv-events")
	good := [][]byte{[]byte("kv-events"), be64(7), be64(3), e}
	_, err := parsePlane(good)
	require.NoError(t, err)
	for name, frames := range map[string][][]byte{
		"three frames":        good[:3],
		"another publisher":   {good[0], be64(8), good[2], e},
		"another sequence":    {good[0], good[1], be64(4), e},
		"a short sequence":    {good[0], good[1], {3}, e},
		"no envelope":         {good[0], good[1], good[2], nil},
		"a later version":     {good[0], good[1], good[2], append([]byte{2}, e[1:]...)},
		"a header that lies":  {good[0], good[1], good[2], append([]byte{1, 0, 0, 0, 9}, e[5:]...)},
		"another length":      {good[0], good[1], good[2], append(bytes.Clone(e), 0)},
		"a map without topic": {good[0], good[1], good[2], mustPack(t, map[string]any{"publisher_id": 7, "sequence": 3, "payload": []byte{0x90}})},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parsePlane(frames)
			require.ErrorContains(t, err, "event plane")
		})
	}
}

func mustPack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	require.NoError(t, err)
	return b
}

// envelope packs events as a publisher on ZeroMQ does.
func envelope(t testing.TB, publisher, sequence uint64, topic string, events ...any) []byte {
	t.Helper()
	if events == nil {
		events = []any{}
	}
	m := mustPack(t, map[string]any{
		"publisher_id": publisher, "sequence": sequence, "published_at": 1, "topic": topic, "payload": mustPack(t, events),
	})
	return append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(m))), m...)
}

// routed makes a router event. The members of more replace those of the event, and
// "event" in more those of the inner event. A nil value removes a member.
func routed(id uint64, data any, more event) event {
	inner := event{"event_id": id, "data": data, "dp_rank": 0}
	e := event{"worker_id": uint64(1), "storage_tier": "device", "residency_domain": "worker"}
	for k, v := range more {
		switch {
		case k == "dp_rank" || k == "event_id":
			inner[k] = v
		case v == "absent":
			delete(e, k)
		default:
			e[k] = v
		}
	}
	if e["event"] == nil {
		e["event"] = inner
	}
	return e
}

func planeStored(parent any, blocks ...uint64) any {
	var bs []any
	for _, b := range blocks {
		bs = append(bs, event{"block_hash": b, "tokens_hash": 1000 + b, "mm_extra_info": nil})
	}
	return event{"stored": event{"parent_hash": parent, "start_position": nil, "blocks": bs}}
}

func planeRemoved(blocks ...uint64) any { return event{"removed": event{"block_hashes": blocks}} }

func TestEachRouterEventIsUsedOrRefusedWithItsReason(t *testing.T) {
	for name, c := range map[string]struct {
		event any
		want  string
	}{
		"a store":                           {routed(1, planeStored(nil, 5), nil), "stored on device"},
		"a store without a tier":            {routed(1, planeStored(nil, 5), event{"storage_tier": "absent"}), "stored on device"},
		"a store in pinned memory":          {routed(1, planeStored(nil, 5), event{"storage_tier": "host_pinned"}), "stored on host"},
		"a store on disk":                   {routed(1, planeStored(nil, 5), event{"storage_tier": "disk"}), "stored on disk"},
		"a store elsewhere":                 {routed(1, planeStored(nil, 5), event{"storage_tier": "external"}), "stored on external"},
		"a tier that is not known":          {routed(1, planeStored(nil, 5), event{"storage_tier": "tape"}), "unknown_medium"},
		"a removal":                         {routed(1, planeRemoved(5), nil), "removed"},
		"a clear":                           {routed(1, "cleared", nil), "cleared"},
		"a clear without a domain":          {routed(1, "cleared", event{"residency_domain": "absent"}), "cleared"},
		"a clear as a map":                  {routed(1, event{"cleared": nil}, nil), "cleared"},
		"a clear of the cache owner's":      {routed(1, "cleared", event{"residency_domain": "cache_owner"}), "foreign_owner"},
		"blocks of the cache owner":         {routed(1, planeStored(nil, 5), event{"residency_domain": "cache_owner"}), "foreign_owner"},
		"a domain that is not known":        {routed(1, planeStored(nil, 5), event{"residency_domain": "moon"}), "unknown_domain"},
		"a domain that is nil":              {routed(1, planeStored(nil, 5), event{"residency_domain": nil}), "unknown_domain"},
		"data that is not known":            {routed(1, event{"moved": nil}, nil), "unknown_event"},
		"a word that is not known":          {routed(1, "moved", nil), "unknown_event"},
		"data that is a number":             {routed(1, 3, nil), "malformed"},
		"data of two kinds":                 {routed(1, event{"stored": 1, "removed": 2}, nil), "malformed"},
		"a store without blocks":            {routed(1, event{"stored": event{"parent_hash": nil}}, nil), "malformed"},
		"a block without tokens":            {routed(1, event{"stored": event{"blocks": []any{event{"block_hash": 3}}}}, nil), "malformed"},
		"a removal without hashes":          {routed(1, event{"removed": event{}}, nil), "malformed"},
		"an event of nobody":                {routed(1, "cleared", event{"worker_id": "absent"}), "not even whose"},
		"an event without an id":            {routed(1, "cleared", event{"event": event{"data": "cleared"}}), "not even whose"},
		"an event of an impossible rank":    {routed(1, "cleared", event{"dp_rank": 1 << 20}), "not even whose"},
		"a positional event":                {[]any{1, "device", nil}, "not even whose"},
		"later fields":                      {routed(1, "cleared", event{"session_id": "s", "state_source": 4}), "cleared"},
		"a rank":                            {routed(1, "cleared", event{"dp_rank": 3}), "cleared"},
		"hashes below zero, which are cast": {routed(1, event{"removed": event{"block_hashes": []int64{-1}}}, nil), "removed"},
	} {
		t.Run(name, func(t *testing.T) {
			var d PlaneDecoder
			events, malformed, err := d.Decode(mustPack(t, []any{c.event, routed(9, "cleared", nil)}))
			require.NoError(t, err)
			if c.want == "not even whose" {
				require.Equal(t, uint64(1), malformed)
				require.Len(t, events, 1, "its neighbour is well")
				return
			}
			require.Zero(t, malformed)
			require.Len(t, events, 2, "its neighbour is well")
			require.Equal(t, uint64(9), events[1].ID)
			e := events[0]
			got := map[Kind]string{Stored: "stored on " + e.Stored.Tier.String(), Removed: "removed", Cleared: "cleared"}[e.Kind]
			if e.Refused {
				got = e.Why.String()
			}
			require.Equal(t, c.want, got)
		})
	}
}

// FuzzPlane checks that no input panics, that each event is whole, and that a second
// reading gives the same events.
func FuzzPlane(f *testing.F) {
	f.Add(capturedWhole(f))
	f.Add(capturedEnvelope)
	f.Add(envelope(f, 1, 2, "kv-events", routed(1, "cleared", nil), routed(2, planeRemoved(5), event{"dp_rank": 3}), 17))
	f.Add(envelope(f, 1, 3, "x", routed(1, planeStored(4, 5, 6), event{"residency_domain": nil})))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parsePlane([][]byte{nil, make([]byte, 8), make([]byte, 8), b})
		e, err := ParseEnvelope(b)
		if err != nil {
			e.Payload = b
		}
		var d PlaneDecoder
		events, malformed, err := d.Decode(e.Payload)
		if err != nil {
			require.Empty(t, events)
			require.Equal(t, uint64(1), malformed)
			return
		}
		var raw []msgpack.RawMessage
		require.NoError(t, msgpack.Unmarshal(e.Payload, &raw))
		require.Equal(t, len(raw), len(events)+int(malformed), "each is used, refused or counted")
		for _, e := range events {
			require.LessOrEqual(t, 2*len(e.Stored.Blocks)+len(e.Removed.Blocks), len(b))
			require.True(t, e.Refused || e.Kind != 0)
		}
	})
}

func TestDecodingThePlaneAllocatesNothingOnceWarm(t *testing.T) {
	var d PlaneDecoder
	b := capturedWhole(t)
	decode := func() {
		e, _ := ParseEnvelope(b)
		_, _, _ = d.Decode(e.Payload)
	}
	decode()
	require.Zero(t, testing.AllocsPerRun(50, decode))
}
