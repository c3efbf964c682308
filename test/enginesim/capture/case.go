package capture

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// Case is a sequence of requests to engines; what they answer is written down.
type Case struct {
	Name  string
	Steps [][]Request // the requests of one step run at the same time
	// Loose says that the engine's own tokenizer counts the tokens of a text. Counts and
	// KV events are then not written down.
	Loose bool
	// Uneven says that the engine may compute the case in one step or in several, by
	// chance. The ends of batches of KV events are then not written down.
	Uneven bool
	// Only names the members of the answer that are written down; empty: all.
	Only []string
}

// Leg says which engine of a system gets a request.
type Leg int

// The legs. A system with one engine has only the first.
const (
	First  Leg = iota // the aggregated worker, or prefill
	Second            // decode
)

// String returns the leg's name in files.
func (l Leg) String() string { return [...]string{"first", "second"}[l] }

// Request is one request. In its body $IDS(seed,n) stands for a list of n token ids,
// $HANDOFF for the last hand-off that a prefill answered, $SPOILT for the same hand-off
// with an engine that does not exist, $ROOM for the step's room, and $HOST and $PORT for
// the address of the first engine's bootstrap server.
type Request struct {
	To      Leg
	Method  string // default POST if there is a body, else GET
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

// String returns the request as it stands in files, with its macros.
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

// values are the values of the macros in one step.
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

// They change a hand-off so that it names an engine that decode has not met before, at an
// address where no server listens.
var (
	portOf   = regexp.MustCompile(`"remote_port":\s*\d+`)
	engineOf = regexp.MustCompile(`"remote_engine_id":\s*"[^"]*"`)
)

// The ids are in the middle of the smallest vocabulary of a captured engine, so that none
// of them is a mark of its template.
const lowestID, idRange = 1000, 3000

// TokenIDs returns a list of n token ids as JSON. Lists of different seeds have different
// first ids.
func TokenIDs(seed, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strconv.Itoa(firstID(seed) + (i*31)%997)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// firstID is the first id of a seed's list.
func firstID(seed int) int { return lowestID + (seed*7)%(idRange-1000) }

// System is one engine, or two that serve together.
type System struct {
	Name   string // also the name of its file in testdata
	Engine string
	Apart  bool // prefill and decode apart
	Cases  []Case
	// Marker returns the requests that end a case; see the package comment.
	Marker func(seed int) []Request
}

// Systems returns all systems that are captured.
func Systems() []System {
	return []System{
		{Name: "vllm", Engine: "vllm", Cases: vllmCases(), Marker: aloneMarker},
		{Name: "vllm-apart", Engine: "vllm", Apart: true, Cases: vllmApartCases(), Marker: vllmMarker},
		{Name: "sglang", Engine: "sglang", Cases: sglangCases(), Marker: aloneMarker},
		{Name: "sglang-apart", Engine: "sglang", Apart: true, Cases: sglangApartCases(), Marker: pairMarker},
	}
}

// Seeds from markerSeed on are for markers.
const markerSeed = 150

func aloneMarker(seed int) []Request {
	return []Request{{Path: completions, Body: idsBody(seed, 40, `"max_tokens":1`)}}
}

// vllmMarker sends the request to each engine alone: a decode of vLLM computes a prompt
// by itself.
func vllmMarker(seed int) []Request {
	r := aloneMarker(seed)[0]
	second := r
	second.To = Second
	return []Request{r, second}
}

func pairMarker(seed int) []Request { return pair(idsBody(seed, 40, `"max_tokens":1`)) }

// pair returns the two halves of one request, with the fields by which they meet.
func pair(body string) []Request {
	body = strings.TrimSuffix(body, "}") + `,"bootstrap_host":"$HOST","bootstrap_port":$PORT,"bootstrap_room":$ROOM}`
	return []Request{{Path: completions, Body: body}, {To: Second, Path: completions, Body: body}}
}

func idsBody(seed, n int, more string) string {
	return fmt.Sprintf(`{"model":"tiny","prompt":$IDS(%d,%d),"temperature":0,%s}`, seed, n, more)
}
