package kvindex

// View is one way to count what a rank holds of a prompt. Each is a sequence of
// leading blocks, and has a slot of its own in an answer.
type View uint8

// The views. A block that is on several tiers counts once in each.
const (
	OnDevice   View = iota // blocks on Device: the rank's own slot
	ToHost                 // blocks on Device or Host
	ToDisk                 // blocks on Device, Host or Disk
	OnExternal             // blocks on External alone, whatever is nearer
	Routed                 // blocks of prompts that were routed to it lately
	numViews

	toldViews = Routed // those before it are told by events
)

// tiersOf is a bit for each tier whose blocks count in a view that events tell.
var tiersOf = [toldViews]uint8{
	OnDevice: 1 << Device, ToHost: 1<<Device | 1<<Host, ToDisk: 1<<Device | 1<<Host | 1<<Disk, OnExternal: 1 << External,
}

// viewOf returns the narrowest view that counts blocks of a tier.
func viewOf(t Tier) View { return View(t) }

// widens reports whether the view counts what a narrower one does, too.
func (v View) widens() bool { return v == ToHost || v == ToDisk }

// counts reports whether blocks on the tier count in the view.
func (v View) counts(t Tier) bool { return tiersOf[v]>>t&1 != 0 }

// Held is what one rank holds of a chain, in leading blocks.
type Held struct {
	Device uint32
	Host   uint32 // in host memory, beyond those on Device
	Disk   uint32 // on disk, beyond both
	// External is in the cache outside of the workers to which the rank has written
	// it: from the first block on, whatever is nearer.
	External uint32
	Routed   uint32 // of what was routed to it lately, whatever the others say
}

// Held reads an answer for the rank that has the slot.
func (t *Slots) Held(s Slot, o *Overlap) Held {
	var at [numViews]uint32
	for v := range numViews {
		if x, ok := t.View(s, v); ok {
			at[v] = o.At(x)
		}
	}
	host := max(at[ToHost], at[OnDevice])
	return Held{
		Device: at[OnDevice], Host: host - at[OnDevice], Disk: max(at[ToDisk], host) - host,
		External: at[OnExternal], Routed: at[Routed],
	}
}
