package jinja_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

func Example() {
	tpl, err := jinja.Compile("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}", jinja.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := jinja.Decode([]byte(`[{"role": "user", "content": " hello "}, {"role": "assistant", "content": null}]`))
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := tpl.Render(jinja.Env{Vars: []jinja.Var{{Name: "messages", Value: messages}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Text())

	_, err = jinja.Compile("{{ messages | batch(2) }}", jinja.Limits{})
	fmt.Println(err, jinja.KindOf(err) == jinja.Refused)
	// Output:
	// <user>hello<assistant>None
	// chat template refused: the filter batch true
}
