package kvindex

// View is one way to count the leading blocks that a rank holds of a prompt. Each view
// has a slot of its own in an answer.
type View uint8

// The views. A block that is on several tiers of a view counts once in the view.
const (
	OnDevice   View = iota // blocks on Device: the rank's own slot
	ToHost                 // blocks on Device or Host
	ToDisk                 // blocks on Device, Host or Disk
	OnExternal             // blocks on External, whether or not they are also on nearer tiers
	Routed                 // blocks of prompts that were recently routed to the rank
	numViews

	toldViews = Routed // the views before Routed are filled by events
)

// tiersOf has for each view that events fill a bit for each tier that counts in the
// view.
var tiersOf = [toldViews]uint8{
	OnDevice: 1 << Device, ToHost: 1<<Device | 1<<Host, ToDisk: 1<<Device | 1<<Host | 1<<Disk, OnExternal: 1 << External,
}

// viewOf returns the narrowest view in which blocks of the tier count.
func viewOf(t Tier) View { return View(t) }

// widens reports whether the view counts the tiers of a narrower view as well.
func (v View) widens() bool { return v == ToHost || v == ToDisk }

// counts reports whether blocks on the tier count in the view.
func (v View) counts(t Tier) bool { return tiersOf[v]>>t&1 != 0 }

// Held is how many leading blocks of a chain one rank holds, by where they are.
type Held struct {
	Device uint32
	Host   uint32 // in host memory, beyond those counted in Device
	Disk   uint32 // on disk, beyond those counted in Device and Host
	// External counts the leading blocks that the rank has written to the cache outside
	// of the workers, from the first block on, including blocks that other fields
	// count.
	External uint32
	Routed   uint32 // in the view Routed, including blocks that other fields count
}

// Held reads the answer for the rank that has the slot s.
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
