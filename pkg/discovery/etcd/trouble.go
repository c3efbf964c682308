package etcd

import "time"

const (
	sayAgain   = time.Minute     // between two words on the same failure
	sayChanged = 5 * time.Second // the least between two that differ, as some differ each time
)

// trouble is what fails, and when it was last told. It is pure. The zero value
// is no trouble.
type trouble struct {
	err   error
	since time.Time
	said  time.Time
	text  string // that was said
}

// failed takes a failure and reports whether it should be told.
func (t *trouble) failed(now time.Time, err error) bool {
	if t.err == nil {
		t.since = now
	}
	t.err = err
	pause := sayAgain
	if err.Error() != t.text {
		pause = sayChanged
	}
	if !t.said.IsZero() && now.Sub(t.said) < pause {
		return false
	}
	t.said, t.text = now, err.Error()
	return true
}
