package replay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script chooses by number, and keeps what it is told.
type script struct {
	choices []Choice // the last one goes on
	legs    []Leg
	at      []time.Duration // when each of legs was told
	events  []Events
	heard   []time.Duration // when each of events was
	reports []Report
}

func (s *script) Choose(_ time.Duration, number int, _ *Request) (Choice, error) {
	if len(s.choices) == 0 {
		return Choice{}, nil
	}
	return s.choices[min(number, len(s.choices)-1)], nil
}

func (s *script) Leg(now time.Duration, l Leg) error {
	s.legs, s.at = append(s.legs, l), append(s.at, now)
	return nil
}

func (s *script) Events(now time.Duration, e Events) error {
	s.events, s.heard = append(s.events, e), append(s.heard, now)
	return nil
}

func (s *script) Report(_ time.Duration, r Report) error {
	s.reports = append(s.reports, r)
	return nil
}

// ten is a workload whose blocks have ten tokens.
func ten(requests ...Request) *Workload { return &Workload{BlockTokens: 10, Requests: requests} }

func run(t *testing.T, f Fleet, w *Workload, s *script) *Result {
	t.Helper()
	r, err := Run(&f, w, s)
	require.NoError(t, err)
	return r
}

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
