package openai_test

import (
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// The main leg: read the body, then put the rendezvous into it.
func ExampleScan() {
	body := []byte(`{"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": true}`)
	var r openai.Request
	if err := openai.Scan(openai.ChatCompletions, body, &r); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s stream=%t prompt=%s rooms=%d\n", r.Model, r.Stream, r.PromptKind, r.Parallel())
	fmt.Printf("%s\n", openai.InjectInPlace(body, &r, []byte(`"bootstrap_room":7`)))
	// Output:
	// llama stream=true prompt=messages rooms=1
	// {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": true,"bootstrap_room":7}
}

// The prefill leg: the body comes as the main leg left it, and is cut down to
// one token without a stream.
func ExampleAppendEdited() {
	body := []byte(`{"model":"llama","prompt":"hi","stream":true,"stream_options":{"include_usage":true},"bootstrap_room":7}`)
	var r openai.Request
	if err := openai.ScanInjected(openai.Completions, body, &r); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", openai.AppendEdited(nil, body, &r,
		openai.Edit{Field: openai.Stream, Value: []byte("false")},
		openai.Edit{Field: openai.StreamOptions},
		openai.Edit{Field: openai.MaxTokens, Value: []byte("1")}))
	// Output:
	// {"model":"llama","prompt":"hi","stream":false,"bootstrap_room":7,"max_tokens":1}
}

func ExampleError() {
	var r openai.Request
	err := openai.Scan(openai.Completions, []byte(`{"model":"m","prompt":"p","\u0062ootstrap_room":1}`), &r)
	var e *openai.Error
	if errors.As(err, &e) {
		fmt.Println(e.Kind, e.Field)
		fmt.Printf("%s\n", openai.AppendError(nil, 400, "", e.Kind.String(), e.Error(), e.Field))
	}
	// Output:
	// forbidden_field bootstrap_room
	// {"error":{"message":"field \"bootstrap_room\" may not be set by a client","type":"invalid_request_error","param":"bootstrap_room","code":"forbidden_field"}}
}
