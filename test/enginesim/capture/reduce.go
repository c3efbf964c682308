package capture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The members whose strings and numbers are written: names and counts of the protocol. Of
// other members only the type of the value is written.
var (
	keptStrings = set("object", "finish_reason", "role", "type", "transfer_mode", "owned_by", "id", "publisher", "topic", "medium", "detail", "stop_reason", "matched_stop")
	keptNumbers = set("index", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "code", "remote_num_tokens", "tp_size",
		"dcp_size", "pp_size", "count", "buffer_steps", "length", "block_size", "page_size", "dp_size", "dp_rank", "max_model_len", "status_code")
)

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// random matches the random parts of ids.
var random = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,}`)

// Answer returns the lines of an answer to one of the case's requests.
func (c Case) Answer(status int, h http.Header, body []byte) []string {
	lines := answerLines(status, h, body, c.Loose)
	if len(c.Only) == 0 {
		return lines
	}
	return slices.DeleteFunc(lines, func(line string) bool {
		name, isMember := strings.CutPrefix(line, ".")
		return isMember && !slices.ContainsFunc(c.Only, func(only string) bool { return strings.HasPrefix(name, only) })
	})
}

// answerLines returns the lines of an answer. loose says that its counts of tokens are
// the tokenizer's, which are left out.
func answerLines(status int, h http.Header, body []byte, loose bool) []string {
	out := []string{fmt.Sprintf("status %d", status)}
	kind := h.Get("Content-Type")
	out = append(out, "content-type "+kind)
	for _, name := range []string{"Retry-After", "Allow"} {
		if v := h.Get(name); v != "" {
			out = append(out, strings.ToLower(name)+" "+v)
		}
	}
	switch {
	case len(body) == 0:
		return append(out, "empty")
	case strings.HasPrefix(kind, "text/event-stream"):
		return append(out, stream(body, loose)...)
	case strings.HasPrefix(kind, "application/json"):
		return append(out, object(body, loose)...)
	case strings.HasPrefix(kind, "text/plain") && bytes.Contains(body, []byte("# TYPE ")):
		return append(out, metrics(body)...)
	default:
		return append(out, "text")
	}
}

// stream returns the lines of server-sent events: for each one how it is framed, and its
// data.
func stream(body []byte, loose bool) (out []string) {
	for len(body) > 0 {
		end, gap := bytes.Index(body, []byte("\n\n")), 2
		if crlf := bytes.Index(body, []byte("\r\n\r\n")); crlf >= 0 && (end < 0 || crlf < end) {
			end, gap = crlf, 4
		}
		if end < 0 {
			return append(out, "event without an end")
		}
		event, framing := body[:end], strconv.Quote(string(body[end:end+gap]))
		body = body[end+gap:]
		data, found := bytes.CutPrefix(event, []byte("data: "))
		switch {
		case !found:
			out = append(out, "event no data, "+framing)
		case string(data) == "[DONE]":
			out = append(out, "event [DONE], "+framing)
		default:
			out = append(append(out, "event data, "+framing), object(data, loose)...)
		}
	}
	return out
}

// object returns the lines of a JSON value.
func object(b []byte, loose bool) []string {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return []string{"not JSON"}
	}
	return value(nil, "", "", v, loose)
}

func value(out []string, path, name string, v any, loose bool) []string {
	put := func(s string) []string { return append(out, path+" "+s) }
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return put("{}")
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out = value(out, path+"."+k, k, v[k], loose)
		}
		return out
	case []any:
		if len(v) == 0 {
			return put("[]")
		}
		if k := scalarKind(v); k != "" {
			if loose {
				return put("[]" + k)
			}
			return put(fmt.Sprintf("[%d]%s", len(v), k))
		}
		for i, e := range v {
			out = value(out, fmt.Sprintf("%s[%d]", path, i), name, e, loose)
		}
		return out
	case string:
		if v == "" || keptStrings[name] {
			return put(strconv.Quote(random.ReplaceAllString(v, "RANDOM")))
		}
		return put("string")
	case json.Number:
		if keptNumbers[name] && (!loose || !strings.HasSuffix(name, "_tokens") && name != "count") {
			return put(v.String())
		}
		return put(numberKind(v))
	case bool:
		return put(strconv.FormatBool(v))
	default:
		return put("null")
	}
}

func numberKind(n json.Number) string {
	if strings.ContainsAny(n.String(), ".eE") {
		return "float"
	}
	return "int"
}

// scalarKind is the type that all elements of a list have, or "" if they have no common
// one.
func scalarKind(list []any) (kind string) {
	for i, e := range list {
		var k string
		switch e := e.(type) {
		case json.Number:
			k = numberKind(e)
		case string:
			k = "string"
		default:
			return ""
		}
		if i > 0 && k != kind {
			return ""
		}
		kind = k
	}
	return kind
}

// metrics returns the lines of the engine's own families on a metrics page: name, type,
// and the labels of the first sample. Families that only say when a counter began are
// left out.
func metrics(page []byte) (out []string) {
	kind, name := "", ""
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if f := strings.Fields(line); len(f) == 4 && f[0] == "#" && f[1] == "TYPE" {
			name, kind = f[2], f[3]
			continue
		}
		engines := strings.HasPrefix(line, "vllm:") || strings.HasPrefix(line, "sglang:") || strings.HasPrefix(line, "process_start_time_seconds")
		if kind == "" || !engines || strings.HasPrefix(line, "#") || strings.HasSuffix(name, "_created") {
			continue
		}
		out = append(out, fmt.Sprintf("metric %s %s", name, kind))
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			if m[1] != "le" {
				out = append(out, fmt.Sprintf("metric %s {%s}", name, m[1]))
			}
		}
		kind = ""
	}
	slices.Sort(out)
	return out
}

var label = regexp.MustCompile(`[{,]([a-zA-Z_]\w*)="`)
