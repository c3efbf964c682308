package kvevents

import "slices"

// maxRetired bounds the earlier publishers that a [Cursor] remembers.
const maxRetired = 4

// Cursor judges the events of one rank on Dynamo's event plane by their ids. It is pure,
// as [Tracker] is. Nothing can be replayed here, so a gap always means a loss. Not safe
// for concurrent use.
type Cursor struct {
	seen      bool
	publisher uint64
	last      uint64
	degraded  bool
	kept      bool     // position and blocks are an earlier process's, not proved yet; as in Tracker
	retired   []uint64 // earlier publishers, the latest last
}

// Resume puts a cursor that has seen nothing at the position of an earlier process, with
// the publishers that Retired returned there. If the first new event is the next one of
// the same publisher, its verdict says Restore, else Reset.
func (c *Cursor) Resume(publisher uint64, p Position, retired []uint64) {
	c.seen, c.publisher, c.last, c.degraded, c.kept = true, publisher, p.Last, p.Degraded, true
	c.retired = slices.Clone(retired[max(0, len(retired)-maxRetired):])
}

// Retired returns the rank's earlier publishers, as far as they are remembered, the
// latest last. The slice must not be changed.
func (c *Cursor) Retired() []uint64 { return c.retired }

// Abandon undoes Resume. False means that the position was judged before, so nothing is
// undone.
func (c *Cursor) Abandon() bool {
	was := c.kept
	if was {
		*c = Cursor{}
	}
	return was
}

// Position returns the cursor's position. seen is false if no event was judged.
func (c *Cursor) Position() (publisher uint64, p Position, seen bool) {
	return c.publisher, Position{Last: c.last, Degraded: c.degraded}, c.seen
}

// Degraded reports whether the worker may hold blocks that the index does not know.
func (c *Cursor) Degraded() bool { return c.degraded || c.kept }

// Last returns the id applied last. False means that there was none.
func (c *Cursor) Last() (uint64, bool) { return c.last, c.seen }

// Cleared notes that the worker dropped all blocks: events that were missed before no
// longer matter.
func (c *Cursor) Cleared() { c.degraded = false }

// Foreign reports whether the publisher is another one than the rank's. Such a publisher
// counts its own ids, so its events about blocks that are not the rank's must not be
// judged.
func (c *Cursor) Foreign(publisher uint64) bool { return !c.seen || publisher != c.publisher }

// Judge judges an event of a publisher. whole says that no earlier message of this
// publisher was missed. If the verdict is not to apply the event, the reason says why. A
// publisher that was never heard counts as the rank's next life. Late events of the life
// before are refused from then on.
func (c *Cursor) Judge(publisher uint64, whole bool, id uint64) (Verdict, Reason) {
	switch {
	case !c.seen:
		return c.begin(Verdict{}, publisher, whole, id), 0
	case publisher != c.publisher:
		if slices.Contains(c.retired, publisher) {
			return Verdict{}, StalePublisher
		}
		if len(c.retired) == maxRetired {
			c.retired = append(c.retired[:0], c.retired[1:]...)
		}
		c.retired = append(c.retired, c.publisher)
		return c.begin(Verdict{Reset: true, Cause: Restarted}, publisher, whole, id), 0
	case id <= c.last:
		return Verdict{}, Repeated
	case id == c.last+1:
		v := Verdict{Apply: true, Restore: c.kept}
		c.last, c.kept = id, false
		return v, 0
	}
	c.last, c.degraded, c.kept = id, true, false
	return Verdict{Reset: true, Cause: Lost, Apply: true, Gap: true}, 0
}

// begin accepts the first event of a publisher. Publishers count from 0, but the first
// event sent may have a higher number.
func (c *Cursor) begin(v Verdict, publisher uint64, whole bool, id uint64) Verdict {
	c.seen, c.publisher, c.last, c.degraded, c.kept = true, publisher, id, !whole && id > 0, false
	v.Apply = true
	return v
}
