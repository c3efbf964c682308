package leg

// The names that the scenarios and the stories of failed tests have for values of the machines.

var opNames = [...]string{
	"", "continue", "route", "route headers", "relay", "immediate", "extend", "prefill", "collect", "pick", "models", "health", "report",
	"abort-leg", "charge", "suspect", "pair failed", "pair served", "served", "release decode", "release prefill", "mark", "finish", "leave", "found", "pass", "forget",
}

func (o Op) String() string { return opNames[o] }

var faultNames = [...]string{"none", "connect", "overflow", "lost", "timeout"}

func (f fault) String() string { return faultNames[f] }

var mainPhaseNames = [...]string{
	"awaitHeaders", "awaitBody", "resolving", "waiting", "prefilling", "routed", "holding", "streaming", "ended", "rejected", "left", "lingering", "done",
}

func (p mainPhase) String() string { return mainPhaseNames[p] }

var prefillPhaseNames = [...]string{"awaitHeaders", "awaitBody", "routed", "answering", "refused", "over"}

func (p prefillPhase) String() string { return prefillPhaseNames[p] }
