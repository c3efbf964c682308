package admin

import (
	"fmt"
	"time"
)

// Shadow is what a second policy would have made of the latest requests. It is JSON as it is.
type Shadow struct {
	At       *time.Time  `json:"at,omitempty"`  // nil: nothing was played yet
	Why      string      `json:"why,omitempty"` // why nothing is said
	Requests int         `json:"requests,omitempty"`
	Minutes  float64     `json:"minutes,omitempty"` // that they came in
	Rows     []ShadowRow `json:"rows,omitempty"`    // measured, the policy in force, the second one; the latter two simulated
	Error    *ShadowRow  `json:"error,omitempty"`   // of the simulation: a difference of shares, and relative ones; nil: not known
}

// ShadowRow is the figures of one policy; times are seconds.
type ShadowRow struct {
	Name string  `json:"name,omitempty"`
	Hit  float64 `json:"hit_rate"`
	P50  float64 `json:"first_token_p50"`
	P99  float64 `json:"first_token_p99"`
}

type shadowView struct {
	About, Error string
	Rows         []shadowRowView
}

type shadowRowView struct{ Name, Hit, P50, P99 string }

func newShadowView(s *Shadow, now time.Time) *shadowView {
	switch {
	case s == nil:
		return nil
	case s.At == nil:
		return &shadowView{About: "nothing was played yet"}
	case s.Why != "":
		return &shadowView{About: "nothing is said, " + duration(now.Sub(*s.At)) + " ago: " + s.Why}
	}
	v := &shadowView{About: fmt.Sprintf("%d requests of %.0f minutes, played %s ago; it is never acted on", s.Requests, s.Minutes, duration(now.Sub(*s.At)))}
	for _, r := range s.Rows {
		v.Rows = append(v.Rows, shadowRowView{r.Name, fmt.Sprintf("%.1f %%", 100*r.Hit), after(secondsOf(r.P50)), after(secondsOf(r.P99))})
	}
	if e := s.Error; e != nil {
		v.Error = fmt.Sprintf("The simulation's own error, by the picks that were made: hit rate %+.1f points, first token p50 %+.0f %%, p99 %+.0f %%.", 100*e.Hit, 100*e.P50, 100*e.P99)
	}
	return v
}

func secondsOf(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
