//go:build real

package real

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reply is an answer as it is compared: what a client could tell two engines apart by.
type reply struct {
	fault  string // why there is none
	status int
	facts  map[string]string // by path in the answer, choices by their index
}

// incidental are members whose values differ from one answer to the next, or from one process
// to the next. What was cached depends on who was asked before. SGLang's decode does not tell
// when parts of prefill's work ended, and no rate.
var incidental = map[string]bool{
	"id": true, "created": true, "system_fingerprint": true, "rid": true,
	"cached_tokens": true, "prompt_tokens_details": true, "cached_tokens_details": true,
	"item_id": true, "sequence_number": true, "request_id": true, "created_at": true, "completed_at": true, "signature": true, "input_tokens_details": true,
	"decode_throughput": true, "prefill_finished_time": true, "storage_prefetch_wait": true, "storage_staging_wait": true,
}

// passing are parts of messages that differ in the same way: a time of day, and the folder in
// which the engine is installed.
var passing = regexp.MustCompile(`\[\d\d:\d\d:\d\d\] |/[^"\s]*/\.tools/`)

// joined are members of which each event of a stream has a part.
var joined = map[string]bool{"text": true, "content": true, "reasoning": true, "reasoning_content": true, "arguments": true, "delta": true}

// replyOf reads an answer. cumulative: each event of a stream has all that came before it.
func replyOf(status int, contentType, body string, cumulative bool) *reply {
	r := &reply{status: status, facts: map[string]string{"content-type": contentType}}
	if !strings.HasPrefix(contentType, "text/event-stream") {
		r.add("", body, true)
		return r
	}
	for line := range strings.SplitSeq(body, "\n") {
		switch data, found := strings.CutPrefix(line, "data: "); {
		case found && data == "[DONE]":
			r.facts["[DONE]"] = "yes"
		case found:
			r.add("", data, cumulative)
		case line != "" && !found:
			r.facts["a line of the stream"] = line
		}
	}
	return r
}

// faulty is what came where no answer did.
func faulty(why string) *reply { return &reply{fault: why, facts: map[string]string{}} }

// add takes the facts of a JSON text. whole: it says all there is to say of a member.
func (r *reply) add(path, text string, whole bool) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		r.facts[path+"(not JSON)"] = text
		return
	}
	if m, ok := v.(map[string]any); ok && m["index"] != nil {
		path += fmt.Sprintf("[%v]", m["index"]) // an event of one of several prompts
	}
	r.walk(path, "", v, whole)
}

func (r *reply) walk(path, name string, v any, whole bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, member := range v {
			if incidental[k] {
				continue
			}
			// A choice is the same thing plain and in events.
			r.walk(strings.TrimPrefix(path+"."+k, "."), k, member, whole)
		}
	case []any:
		r.list(path, v, whole)
	case string:
		v = passing.ReplaceAllString(v, "")
		if was, has := r.facts[path]; has && !whole && joined[name] && was != "null" {
			v = was + v
		}
		r.facts[path] = v
	case nil:
		if _, has := r.facts[path]; !has || whole {
			r.facts[path] = "null"
		}
	default:
		r.facts[path] = masked(v)
	}
}

// list takes a list's elements by their index where they say one, else as one fact. In events
// lists grow.
func (r *reply) list(path string, l []any, whole bool) {
	for i, e := range l {
		if m, ok := e.(map[string]any); ok && (m["index"] != nil || path == "") {
			index := strconv.Itoa(i)
			if n, ok := m["index"].(json.Number); ok {
				index = n.String()
			}
			r.walk(path+"["+index+"]", "", e, whole)
			continue
		}
		text := masked(e)
		if i > 0 || !whole && r.facts[path] != "" && r.facts[path] != "null" {
			text = r.facts[path] + " " + text
		}
		r.facts[path] = text
	}
	if _, has := r.facts[path]; len(l) == 0 && (!has || whole) {
		r.facts[path] = "[]"
	}
}

// masked is a value in which each number with a fraction is the same: two runs of one
// computation differ in its last digits.
func masked(v any) string {
	switch v := v.(type) {
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "~"
		}
		return v.String()
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if !incidental[k] {
				parts = append(parts, k+":"+masked(v[k]))
			}
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = masked(v[i])
		}
		return "[" + strings.Join(parts, " ") + "]"
	case string:
		return strconv.Quote(v)
	default:
		return fmt.Sprint(v)
	}
}

