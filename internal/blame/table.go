package blame

type key struct {
	leg   Leg
	sight Sight
}

var table = func() map[key]Row {
	m := make(map[key]Row)
	for _, r := range Rows() {
		m[key{r.Leg, r.Sight}] = r
	}
	return m
}()

// Rows lists the blame table, sight by sight.
func Rows() []Row {
	var out []Row
	for i := range groups {
		g := &groups[i]
		for _, l := range g.legs {
			r := g.row
			r.Leg, r.Sight = l, g.sight
			if l.Prefill() && g.sight == Served {
				r.Outcome = notTheLegs
			}
			out = append(out, r)
		}
	}
	return out
}

var (
	all      = []Leg{Mirrored, First, Decode, Alone}
	prefills = []Leg{Mirrored, First}
	mirrored = []Leg{Mirrored}
	first    = []Leg{First}
	servers  = []Leg{Decode, Alone}
)

type group struct {
	sight Sight
	legs  []Leg
	why   string // who ended the leg, and how that is known
	row   Row
}

var groups = []group{
	// Before a worker has seen anything.
	{NotStarted, mirrored, "Envoy did not begin the mirrored leg in time and names no worker", Row{Fresh: Yes, Outcome: Failed}},
	{NotSent, all, "refused by a filter, no route or no host (NR, NC, UH, DF …), or ended before its body was whole", Row{Fresh: Yes, Outcome: Failed}},
	{Overflow, all, "a circuit breaker or the overload manager (UO, DO, UDO, OM)", Row{Fresh: Yes, Outcome: Failed}},
	{Unconnected, all, "Envoy: UF; health asks the worker itself", Row{Charge: Connect, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Unmade, all, "Envoy: UF, and its details say connection_timeout: the worker, or its machine, may be busy", Row{Suspect: true, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Stale, []Leg{Decode}, "not sent: prefill's hand-off had become too old, since the plugin or its machine stood still", Row{Fresh: Yes, Outcome: Failed}},

	// Before an answer.
	{Lost, all, "Envoy: UC, UR, UPE, LR, before any answer", Row{Charge: Loss, Suspect: true, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Raced, all, "the same, on a connection that an earlier request had used: it may have been closed because it was idle", Row{Suspect: true, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Ended, prefills, "the stream ends before any answer, and Envoy says nothing of the worker: ended from above", Row{Fresh: Yes, Outcome: Failed}},
	{TimedOut, all, "one of Envoy's timers (UT, UMSDR, DT, SI), or the deadline: ended from above", Row{Outcome: Failed}},
	{Aborted, mirrored, "the owner, or a drain: ended from above", Row{Fresh: Yes, Outcome: Failed}},
	{CarrierLost, mirrored, "the replica that carried it answers no more, so how it went is unknown", Row{Fresh: Yes, Outcome: Failed}},
	{Gone, all, "its worker left discovery, or was set aside", Row{Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Overdue, []Leg{Mirrored}, "it takes longer than its limit; prefill and decode wait for each other", Row{Pair: true, Suspect: true, Fresh: IfSpare, Avoid: Both, Outcome: Failed}},
	{Overdue, []Leg{First, Alone}, "it takes longer than its limit, and the request waits only for this worker", Row{Charge: Slow, Suspect: true, Fresh: IfSpare, Avoid: It, Outcome: Failed}},
	{Overdue, []Leg{Decode}, "it takes longer than its limit, and prefill is well", Row{Charge: Slow, Pair: true, Suspect: true, Fresh: IfSpare, Avoid: Both, Outcome: Failed}},
	{Stuck, all, "the same, and no other worker can be tried, no attempt is left, or too much is late for its work to be done twice: the request waits on", Row{Suspect: true, Outcome: notTheLegs}},

	// The worker's own answer, before any byte of it has gone to the client.
	{Busy, all, "the worker: 408, 429; here and below as the status, or as an error at the beginning of an event stream", Row{Charge: Refusal, Fresh: IfSpare, Avoid: It, Outcome: OfWorker}},
	{Rejected, all, "the worker: another 4xx", Row{Charge: Refusal, Fresh: IfOdd, Avoid: It, Outcome: OfWorker}},
	{Redirected, all, "the worker: 3xx", Row{Outcome: OfWorker}},
	{Errored, []Leg{Mirrored, First, Alone}, "the worker: 5xx, 1xx, an error without a status", Row{Charge: Error, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Unfetched, []Leg{Decode}, "the worker: 5xx, or 2xx with nothing, by its own fault or its hand-off's", Row{Charge: Error, Pair: true, Fresh: IfSpare, Avoid: Both, Outcome: Failed}},
	{Empty, all, "the worker: 2xx without a body, or an event stream that ends before a token; for decode, if only the answer's end shows it", Row{Charge: Error, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Failing, prefills, "the worker: 2xx that says error or abort", Row{Charge: Error, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Unreadable, prefills, "the worker: 2xx that cannot be read", Row{Charge: Error, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{Uncomputed, prefills, "the worker: 2xx whose usage has no token made, or has another count of the prompt's", Row{Charge: Error, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{NoHandoff, first, "the worker: 2xx without a hand-off", Row{Charge: Error, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{TooLong, first, "the worker: an answer over the limit, because of what the client asks for", Row{Outcome: OfWorker}},

	// The answer's end.
	{BrokeOff, prefills, "the stream ends after the answer's headers, while decode waits for it", Row{Charge: Break, Suspect: true, Fresh: Yes, Avoid: It, Outcome: Failed}},
	{BrokeOff, servers, "Envoy's access log: UC, UR, UPE, or details that begin upstream_reset", Row{Charge: Break, Suspect: true, Outcome: Cut}},
	{Unsent, servers, "the same, before Envoy had sent a byte on: Envoy begins a fresh attempt", Row{Charge: Break, Suspect: true, Avoid: It, Outcome: Retried}},
	{Stalled, servers, "the answer's bytes have stood still for longer than they may: Envoy's access log, or the plugin where the answer passes it; and too few have been sent for the client to be what holds them up", Row{Charge: Break, Suspect: true, Outcome: Cut}},
	{Failing, servers, "the worker: a finish reason error or abort, or an error event other than 4xx, after the answer has begun, where the answer passes the plugin: it broke off in good form", Row{Charge: Break, Suspect: true, Outcome: Cut}},
	{Expired, servers, "Envoy's access log: a timer, after the answer began; or the plugin's own timer, if Envoy's is late", Row{Outcome: Cut}},
	{Served, all, "the whole answer", Row{Charge: Credit, Outcome: OK}},
	{ClientLeft, servers, "Envoy's access log: DC; or the stream's end before an answer", Row{Outcome: Left}},
	{Unfinished, servers, "no access log says how it ended", Row{Outcome: Unknown}},
}
