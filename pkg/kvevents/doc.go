// Package kvevents turns what engines publish about their KV caches into
// kvindex events: the wire codec, the ZeroMQ transport, the sequence rules, and
// the [Subscriber] that keeps an index in step with the workers.
//
// # Wire
//
// vLLM and SGLang publish on a PUB socket, one per data-parallel rank, frames
// [topic, sequence u64 big-endian, msgpack batch]. [Decoder] takes both
// encodings of events (arrays of old, maps of today) and all forms of hashes.
// Engine hashes are never recomputed: events carry token ids and ours are
// hashed from those. What an event cannot be used for has a [Reason], is
// counted, and is never dropped in silence.
//
// Replay: a DEALER asks the rank's ROUTER for everything from a sequence on;
// the end is marked by sequence 2^64-1. See zmq.go for both framings.
//
// # Sequence
//
// [Tracker] decides, as a pure state machine, what each message means:
//
//   - contiguous: apply;
//   - gap: replay, keeping the old blocks meanwhile and buffering what arrives;
//     where the publisher cannot replay so far back, the rank is reset and
//     marked degraded: what is answered for it is then true but incomplete;
//   - sequence going back, or a replay that shows another message under the
//     last sequence seen: the publisher has restarted; the rank's blocks are
//     dropped.
//
// Every replay asks from the last sequence seen, not the one after it, so that
// the answer proves that it is still the same publisher. The same is asked once
// shortly after connecting and then at each quiet interval, so that a loss at
// the very end of a burst is found as well.
//
// # Transport
//
// The ZMTP client is our own (3.1, NULL, SUB and DEALER only). A library that
// reconnects by itself hides exactly what must be known here: that messages may
// be missing from here on. Ours reconnects explicitly, and each connection
// starts with a replay. Reading is bounded by the maximum frame size and the
// queue between socket and index; a subscriber that falls behind fills the
// publisher's queue, which drops, which is a gap, which is replayed.
//
// # What it does not do
//
// It does not choose workers, answer queries or resolve names. It keeps no cache
// salt per block: a block whose salt or adapter its own event does not name is
// hashed without one and then matches no salted request (too little overlap,
// never too much). EAGLE's bigram blocks and multimodal keys are refused with
// a reason.
package kvevents
