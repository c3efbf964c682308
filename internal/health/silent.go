package health

// Silent reports whether the worker is set aside because it does not answer: no connection
// was made, or requests waited in vain.
func (h *RankHealth) Silent() bool {
	t := Transition{To: Aside, Reason: h.Reason}
	return h.State.aside() && t.Silent()
}
