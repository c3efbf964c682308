// Package kvevents turns what engines publish about their KV caches into kvindex events.
// It has the wire codecs, the ZeroMQ transport, the sequence rules, and the [Subscriber]
// that keeps an index in step with the workers.
//
// The events of a rank come in one of three ways: from the address that its worker names
// in discovery, from a publisher that dials (Config.Bind), or through the channels of a
// Dynamo event plane (Config.PlaneZMQ, Config.Channels).
//
// # Engines' own streams
//
// vLLM and SGLang publish on a PUB socket, one per data-parallel rank, in the frames
// [topic, sequence u64 big-endian, msgpack batch]. [Decoder] reads both encodings of
// events (arrays of older versions, maps of newer ones) and all forms of hashes. Engine
// hashes are never recomputed: events carry token ids, and the local hashes are made of
// those and of what else a block depends on:
//
//   - the adapter's name; a store with an adapter id and no name is refused;
//   - the cache salt: SGLang's field, or a key of the first block, either the bare salt
//     as vLLM writes it, or with a prefix as Dynamo's vLLM does. Engines name the salt
//     with the first block of a prompt only, so later blocks take it from their parent.
//     If one engine hash was stored under two salts, the blocks that follow it are left
//     out. Of the blocks that one hash names under several adapters or salts, the index
//     has the first; RankStatus.LeftOut counts such hashes;
//   - pictures and other multimodal objects. vLLM tells the name of each and where it
//     begins; the name is hashed. Dynamo's workers pass a 64-bit hash of each and no
//     place. A block with keys of any other kind is left out, with the blocks that follow
//     it. RankStatus.LeftOut counts such blocks until the engine removes them. All other
//     blocks are right, so the rank is not degraded;
//   - pairs of tokens (EAGLE): a block is hashed over its tokens and the first token of
//     the next block, as are prompts for a worker that is registered with EAGLE. Blocks
//     that do not agree with the worker's registration are refused: no prompt could match
//     them.
//
// Events are left out if they are about another KV cache group than the main attention's,
// about another owner's blocks, or about blocks that are not local. An engine with such
// groups delivers a prompt only if it holds the prompt's blocks in all of them, so it may
// deliver less than the index says: RankStatus.OtherGroups. Where no store of a rank could be
// used, its events tell nothing: see Subscriber.Tells. Each event that is
// not used is counted under a [Reason]. A reason that is not [Reason.Normal] means that
// the index lacks something: RankStatus.Missing counts those until the worker clears its
// cache or the rank is reset.
//
// Replay: a DEALER asks the rank's ROUTER for all messages from a sequence on; sequence
// 2^64-1 marks the end. See replay.go for both framings.
//
// # Dynamo's event plane
//
// A message is an [Envelope] with an array of router events. Each event names its worker,
// its rank and its id, and has local hashes of the same kind as ours instead of tokens. A
// worker is known by its instance id, which is its worker.ID. [Cursor] judges the ids.
// Each rank counts from 0. Nothing can be replayed, so a gap resets the rank and marks it
// degraded until its worker clears its cache or restarts. A publisher that was not heard
// before is the rank's next life. The publisher's own sequence shows whether the first
// event seen is the first that was sent. The loss of the last events of a burst is found
// only with the next event.
//
// # Sequence
//
// [Tracker] decides, as a pure state machine, what each message means:
//
//   - contiguous: apply it;
//   - gap: ask for a replay. The old blocks stay meanwhile, and messages that arrive are
//     buffered. The buffered ones are judged after the replay and before newer ones, in
//     turns as large as those of live messages. If the publisher cannot replay so far
//     back, the rank is reset and marked degraded: answers about it are then true but
//     incomplete;
//   - sequence going back, or a replay that shows another message under the last sequence
//     seen: the publisher has restarted, and the rank's blocks are dropped.
//
// Every replay begins with the last sequence seen, not the one after it, so that the
// answer proves that the publisher is still the same. The same question is asked shortly
// after connecting and then at each quiet interval. Between these questions a quiet
// publisher is asked every 1.5 s for the messages after the last sequence seen. If all
// was heard, the answer is next to nothing. The loss of a stream's last message is
// therefore found within two seconds. RankStatus.AsOf is the last time at which it was
// certain that no message is missing. For a publisher without a replay port that is the
// time of its last message, so it may be long ago.
//
// # Restarts of this process
//
// [Subscriber.Dump] writes the blocks that the index holds of each rank and the position
// of the rank's stream, both of one instant: the rank's events wait while it is copied.
// [Subscriber.Resume] gives a dump to the next process. That process takes a rank's
// blocks only if the worker is known under the same id, at the same endpoint, and
// publishes at the same place, and only once the stream has proved to be the one at which
// the dump stopped. The proof is the one after a reconnect: the replay shows the last
// message applied, with the same payload. Later messages are replayed then. If nothing
// can be replayed, the first message heard must be the very next one; on an event plane,
// the first new event must be the next one of the same publisher. Until then nothing of
// the dump is in the index, RankStatus.Kept says how many blocks wait, and the rank's
// state is not [StateConnected]. A proof that fails is a reset, with its cause. A replay
// that does not reach back leaves the rank degraded, as it does after a reconnect. Blocks
// that were not judged within Config.Keep after they were copied are forgotten.
//
// # Transport
//
// The ZMTP client is our own (3.1, NULL, SUB and DEALER only); docs/decisions/0007-zmq.md
// says why. The client reconnects by itself, and each connection starts with a replay.
// The maximum frame size and the queue between socket and index bound what is read. A
// subscriber that falls behind fills the publisher's queue, and the publisher drops
// messages. That is a gap, and it is replayed.
//
// # What it does not do
//
// It does not choose workers, answer queries or resolve names, and does not ask Dynamo's
// workers for missed events (they offer that on their request plane). A salted block
// whose parent was stored before this process listened is hashed without its salt and
// matches no salted request: too little overlap, never too much.
package kvevents
