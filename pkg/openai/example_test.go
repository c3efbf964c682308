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
	// Output:
	// m: 2 texts, 4 generations
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
