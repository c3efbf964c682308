package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// defaultTimeout is the deadline of requests that bring none.
const defaultTimeout = 8 * time.Second

// span is a time in which something was wrong, counted from the run's start.
type span struct {
	Fault    fault
	From, To time.Duration // To is 0 while it lasts
}

// history is what was wrong and when.
type history []span

// got is what a client got.
type got struct {
	From, To  time.Duration // of the request, since the run's start
	Status    int           // 0: no answer at all
	Body      string
	Err       string // of the transport, or of reading the body
	Left      bool   // the client had left by then
	RequestID string
}

// reach is how long after its end a fault may still show. A worker that was set
// aside is probed each second and then let in gently; leases run out; workers
// that etcd lost come back one after the other; Envoy backs off before it dials
// a plugin again.
const (
	workerReach = 8 * time.Second
	etcdReach   = 8 * time.Second
	laneReach   = 2 * time.Second
)

// during reports whether some fault that matches was on, or over for less than
// reach, while the client waited.
func (h history) during(g *got, reach time.Duration, match func(f *fault) bool) bool {
	for i := range h {
		s := &h[i]
		if s.From <= g.To && (s.To == 0 || s.To+reach >= g.From) && match(&s.Fault) {
			return true
		}
	}
	return false
}

// lane reports whether one of the kinds struck the request's lane.
func (h history) lane(a *ask, g *got, kinds ...kind) bool {
	return h.during(g, laneReach, func(f *fault) bool {
		return f.lane() && f.On.Index == a.Lane && slices.Contains(kinds, f.Kind)
	})
}

// workers reports whether something was wrong that can leave a model without a
// worker to pick.
func (h history) workers(a *ask, g *got) bool {
	return h.during(g, workerReach, func(f *fault) bool { return f.On.Model == a.Model }) ||
		h.during(g, etcdReach, func(f *fault) bool { return f.etcd() }) ||
		h.stalled(g) > 0 ||
		h.lane(a, g, termPlugin, killPlugin)
}

// refuses reports whether a worker of the request's model refused what was right.
func (h history) refuses(a *ask, g *got) bool {
	return h.during(g, 0, func(f *fault) bool { return f.On.Model == a.Model && (f.Kind == refusal || f.Kind == tooMany) })
}

// empties reports whether a worker of the request's model answered with nothing.
func (h history) empties(a *ask, g *got) bool {
	return h.during(g, 0, func(f *fault) bool { return f.On.Model == a.Model && f.Kind == nothing })
}

// stalled is for how long the machine did not run us while the client waited,
// or soon before.
func (h history) stalled(g *got) (sum time.Duration) {
	for i := range h {
		if s := &h[i]; s.Fault.stall() && s.From <= g.To && s.To+workerReach >= g.From {
			sum += s.To - s.From
		}
	}
	return sum
}

// cutters are the faults of a decode worker that break an answer that has begun.
var cutters = []kind{killWorker, killEngine, dieInRequest, cut, refuse, stopWorker, hang}

// breaks reports whether something was wrong that cuts an answer once it has
// begun. The plugin's death cuts one in full duplex only, and there until its
// prefill is well.
func (h history) breaks(a *ask, g *got, fullDuplex bool) bool {
	decode := h.during(g, 0, func(f *fault) bool {
		return f.On.Model == a.Model && f.On.Role == worker.Decode && slices.Contains(cutters, f.Kind)
	})
	return decode || h.lane(a, g, killEnvoy, termEnvoy) || fullDuplex && h.lane(a, g, killPlugin, termPlugin)
}

// statuses are the rows of the failure table that a client of this run may see,
// with their status.
var statuses = map[string]int{
	"not_json": 400, "forbidden_field": 400, "not_disaggregable": 400, "model_not_found": 404,
	"not_ready": 503, "no_worker": 503, "prefill_not_ready": 503, "no_decode_worker": 503, "no_prefill_worker": 503, "prefill_gone": 503,
	"disaggregation_enforced": 503, "prefill_failed": 503, "decode_unreachable": 503, "decode_failed": 502,
	"decodes_lost": 500, "deadline_exceeded": 504, "router_unavailable": 503, "decode_overdue": 503,
	"prefill_busy": 429, "prefill_rejected": 0, "empty_answer": 502, // 0: the worker's own
}

// judge says under which name an answer is counted, and what is wrong with it,
// or "".
func judge(a *ask, g *got, h history, fullDuplex bool, slack time.Duration) (class, wrong string) {
	slack += 2 * h.stalled(g)
	if took := g.To - g.From; took > a.deadline()+slack && !g.Left {
		return "late", fmt.Sprintf("it took %s, which is more than %s after its deadline of %s", took, slack, a.deadline())
	}
	switch {
	case g.Left:
		return "left", ""
	case g.Status == 0:
		if h.lane(a, g, killEnvoy, termEnvoy) {
			return "lost with Envoy", ""
		}
		return "lost", "the connection was lost, and Envoy was up: " + g.Err
	case g.Status == 200:
		return judgeAnswer(a, g, h, fullDuplex)
	default:
		return judgeError(a, g, h)
	}
}

