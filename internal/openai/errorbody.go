package openai

import "unicode/utf8"

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

// AppendSSEError appends the same body as one server-sent event, for a stream that has
// begun. Its only line breaks are those that end the event.
func AppendSSEError(dst []byte, status int, typ, code, message, param string) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, status, typ, code, message, param)
	return append(dst, "\n\n"...)
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
