package tokens_test

import (
	"context"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func ExampleResolver_Resolve() {
	r, err := tokens.New(tokens.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	var scratch tokens.Scratch
	for _, body := range []string{
		`{"model":"m","prompt":[1,2,3,4,5,6,7,8]}`,
		`{"model":"m","prompt":"a text long enough to have a block or two, and nobody near or far who could tokenize it"}`,
	} {
		var req openai.Request
		if err := openai.Scan(openai.Completions, []byte(body), &req); err != nil {
			fmt.Println(err)
			return
		}
		q := tokens.Query{Key: worker.Key{Model: "m"}, Request: &req, Body: []byte(body), BlockSize: 4}
		p := r.Resolve(context.Background(), q, nil, &scratch)
		fmt.Printf("%s (%s): %d tokens, %d blocks\n", p.Source, p.Reason, p.ISLTokens, len(p.Hashes)*max(p.BlocksPerHash, 1))
	}
	// Output:
	// request ids (ids in the request): 8 tokens, 2 blocks
	// byte estimate (no tokenizer): 22 tokens, 4 blocks
}
