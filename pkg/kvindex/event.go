package kvindex

// Tier is where a rank keeps a block. A block may be on several tiers.
type Tier uint8

// The tiers, nearest first.
const (
	Device Tier = iota
	Host
	Disk
	External
	numTiers
)

var tierNames = [numTiers]string{"device", "host", "disk", "external"}

// String returns the lower-case name of the tier, or "invalid".
func (t Tier) String() string {
	if t >= numTiers {
		return "invalid"
	}
	return tierNames[t]
}

// Block is one stored block: the engine's name of the block, and the hash of its tokens
// that Baton computes.
type Block struct {
	Engine EngineHash
	Local  LocalHash
}

// Stored says that a rank now holds Blocks on Tier. Each block is the parent of the
// next. With HasParent, Parent is the parent of the first.
type Stored struct {
	Parent    EngineHash
	HasParent bool
	Blocks    []Block
	Tier      Tier
}

// Removed says that a rank no longer holds Blocks on Tier.
type Removed struct {
	Blocks []EngineHash
	Tier   Tier
}
