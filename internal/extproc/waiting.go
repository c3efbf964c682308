package extproc

import "sync/atomic"

// waiting counts the requests that wait for a worker to return, and their bytes. Safe for
// concurrent use.
type waiting struct{ requests, bytes atomic.Int64 }

// waitingShare is the part of the budget for bodies that such requests may take: those of
// other models need the rest.
const waitingShare = 4

// add counts a request until remove, unless all would have more than most bytes.
func (w *waiting) add(n, most int64) bool {
	if w.bytes.Add(n) > most {
		w.bytes.Add(-n)
		return false
	}
	w.requests.Add(1)
	return true
}

func (w *waiting) remove(n int64) {
	w.bytes.Add(-n)
	w.requests.Add(-1)
}
