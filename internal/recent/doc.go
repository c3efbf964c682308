// Package recent remembers values for a while: what was put last, in the order in which it
// was put.
//
// # Contract
//
// A [Map] holds an entry for each key. [Map.Put] makes its entry the newest one, also if
// the key was held before. An entry is held until [Map.Keep] has passed since it was put;
// until then only [Map.Delete] and [Map.DropOldest] end it. If [Map.Most] entries are held,
// Put refuses another key and says so: what is remembered is never dropped in silence to
// make room. An owner that would rather lose the oldest calls DropOldest first, which
// returns what it drops.
//
// The caller says what time it is. Without Keep, time plays no part and may be zero. A Get
// at the zero time finds an overdue entry, too, as long as no Put and no [Map.Expire] has
// removed it.
//
// # Cost
//
// Each method takes constant time, except that Put and Expire remove the overdue entries,
// each once. Put allocates for a key that is not held, and not for one that is.
//
// # Invariants
//
// The order has each entry once, and the map has exactly these. Times may come a little out
// of order, as several goroutines bring them. Then an overdue entry behind one that is not
// stays in memory, and counts for Most, until that one is overdue, too. Get does not find it.
//
// # What it does not do
//
// It has no lock, no clock and no goroutine: it lies among its owner's fields, under the
// owner's lock. It knows no sizes: an owner that counts bytes counts them itself. All
// entries are held equally long.
package recent
