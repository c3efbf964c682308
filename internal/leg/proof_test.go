package leg

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatAnAnswerProvesOfItsPrompt: a count is compared exactly where it is known exactly,
// else so that no healthy prefill fails.
func TestWhatAnAnswerProvesOfItsPrompt(t *testing.T) {
	told := func(prompt, output int64) Told {
		return Told{Reading: ReadUsage, Prompt: prompt, Output: output, Choices: 1}
	}
	exact, estimate, nothing := Expected{Tokens: 9000, Exact: true}, Expected{Tokens: 9000}, Expected{}
	contradicted := exact
	contradicted.Told = 9001
	for name, c := range map[string]struct {
		of   Expected
		told Told
		want Proof
	}{
		"the very count":                              {exact, told(9000, 1), Proven},
		"one more":                                    {exact, told(9001, 1), Miscounted},
		"one less":                                    {exact, told(8999, 1), Miscounted},
		"what the attempt before was told":            {contradicted, told(9001, 1), Believed},
		"something else than that":                    {contradicted, told(9002, 1), Miscounted},
		"what was expected, though":                   {contradicted, told(9000, 1), Proven},
		"the same, and nothing made":                  {contradicted, told(9001, 0), NotMade},
		"nothing made":                                {exact, told(9000, 0), NotMade},
		"an aborted prefill of SGLang's":              {estimate, told(1, 0), NotMade},
		"one token of a prompt of many KB":            {estimate, told(1, 1), Miscounted},
		"no token of it":                              {estimate, told(0, 1), Miscounted},
		"fewer tokens than estimated":                 {estimate, told(1000, 1), Proven},
		"a text of long runs":                         {estimate, told(9000/estimateFactor, 1), Proven},
		"many times more: a template, or pictures":    {estimate, told(900_000, 1), Proven},
		"a short prompt":                              {Expected{Tokens: 100}, told(1, 1), Proven},
		"nothing was expected":                        {nothing, told(1, 1), Proven},
		"nothing was expected, and nothing made":      {nothing, told(7, 0), NotMade},
		"a batch of which one has made none":          {estimate, Told{Reading: ReadUsage, Prompt: 9000, Output: 1, Choices: 2}, NotMade},
		"a batch":                                     {exact, Told{Reading: ReadUsage, Prompt: 9000, Output: 2, Choices: 2}, Proven},
		"it does not tell what was made":              {exact, told(9000, -1), NoUsage},
		"it does not, and counts something else":      {contradicted, told(9001, -1), Miscounted},
		"there is no usage":                           {exact, Told{}, NoUsage},
		"the answer is too long":                      {exact, Told{Reading: ReadTooLong}, Unread},
		"a count beyond any prompt":                   {exact, told(1<<62, 1), Miscounted},
		"a count beyond any prompt, of an estimate's": {estimate, told(1<<62, 1), Proven},
	} {
		require.Equal(t, c.want, c.of.prove(&c.told), name)
	}
}
