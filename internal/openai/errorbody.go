package openai

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// AppendError appends an error body in OpenAI's form:
//
//	{"error":{"message":"…","type":"…","param":null,"code":null}}
//
// If typ is empty, it is chosen by the HTTP status; an empty param or code is written as
// null. The texts may hold any bytes: they are escaped, and invalid UTF-8 is replaced.
// members are added to the error object as they are: each is a quoted name, a colon and a
// JSON value.
func AppendError(dst []byte, status int, typ, code, message, param string, members ...string) []byte {
	if typ == "" {
		typ = errorType(status)
	}
	dst = append(dst, `{"error":{"message":`...)
	dst = AppendString(dst, message)
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, typ)
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, param)
	dst = append(dst, `,"code":`...)
	dst = appendStringOrNull(dst, code)
	for _, m := range members {
		dst = append(append(dst, ','), m...)
	}
	return append(dst, `}}`...)
}

// AppendErrorAt is AppendError in the form of the API of a request path: on /v1/messages and below
// it in Anthropic's, elsewhere in OpenAI's:
//
//	{"type":"error","error":{"type":"…","message":"…","param":null,"code":null}}
func AppendErrorAt(dst []byte, path string, status int, typ, code, message, param string, members ...string) []byte {
	if !strings.HasPrefix(path, AnthropicMessages.String()) {
		return AppendError(dst, status, typ, code, message, param, members...)
	}
	dst = append(dst, `{"type":"error",`...)
	start := len(dst)
	dst = AppendError(dst, status, anthropicType(status), code, message, param, members...)
	return slices.Delete(dst, start, start+1) // its opening brace
}

// AppendSSEErrorAt appends an error as one server-sent event, for a stream that has begun. Its only
// line breaks are those within and behind the event.
func AppendSSEErrorAt(dst []byte, path string, status int, typ, code, message, param string) []byte {
	switch p, _ := ParsePath(path); p {
	case AnthropicMessages:
		dst = append(dst, "event: error\n"...)
	case Responses:
		dst = append(dst, `event: error`+"\n"+`data: {"type":"error","code":`...)
		dst = AppendString(dst, code)
		dst = append(dst, `,"message":`...)
		dst = AppendString(dst, message)
		dst = append(dst, `,"param":`...)
		return append(appendStringOrNull(dst, param), "}\n\n"...)
	}
	dst = append(dst, "data: "...)
	dst = AppendErrorAt(dst, path, status, typ, code, message, param)
	return append(dst, "\n\n"...)
}

// anthropicType returns the type that Anthropic's API gives an error of this status.
func anthropicType(status int) string {
	switch status {
	case 413:
		return "request_too_large"
	case 503:
		return "overloaded_error"
	case 504:
		return "timeout_error"
	}
	typ := errorType(status)
	if typ == "server_error" {
		return "api_error"
	}
	return typ
}

// errorType returns the type that OpenAI's API gives an error of this status.
func errorType(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 404:
		return "not_found_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	default:
		return "invalid_request_error"
	}
}

func appendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}

// AppendString appends s as a JSON string, quotes included. Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c < 0x20 || c == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		case c == 0x2028 || c == 0x2029: // some readers of SSE and of scripts take these as line ends
			dst = append(dst, '\\', 'u', '2', '0', '2', digits[c&15])
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return append(dst, '"')
}
