package record_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/discovery/record"
)

func ExampleParseList() {
	workers, err := record.ParseList("workers.yaml", []byte(`
workers:
  - {id: 7, role: prefill, engine: sglang, models: [qwen], endpoint: "10.0.0.7:30000", block_size: 64, bootstrap: {port: 8998}}
`))
	fmt.Println(workers[0].ID, workers[0].Bootstrap, err)

	_, err = record.ParseList("workers.yaml", []byte("workers:\n  - id: 7\n    rol: prefill\n"))
	fmt.Println(err != nil)

	_, err = record.ParseList("workers.yaml", nil)
	fmt.Println(err)
	// Output:
	// 7 {10.0.0.7 8998 []} <nil>
	// true
	// workers.yaml:1: no workers in it: expected `workers:` with a list, or `workers: []` for none
}
