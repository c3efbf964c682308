package etcd

import "time"

const (
	sayAgain   = time.Minute     // between two reports of the same failure
	sayChanged = 5 * time.Second // between two reports of different failures: the text of some differs each time
)

// trouble is the present failure, and when it was last reported. It is pure. The zero
// value is no failure.
type trouble struct {
	err   error
	since time.Time
	said  time.Time
	text  string // the text that was last reported
}

// failed records a failure, and reports whether it should be reported.
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
