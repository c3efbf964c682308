// Package kvevents turns what engines publish about their KV caches into
// kvindex events: the wire codecs, the ZeroMQ transport, the sequence rules, and
// the [Subscriber] that keeps an index in step with the workers.
//
// Events of a rank come by one of three ways: from the address that its worker
// names in discovery, from a publisher that dials (Config.Bind), or by the
// channels of a Dynamo event plane (Config.PlaneZMQ, Config.Channels).
//
// # Engines' own streams
//
// vLLM and SGLang publish on a PUB socket, one per data-parallel rank, frames
// [topic, sequence u64 big-endian, msgpack batch]. [Decoder] takes both
// encodings of events (arrays of old, maps of today) and all forms of hashes.
// Engine hashes are never recomputed: events carry token ids and ours are
// hashed from those, with what else a block depends on:
//
//   - the adapter's name; an id without a name is refused;
//   - the cache salt: SGLang's field, or a key of the first block, bare as vLLM
//     writes it, or as Dynamo's vLLM does. Engines name it with the first block
//     of a prompt only, so blocks have it by their parent; where one engine hash
//     was stored under two salts, what follows it is left out;
//   - pictures and the like, as vLLM tells them, each by the hash of its name and by
//     where it begins, or by their 64-bit hashes alone, as Dynamo's workers pass them.
//     A block with keys of any other kind is left out with those that follow it.
//     RankStatus.LeftOut counts such blocks until the engine removes them; all
//     others are right, so the rank is not degraded;
//   - pairs of tokens (EAGLE): a block is hashed over its tokens and the next,
//     as prompts for a worker that is registered with EAGLE are. Blocks that are
//     not as the worker is registered are refused: no prompt could match them.
//
// What is not of the main attention's group, not local, or another owner's is
// left out. What an event cannot be used for has a [Reason], is counted, and is
// never dropped in silence. A reason that is not [Reason.Normal] means that the
// index lacks something: RankStatus.Missing counts those until the worker clears
// its cache or the rank is reset.
//
// Replay: a DEALER asks the rank's ROUTER for everything from a sequence on;
// the end is marked by sequence 2^64-1. See replay.go for both framings.
//
// # Dynamo's event plane
//
// A message is an [Envelope] with an array of router events, each of which names
// its worker, rank and id and brings our kind of local hash, no tokens. A worker
// is known by its instance id, which is its worker.ID. [Cursor] judges the ids:
// each rank counts from 0; there is no replay here, so a gap resets the rank and
// marks it degraded until its worker clears its cache or restarts. A publisher
// that was not heard before is the next life of the rank's. Whether the first
// event seen is the first there was follows from the publisher's own sequence.
// A loss at the very end of a burst is found with the next event only.
//
// # Sequence
//
// [Tracker] decides, as a pure state machine, what each message means:
//
//   - contiguous: apply;
//   - gap: replay, keeping the old blocks meanwhile and buffering what arrives, which
//     is judged afterwards, before what is newer, and no more at once than of live
//     messages that wait; where the publisher cannot replay so far back, the rank is reset and
//     marked degraded: what is answered for it is then true but incomplete;
//   - sequence going back, or a replay that shows another message under the
//     last sequence seen: the publisher has restarted; the rank's blocks are
//     dropped.
//
// Every replay asks from the last sequence seen, not the one after it, so that
// the answer proves that it is still the same publisher. The same is asked once
// shortly after connecting and then at each quiet interval. Between these a quiet
// publisher is asked every 1.5 s for what follows the last sequence seen, which is
// next to nothing where all was heard: so the loss of a stream's last message is
// found within two seconds. RankStatus.AsOf says when it was known last that
// nothing is missing; of a publisher without a replay port that is its last
// message, and it grows old.
//
// # Restarts of this process
//
// [Subscriber.Dump] writes what the index holds of each rank and where the rank's
// stream stands, the two of one instant: the rank's events wait while it is
// copied. [Subscriber.Resume] gives a dump to the next process, which takes a
// rank's blocks only where its worker is known under the same id, at the same
// endpoint, and publishes at the same place, and only when the stream has proved to be the one that the dump
// stopped at. The proof is that of a reconnect: the replay shows the last message
// applied, with the same payload. What came after it is replayed then. Where
// nothing can be replayed, the first message heard must be the very next one; on
// an event plane the first event that is new, of the same publisher. Until then
// nothing of the dump is in the index, RankStatus.Kept says how much waits, and
// the rank is in a state other than [StateConnected]. A proof that fails is a
// reset, with its cause. A replay that does not reach back leaves the rank
// degraded, as ever. What Config.Keep after it was copied has not been judged is
// forgotten.
//
// # Transport
//
// The ZMTP client is our own (3.1, NULL, SUB and DEALER only); why is in
// docs/decisions/0007-zmq.md. It reconnects explicitly, and each connection
// starts with a replay. Reading is bounded by the maximum frame size and the
// queue between socket and index; a subscriber that falls behind fills the
// publisher's queue, which drops, which is a gap, which is replayed.
//
// # What it does not do
//
// It does not choose workers, answer queries or resolve names, and does not ask
// Dynamo's workers for what was missed (their request plane). A salted block
// whose parent was stored before this process listened is hashed without its
// salt and matches no salted request: too little overlap, never too much.
package kvevents