// unlike returns what differs between two answers, and of which members, without indices. Of
// two that differ in their status only that counts.
func unlike(a, b *reply) (what, members []string) {
	if x, y := a.facts[anEnd], b.facts[anEnd]; x != y {
		return []string{fmt.Sprintf("%s: %s, %s", anEnd, quoted(x, x != ""), quoted(y, y != ""))}, []string{anEnd}
	}
	if a.fault != b.fault || a.status != b.status {
		return []string{fmt.Sprintf("status: %d, %d", a.status, b.status)}, []string{"status"}
	}
	paths := map[string]bool{}
	for _, r := range []*reply{a, b} {
		for path := range r.facts {
			paths[path] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		x, inA := a.facts[path]
		y, inB := b.facts[path]
		if x == y && inA == inB {
			continue
		}
		what = append(what, fmt.Sprintf("%s: %s, %s", path, quoted(x, inA), quoted(y, inB)))
		if member := index.ReplaceAllString(path, ""); !slices.Contains(members, member) {
			members = append(members, member)
		}
	}
	return what, members
}

// anEnd is the fact that an engine has ended by a request, and its role.
const anEnd = "an engine has ended"

var index = regexp.MustCompile(`\[\d+\]`)

func quoted(fact string, has bool) string {
	if !has {
		return "absent"
	}
	return fmt.Sprintf("%.300q", fact)
}

// String sums an answer up, for people.
func (r *reply) String() string {
	parts := []string{strconv.Itoa(r.status)}
	if r.fault != "" {
		parts[0] = r.fault
	}
	if role := r.facts[anEnd]; role != "" {
		parts = append(parts, role+" has ended")
	}
	if strings.HasPrefix(r.facts["content-type"], "text/event-stream") {
		parts[0] += " streamed"
	}
	var texts []string
	for _, path := range slices.Sorted(maps.Keys(r.facts)) {
		fact := r.facts[path]
		name := path[strings.LastIndex(path, ".")+1:]
		switch {
		case name == "finish_reason" && fact == "null": // of an event; another says more
		case name == "finish_reason" || strings.HasSuffix(path, "finish_reason.type"):
			parts = append(parts, fact)
		case name == "message" || strings.HasSuffix(path, "(not JSON)"), name == "detail", name == "error":
			texts = append(texts, fmt.Sprintf("%.160s", fact))
		case joined[name] && fact != "null" && !strings.Contains(path, "logprobs"):
			texts = append(texts, fmt.Sprintf("%.60q", fact))
		}
	}
	for _, of := range []string{"usage.", "meta_info."} {
		if p, ok := r.facts[of+"prompt_tokens"]; ok {
			parts = append(parts, fmt.Sprintf("%s + %s tokens", p, r.facts[of+"completion_tokens"]))
		}
	}
	return strings.Join(append(parts, texts...), ", ")
}

// TestWhatDiffersBetweenTwoAnswers: what is compared is what a client sees, and a stream's
// events are put together.
func TestWhatDiffersBetweenTwoAnswers(t *testing.T) {
	const plain = "application/json"
	stream := func(events ...string) *reply {
		return replyOf(200, "text/event-stream", "data: "+strings.Join(events, "\n\ndata: ")+"\n\ndata: [DONE]\n\n", false)
	}
	for _, c := range []struct {
		name    string
		a, b    *reply
		members []string
	}{
		{"ids and times", replyOf(200, plain, `{"id":"a","created":1,"usage":{"prompt_tokens":2}}`, true), replyOf(200, plain, `{"id":"b","created":2,"usage":{"prompt_tokens":2}}`, true), nil},
		{"a count", replyOf(200, plain, `{"usage":{"prompt_tokens":2}}`, true), replyOf(200, plain, `{"usage":{"prompt_tokens":3}}`, true), []string{"usage.prompt_tokens"}},
		{"a member that is not there", replyOf(200, plain, `{"choices":[{"index":0,"logprobs":null}]}`, true), replyOf(200, plain, `{"choices":[{"index":0}]}`, true), []string{"choices.logprobs"}},
		{"a choice more", replyOf(200, plain, `{"choices":[{"index":0,"text":"a"}]}`, true), replyOf(200, plain, `{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`, true), []string{"choices.index", "choices.text"}},
		{"last digits", replyOf(200, plain, `{"logprobs":[-1.5,{"t":"a","p":-2.25}]}`, true), replyOf(200, plain, `{"logprobs":[-1.25,{"t":"a","p":-2.5}]}`, true), nil},
		{"a token", replyOf(200, plain, `{"logprobs":[{"t":"a"}]}`, true), replyOf(200, plain, `{"logprobs":[{"t":"b"}]}`, true), []string{"logprobs"}},
		{"a status", replyOf(400, plain, `{"error":"a"}`, true), replyOf(422, plain, `{"detail":"b"}`, true), []string{"status"}},
		{"events cut elsewhere", stream(`{"choices":[{"index":0,"text":"ab","ids":[1,2]}]}`), stream(`{"choices":[{"index":0,"text":"a","ids":[1]}]}`, `{"choices":[{"index":0,"text":"b","ids":[2]}]}`), nil},
		{"a time and a folder", replyOf(400, plain, `{"error":"[01:02:03] at /a/.tools/b.py"}`, true), replyOf(400, plain, `{"error":"[02:03:04] at /c/d/.tools/b.py"}`, true), nil},
		{"the end of a stream", stream(`{"choices":[{"index":0,"finish_reason":null}]}`, `{"choices":[{"index":0,"finish_reason":"stop"}]}`), stream(`{"choices":[{"index":0,"finish_reason":null}]}`), []string{"choices.finish_reason"}},
	} {
		_, members := unlike(c.a, c.b)
		require.Equal(t, c.members, members, c.name)
	}
}
