package health

import "math/rand/v2"

func newRand(s rand.Source) *rand.Rand { return rand.New(s) }
