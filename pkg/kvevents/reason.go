package kvevents

// Reason says why an event, or a part of one, was not used.
type Reason uint8

// The reasons. The set is closed: each is a label of a metric.
const (
	// Malformed: the bytes are not msgpack, or not with the fields that engines write.
	Malformed Reason = iota
	// UnknownEvent: a tag other than the three known ones.
	UnknownEvent
	// BlockSizeMismatch: the engine's blocks have another size than the worker is
	// registered with. No prompt can match: an operator must act.
	BlockSizeMismatch
	// EagleMismatch: the worker publishes blocks of token pairs and is registered without
	// EAGLE, or blocks of tokens and is registered with it. No prompt can match: an
	// operator must act.
	EagleMismatch
	// PartialBlock: a block shorter than a whole one, from a publisher that has sent
	// whole ones, or that has not shown yet how large its blocks are. Normal for vLLM;
	// such blocks are not shared.
	PartialBlock
	// TokenCount: the number of token ids does not fit the number of blocks.
	TokenCount
	// UnknownMedium: a storage medium that belongs to no known tier.
	UnknownMedium
	// ForeignGroup: a KV cache group other than the main attention's.
	ForeignGroup
	// RemoteLocality: blocks that are not on this worker.
	RemoteLocality
	// ForeignOwner: blocks that the worker's own cache does not own, as those of a store
	// behind it that has blocks of its own, or that names blocks without their tokens.
	ForeignOwner
	// UnnamedAdapter: a LoRA id without the name that requests use.
	UnnamedAdapter
	// ExtraKeys: a block that depends on something other than its tokens, adapter, salt
	// and named pictures (prompt embeddings, or pictures as SGLang pads them), or that
	// follows such a block. RankStatus.LeftOut counts such blocks for as long as the
	// engine has them.
	ExtraKeys
	// AmbiguousSalt: a block whose parent was stored under several cache salts, or whose
	// hash already names a block of another adapter or salt. RankStatus.LeftOut counts it,
	// too.
	AmbiguousSalt
	// Ignored: the publisher marks the event as one to be ignored.
	Ignored
	// ForeignRank: the batch names another data-parallel rank than the one whose socket
	// it came from.
	ForeignRank
	// UnknownParent: the index does not hold the block's parent.
	UnknownParent
	// HashConflict: the engine's hash already names another block, of a publisher all of
	// whose blocks have the same adapter and salt.
	HashConflict
	// NoRoom: the index has no room for the event, even when it holds nothing else, or
	// there is no memory for facts about its blocks.
	NoRoom
	// BadFrames: the frames of the message are not as the protocol has them.
	BadFrames
	// ForeignTopic: the message is not about KV events.
	ForeignTopic
	// UnknownWorker: discovery does not know the worker or rank, or no longer does.
	UnknownWorker
	// SecondSource: the rank's events come from its engine, not from the event plane.
	SecondSource
	// StalePublisher: the rank has a newer publisher than this one.
	StalePublisher
	// Repeated: the event was delivered before.
	Repeated
	// UnknownDomain: a residency domain that this version does not know.
	UnknownDomain
	// SilentPeer: a peer dialed and did not show in time which worker it belongs to.
	SilentPeer
	// TooManyPeers: a peer dialed, and its connection was closed to make room for another
	// before it showed which worker it belongs to.
	TooManyPeers
	// NumReasons is the number of reasons.
	NumReasons
)

var reasonNames = [NumReasons]string{
	Malformed:         "malformed",
	UnknownEvent:      "unknown_event",
	BlockSizeMismatch: "block_size_mismatch",
	EagleMismatch:     "eagle_mismatch",
	PartialBlock:      "partial_block",
	TokenCount:        "token_count",
	UnknownMedium:     "unknown_medium",
	ForeignGroup:      "foreign_group",
	RemoteLocality:    "remote_locality",
	ForeignOwner:      "foreign_owner",
	UnnamedAdapter:    "unnamed_adapter",
	ExtraKeys:         "extra_keys",
	AmbiguousSalt:     "ambiguous_salt",
	Ignored:           "ignored",
	ForeignRank:       "foreign_rank",
	UnknownParent:     "unknown_parent",
	HashConflict:      "hash_conflict",
	NoRoom:            "no_room",
	BadFrames:         "bad_frames",
	ForeignTopic:      "foreign_topic",
	UnknownWorker:     "unknown_worker",
	SecondSource:      "second_source",
	StalePublisher:    "stale_publisher",
	Repeated:          "repeated",
	UnknownDomain:     "unknown_domain",
	SilentPeer:        "silent_peer",
	TooManyPeers:      "too_many_peers",
}

// String returns the snake_case name of the reason.
func (r Reason) String() string {
	if r >= NumReasons {
		return "invalid"
	}
	return reasonNames[r]
}

// Normal reports whether a healthy worker may give this reason: the index is not about
// such blocks, or it is known which blocks are left out and for how long. Any other
// reason means that the index lacks something.
func (r Reason) Normal() bool {
	switch r {
	case PartialBlock, ExtraKeys, AmbiguousSalt, ForeignGroup, RemoteLocality, ForeignOwner, Ignored, Repeated, ForeignTopic, SecondSource:
		return true
	}
	return false
}

// Refusals counts refused events by reason.
type Refusals [NumReasons]uint64

// Worst returns the most frequent reason that is not normal, and its count. The count is
// 0 if there is none. BlockSizeMismatch comes before all others, since it explains them.
func (f Refusals) Worst() (Reason, uint64) {
	var worst Reason
	var most uint64
	for r, n := range f {
		if r := Reason(r); n > most && !r.Normal() {
			worst, most = r, n
		}
	}
	if n := f[BlockSizeMismatch]; n > 0 {
		return BlockSizeMismatch, n
	}
	return worst, most
}

// Map returns the counts above zero by name, or nil if there are none.
func (f Refusals) Map() map[string]uint64 {
	var m map[string]uint64
	for r, n := range f {
		if n > 0 {
			if m == nil {
				m = make(map[string]uint64)
			}
			m[reasonNames[r]] = n
		}
	}
	return m
}
