package openai

// AppendInjected appends body with members inserted before the closing brace of its
// object, after a comma if one is needed. members is JSON text such as
//
//	"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":1
//
// No other byte changes. With empty members the body is appended as it is. dst must not
// share memory with body.
func AppendInjected(dst, body []byte, r *Request, members []byte) []byte {
	dst = append(dst, body[:r.end]...)
	if len(members) > 0 {
		if r.count > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, members...)
	}
	return append(dst, body[r.end:]...)
}
