package kvevents

import "slices"

// maxRetired bounds the earlier publishers that a [Cursor] remembers.
const maxRetired = 4

// Cursor judges the events of one rank on Dynamo's event plane by their ids. It
// is pure, as [Tracker] is. Nothing can be replayed here, so that a gap is a
// loss at once. Not safe for concurrent use.
type Cursor struct {
	seen      bool
	publisher uint64
	last      uint64
	degraded  bool
	kept      bool     // an earlier process's position and blocks: see Tracker
	retired   []uint64 // earlier publishers, the latest last
}

// Resume puts a cursor that has seen nothing where one of an earlier process
// stood, with the publishers that it had Retired. If the first event that is new
// is the next one of the same publisher, the verdict says Restore, else Reset.
func (c *Cursor) Resume(publisher uint64, p Position, retired []uint64) {
	c.seen, c.publisher, c.last, c.degraded, c.kept = true, publisher, p.Last, p.Degraded, true
	c.retired = slices.Clone(retired[max(0, len(retired)-maxRetired):])
}

// Retired returns the rank's earlier publishers that are remembered, the latest
// last. The slice must not be changed.
func (c *Cursor) Retired() []uint64 { return c.retired }

// Abandon takes Resume back, and reports whether it did.
func (c *Cursor) Abandon() bool {
	was := c.kept
	if was {
		*c = Cursor{}
	}
	return was
}

// Position returns where the cursor stands, if it has seen anything.
func (c *Cursor) Position() (publisher uint64, p Position, seen bool) {
	return c.publisher, Position{Last: c.last, Degraded: c.degraded}, c.seen
}

// Degraded reports whether blocks may be held that the index was never told of.
func (c *Cursor) Degraded() bool { return c.degraded || c.kept }

// Last returns the id applied last, if any.
func (c *Cursor) Last() (uint64, bool) { return c.last, c.seen }

// Cleared notes that the worker dropped all blocks: whatever was missed is gone.
func (c *Cursor) Cleared() { c.degraded = false }

// Foreign reports whether an event that is not about the rank's own blocks is
// of another publisher than the rank's: then it has ids of its own and must not
// be judged.
func (c *Cursor) Foreign(publisher uint64) bool { return !c.seen || publisher != c.publisher }

// Judge judges an event of a publisher. whole says that nothing of this
// publisher was missed before. Where the verdict is not to apply, the reason is
// why. A publisher that has never been heard is taken for the next life of the
// one before, whose late events count no more.
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

// begin takes the first event of a publisher. Publishers count from 0, but the
// first event sent need not be number 0.
func (c *Cursor) begin(v Verdict, publisher uint64, whole bool, id uint64) Verdict {
	c.seen, c.publisher, c.last, c.degraded, c.kept = true, publisher, id, !whole && id > 0, false
	v.Apply = true
	return v
}