func judgeAnswer(a *ask, g *got, h history, fullDuplex bool) (class, wrong string) {
	texts, end := read(g.Body, a.Stream)
	whole := end == endWhole
	switch {
	case a.Refusal != "":
		return "served", "it was served, and deserved " + a.Refusal
	case g.Err == "" && strings.Join(texts, "") == "" && h.empties(a, g):
		return "empty, as the worker answered", ""
	case g.Err == "" && whole && slices.Equal(texts, a.Want):
		return "whole", ""
	case g.Err == "" && whole:
		return "wrong", fmt.Sprintf("the answer ends well and is not the one that it should be: %d choices of %v bytes, expected %d of %v",
			len(texts), lengths(texts), len(a.Want), lengths(a.Want))
	case g.Err == "" && (end == endCut || !a.Stream):
		return "wrong", "an answer that HTTP has whole breaks off, or is an error inside a 200"
	case !prefixes(texts, a.Want):
		return "wrong", "the answer is cut, and what there is of it is not how it begins"
	case end == endError && h.during(g, 0, func(f *fault) bool { return f.On.Model == a.Model && f.Kind == serverError }):
		return "ended by the engine's error event", ""
	case g.To-g.From >= a.deadline():
		return "cut at the deadline", ""
	case h.breaks(a, g, fullDuplex):
		return "cut", ""
	default:
		return "cut", "the answer was cut, and nothing broke: " + g.Err
	}
}

// prefixes reports whether each text is how the wanted one begins. What of a
// plain JSON answer is cut cannot be read: no texts.
func prefixes(texts, want []string) bool {
	for i, t := range texts {
		if i >= len(want) || !strings.HasPrefix(want[i], t) {
			return false
		}
	}
	return true
}

func lengths(texts []string) []int {
	out := make([]int, len(texts))
	for i, t := range texts {
		out[i] = len(t)
	}
	return out
}

func judgeError(a *ask, g *got, h history) (class, wrong string) {
	code, message := errorOf(g.Body)
	if code == "" {
		// A worker's own answer is passed on when no attempt is left.
		switch {
		case a.Refusal == poisoned && g.Status >= 500 && message != "":
			return poisoned, ""
		case g.Status >= 500 && message != "" && h.workers(a, g), g.Status < 500 && message != "" && h.refuses(a, g):
			return fmt.Sprintf("%d of a worker", g.Status), ""
		}
		return "untyped", fmt.Sprintf("status %d without a code: %.300q %s", g.Status, g.Body, g.Err)
	}
	class = fmt.Sprintf("%d %s", g.Status, code)
	switch want, known := statuses[code]; {
	case !known:
		return class, "no request of this run can deserve this: " + message
	case want != 0 && want != g.Status:
		return class, fmt.Sprintf("the failure table says %d", want)
	case g.Err != "":
		return class, "the error itself was cut: " + g.Err
	case code == a.Refusal, a.Refusal == poisoned && (code == "prefill_failed" || code == "decode_failed"):
		return class, ""
	}
	why := ""
	switch code {
	case "not_json", "forbidden_field", "not_disaggregable":
		why = "the request was right"
	case "model_not_found":
		if !h.lane(a, g, termPlugin, killPlugin) {
			why = "the model has workers, and the plugin was not restarted"
		}
	case "router_unavailable":
		// Envoy's word also where each attempt's answer broke off before it was sent on.
		if !h.lane(a, g, termPlugin, killPlugin, killEnvoy, termEnvoy) && !h.breaks(a, g, false) {
			why = "plugin and Envoy were up, and no decode worker broke off"
		}
	case "not_ready":
		if !h.lane(a, g, termPlugin, killPlugin) {
			why = "the plugin was not restarted"
		}
	case "prefill_busy", "prefill_rejected":
		if !h.refuses(a, g) {
			why = "no worker of the model refused requests that are right"
		}
	case "deadline_exceeded":
		if g.To-g.From < a.deadline()-early504 {
			why = fmt.Sprintf("its deadline of %s had not passed after %s", a.deadline(), g.To-g.From)
		}
	default:
		if !h.workers(a, g) {
			why = "nothing was wrong with the model's workers"
		}
	}
	return class, why
}

// early504 is what a deadline may seem to come early by: it counts from Envoy's
// clock of whole milliseconds.
const early504 = 5 * time.Millisecond

// errorOf reads an error body. Engines say a code too, but as a number.
func errorOf(text string) (code, message string) {
	var doc struct {
		Error struct {
			Code    any
			Message string
		}
		Message string
	}
	if json.Unmarshal([]byte(text), &doc) != nil {
		return "", ""
	}
	code, _ = doc.Error.Code.(string)
	return code, doc.Error.Message + doc.Message
}

// end is how the text of an answer ends.
type end uint8

// The ends.
const (
	endCut   end = iota
	endError     // with an error event: the engine failed after the first byte
	endWhole
)

// read returns the text of each choice of an answer, and how it ends.
func read(text string, stream bool) (texts []string, e end) {
	take := func(data string) end {
		var m struct {
			Error   json.RawMessage
			Choices []struct {
				Index   int
				Text    string
				Delta   struct{ Content string }
				Message struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(data), &m) != nil {
			return endCut
		}
		if m.Error != nil {
			return endError
		}
		for _, c := range m.Choices {
			if c.Index < 0 || c.Index > 15 {
				return endCut
			}
			for len(texts) <= c.Index {
				texts = append(texts, "")
			}
			texts[c.Index] += c.Text + c.Delta.Content + c.Message.Content
		}
		return endWhole
	}
	if !stream {
		e = take(text)
		return texts, e
	}
	for line := range strings.Lines(text) {
		data, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
		if !ok {
			continue
		}
		if strings.TrimSpace(data) == "[DONE]" {
			if e != endError {
				e = endWhole
			}
			return texts, e
		}
		if take(data) == endError {
			e = endError
		}
	}
	return texts, e
}
