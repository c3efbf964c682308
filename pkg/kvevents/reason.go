package kvevents

// Reason says why an event, or a part of one, was not used.
type Reason uint8

// The reasons. The set is closed: each is a label of a metric.
const (
	// Malformed: not the msgpack or the fields that the engines write.
	Malformed Reason = iota
	// UnknownEvent: a tag that is none of the three known ones.
	UnknownEvent
	// BlockSizeMismatch: the engine's blocks are of another size than this
	// worker was registered with. Nothing can match: an operator must act.
	BlockSizeMismatch
	// EagleMismatch: blocks of token pairs of a worker that is registered
	// without EAGLE, or blocks of tokens of one with it. Nothing can match: an
	// operator must act.
	EagleMismatch
	// PartialBlock: a block shorter than a whole one, from a publisher that
	// sends whole ones as well. Normal for vLLM; such blocks are not shared.
	PartialBlock
	// TokenCount: the token ids are not as many as the blocks have.
	TokenCount
	// UnknownMedium: a storage medium of no known tier.
	UnknownMedium
	// ForeignGroup: a KV cache group that is not the main attention's.
	ForeignGroup
	// RemoteLocality: blocks that are not on this worker.
	RemoteLocality
	// ForeignOwner: blocks that the worker's own cache does not own.
	ForeignOwner
	// UnnamedAdapter: a LoRA id without the name that requests use.
	UnnamedAdapter
	// ExtraKeys: a block that depends on more than its tokens and pictures that are
	// named (prompt embeddings, pictures as SGLang pads them), or follows one that does.
	// RankStatus.LeftOut counts such blocks for as long as the engine has them.
	ExtraKeys
	// AmbiguousSalt: a block whose parent was stored under several cache salts.
	// It is left out likewise.
	AmbiguousSalt
	// Ignored: an event that its publisher marks as one to be ignored.
	Ignored
	// ForeignRank: the batch names another data-parallel rank than the socket
	// it came from.
	ForeignRank
	// UnknownParent: the index does not hold the block's parent.
	UnknownParent
	// HashConflict: the engine's hash names another block already.
	HashConflict
	// NoRoom: the event alone is more than the index may hold.
	NoRoom
	// BadFrames: a message whose frames are not those of the protocol.
	BadFrames
	// ForeignTopic: a message that is not about KV events.
	ForeignTopic
	// UnknownWorker: of a worker or rank that discovery does not know, or not
	// any more.
	UnknownWorker
	// SecondSource: of a rank whose events come from the engine itself.
	SecondSource
	// StalePublisher: of a publisher whose rank has a newer one.
	StalePublisher
	// Repeated: delivered before.
	Repeated
	// UnknownDomain: of a residency domain that this version does not know.
	UnknownDomain
	// SilentPeer: a peer that has dialed and did not say in time whose it is.
	SilentPeer
	// TooManyPeers: a peer that has dialed and had to go for another one before it
	// said whose it is.
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

// Normal reports whether a worker that is well gives this reason: what was
// refused is none of the blocks that the index is about, or it is known which
// blocks are left out, and for how long. All others mean that the index lacks
// something.
func (r Reason) Normal() bool {
	switch r {
	case PartialBlock, ExtraKeys, AmbiguousSalt, ForeignGroup, RemoteLocality, ForeignOwner, Ignored, Repeated, ForeignTopic, SecondSource:
		return true
	}
	return false
}

// Refusals counts refused events by reason.
type Refusals [NumReasons]uint64

// Worst returns the most frequent reason that is not normal, and how often it
// was given; 0 when there is none. Block size comes first: it explains others.
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

// Map returns the counts above zero by name, nil when there are none.
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
