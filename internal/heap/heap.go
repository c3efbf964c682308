package heap

// Element is what a heap orders.
type Element[T any] interface {
	comparable
	Before(other T) bool
	Place() *int // the field in which the heap notes where the element is
}

// Heap holds elements, the first one at index 0. The zero value is ready. Not safe for concurrent
// use.
type Heap[T Element[T]] []T

// First returns the first element, the zero value if there is none.
func (h Heap[T]) First() (first T) {
	if len(h) > 0 {
		first = h[0]
	}
	return first
}

// Put adds an element.
func (h *Heap[T]) Put(x T) {
	*h = append(*h, x)
	h.settle(x, len(*h)-1)
}

// Remove removes an element of the heap.
func (h *Heap[T]) Remove(x T) {
	last := len(*h) - 1
	moved := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	if moved != x {
		h.settle(moved, *x.Place())
	}
	*x.Place() = -1
}

// Fix brings an element of the heap back in order.
func (h Heap[T]) Fix(x T) { h.settle(x, *x.Place()) }

// settle puts x where the order holds: at a place that is free, above or below it.
func (h Heap[T]) settle(x T, at int) {
	free := at
	for free > 0 && x.Before(h[(free-1)/2]) {
		h.move((free-1)/2, free)
		free = (free - 1) / 2
	}
	for free >= at { // not above: there x comes before all that is below
		child := 2*free + 1
		if child+1 < len(h) && h[child+1].Before(h[child]) {
			child++
		}
		if child >= len(h) || !h[child].Before(x) {
			break
		}
		h.move(child, free)
		free = child
	}
	h[free], *x.Place() = x, free
}

func (h Heap[T]) move(from, to int) { h[to], *h[from].Place() = h[from], to }
