package openai_test

import (
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/openai"
)

func Example() {
	body := []byte(`{"model":"m","prompt":["Once","Twice"],"max_tokens":64,"n":2}`)
	var r openai.Request
	if err := openai.Scan(openai.Completions, body, &r); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %d %s, %d generations\n", r.Model, r.Prompts, r.PromptKind, r.Parallel())
	limit, _ := openai.FieldOf("max_tokens")
	stream, _ := openai.FieldOf("stream")
	fmt.Printf("%s\n", openai.AppendEdited(nil, body, &r,
		openai.Edit{Field: limit, Value: []byte("1")}, openai.Edit{Field: stream, Value: []byte("false")}))
	// Output:
	// m: 2 texts, 4 generations
	// {"model":"m","prompt":["Once","Twice"],"max_tokens":1,"n":2,"stream":false}
}

// A member that only a router may set is refused: a client could send a worker anywhere.
func ExampleScan() {
	var r openai.Request
	err := openai.Scan(openai.Completions, []byte(`{"model":"m","prompt":"Once","bootstrap_host":"10.0.0.1"}`), &r)
	if refused := (*openai.Error)(nil); errors.As(err, &refused) {
		fmt.Println(refused.Kind == openai.ForbiddenField, refused)
	}
	// Output:
	// true field "bootstrap_host" may not be set by a client
}
