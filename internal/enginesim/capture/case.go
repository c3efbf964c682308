package capture

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// Case is one thing that engines are asked, and all that they say to it.
type Case struct {
	Name  string
	Steps [][]Request // the requests of a step are under way together
	// Loose says that the text's tokens are counted by the engine's own tokenizer: counts
	// and KV events are not written down.
	Loose bool
	// Uneven says that the engine computes it in one step or in several, by chance: where a
	// batch of KV events ends is not written down.
	Uneven bool
	// Only names members of the answer: all others are left out.
	Only []string
}

// Leg says to which of a system's engines a request goes.
type Leg int

// The legs. An aggregated system has only the first.
const (
	First  Leg = iota // the aggregated worker, or prefill
	Second            // decode
)

// String returns the leg as files name it.
func (l Leg) String() string { return [...]string{"first", "second"}[l] }

// Request is one request. In its body $IDS(seed,n) stands for a list of n token ids,
// $HANDOFF for what the last prefill handed over, $SPOILT for the same of an engine that is
// not there, $ROOM for the step's room, $HOST and
// $PORT for where the first engine's bootstrap server is.
type Request struct {
	To      Leg
	Method  string // POST by default where there is a body, else GET
	Path    string
	Body    string
	Headers map[string]string
}

func (r Request) method() string {
	switch {
	case r.Method != "":
		return r.Method
	case r.Body != "":
		return "POST"
	default:
		return "GET"
	}
}

// String returns the request as files name it, macros as they are.
func (r Request) String() string {
	s := fmt.Sprintf("> %s %s %s", r.To, r.method(), r.Path)
	for name, value := range r.Headers {
		s += fmt.Sprintf(" %s: %s", name, value)
	}
	if r.Body != "" {
		s += "\n> " + r.Body
	}
	return s
}

// ids matches the macro of token ids.
var ids = regexp.MustCompile(`\$IDS\((\d+),(\d+)\)`)

// values are what the macros of a step stand for.
type values struct {
	handoff, host string
	port          int
	room          int64
}

func newRoom() int64 { return rand.Int64N(1 << 62) }

func (v values) fill(body string) string {
	body = ids.ReplaceAllStringFunc(body, func(m string) string {
		f := ids.FindStringSubmatch(m)
		seed, _ := strconv.Atoi(f[1])
		n, _ := strconv.Atoi(f[2])
		return TokenIDs(seed, n)
	})
	return strings.NewReplacer(
		"$HANDOFF", v.handoff, "$SPOILT", engineOf.ReplaceAllString(portOf.ReplaceAllString(v.handoff, `"remote_port":1`), `"remote_engine_id":"nobody"`),
		"$HOST", v.host, "$PORT", strconv.Itoa(v.port), "$ROOM", strconv.FormatInt(v.room, 10),
	).Replace(body)
}

// A hand-off of an engine that decode has not met before, where nobody is.
var (
	portOf   = regexp.MustCompile(`"remote_port":\s*\d+`)
	engineOf = regexp.MustCompile(`"remote_engine_id":\s*"[^"]*"`)
)

// The ids lie in the middle of the smallest vocabulary that engines are captured with, so
// that none of them is a mark of its template.
const lowestID, idRange = 1000, 3000

// TokenIDs returns a list of n token ids as JSON. Lists of different seeds differ from
// their first id on.
func TokenIDs(seed, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strconv.Itoa(firstID(seed) + (i*31)%997)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// firstID is the first token id of a seed's list.
func firstID(seed int) int { return lowestID + (seed*7)%(idRange-1000) }

// System is one or two engines that serve together, as they are captured.
type System struct {
	Name   string // also the file's, in testdata
	Engine string
	Apart  bool // prefill and decode
	Cases  []Case
	// Marker is what ends a case: its KV events are the last of the case's.
	Marker func(seed int) []Request
}

// Systems are all that is captured.
func Systems() []System {
	return []System{
		{Name: "vllm", Engine: "vllm", Cases: vllmCases(), Marker: aloneMarker},
		{Name: "vllm-apart", Engine: "vllm", Apart: true, Cases: vllmApartCases(), Marker: vllmMarker},
		{Name: "sglang", Engine: "sglang", Cases: sglangCases(), Marker: aloneMarker},
		{Name: "sglang-apart", Engine: "sglang", Apart: true, Cases: sglangApartCases(), Marker: pairMarker},
	}
}

// Seeds from markerSeed on are markers'.
const markerSeed = 150

func aloneMarker(seed int) []Request {
	return []Request{{Path: completions, Body: idsBody(seed, 40, `"max_tokens":1`)}}
}

// vllmMarker computes at both engines by itself, which a decode of vLLM's does.
func vllmMarker(seed int) []Request {
	r := aloneMarker(seed)[0]
	second := r
	second.To = Second
	return []Request{r, second}
}

func pairMarker(seed int) []Request { return pair(idsBody(seed, 40, `"max_tokens":1`)) }

// pair is both halves of a request that meet.
func pair(body string) []Request {
	body = strings.TrimSuffix(body, "}") + `,"bootstrap_host":"$HOST","bootstrap_port":$PORT,"bootstrap_room":$ROOM}`
	return []Request{{Path: completions, Body: body}, {To: Second, Path: completions, Body: body}}
}

func idsBody(seed, n int, more string) string {
	return fmt.Sprintf(`{"model":"tiny","prompt":$IDS(%d,%d),"temperature":0,%s}`, seed, n, more)
}
