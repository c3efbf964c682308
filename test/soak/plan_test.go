package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func allFleets() []model {
	return fleets([]worker.Engine{worker.SGLang, worker.VLLM, worker.TensorRTLLM})
}

func TestTheSameSeedGivesTheSamePlan(t *testing.T) {
	plan := func(seed uint64) []fault {
		return planFaults(seed, time.Minute, time.Second/2, allFleets(), lanes, true)
	}
	require.Equal(t, plan(7), plan(7))
	require.NotEqual(t, plan(7), plan(8))
	asks := func() (out []*ask) {
		rng := rand.New(rand.NewPCG(7, 2))
		for n := range 50 {
			out = append(out, drawAsk(rng, n, allFleets(), lanes))
		}
		return out
	}
	require.Equal(t, asks(), asks())
}

func TestALongPlanHasEveryKindAndStrikesNothingTwiceAtOnce(t *testing.T) {
	kinds := map[kind]bool{}
	free := map[target]time.Duration{}
	var etcdFree time.Duration
	plan := planFaults(1, time.Hour, time.Second, allFleets(), lanes, true)
	for _, f := range plan {
		kinds[f.Kind] = true
		require.Less(t, f.At, time.Hour)
		require.Positive(t, f.For)
		if f.etcd() {
			require.GreaterOrEqual(t, f.At, etcdFree)
			etcdFree = f.At + f.For
			continue
		}
		require.GreaterOrEqual(t, f.At, free[f.On], f)
		free[f.On] = f.At + f.For
		require.NoError(t, injected(f).Validate(), f)
	}
	require.Len(t, kinds, 23)
	require.Greater(t, len(plan), 2500)
	for _, f := range planFaults(1, time.Hour, time.Second, allFleets()[:1], lanes, false) {
		require.False(t, f.etcd(), f)
		require.NotEqual(t, noHandoff, f.Kind)
	}
}

func TestRequestsCarryTheirRightAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for n := range 2000 {
		a := drawAsk(rng, n, allFleets(), lanes)
		if seen[a.Refusal]++; a.Refusal != "" {
			continue
		}
		require.Contains(t, a.Body, `"model":"`+a.Model+`"`)
		for _, want := range a.Want {
			require.True(t, strings.HasPrefix(want, "d"), want)
			require.Equal(t, want, a.Want[0])
		}
		if a.Path == "/v1/completions" {
			_, rest, _ := strings.Cut(a.Body, `"prompt":"`)
			prompt, _, _ := strings.Cut(rest, `"`)
			require.True(t, strings.HasPrefix(a.Want[0], "d"+enginesim.Digest(enginesim.Tokenize(prompt))))
		}
	}
	for _, code := range []string{"", "not_json", "forbidden_field", "model_not_found", "not_disaggregable", poisoned} {
		require.Positive(t, seen[code], code)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	var text strings.Builder
	o, err := parse([]string{"-engines", "vllm,vllm,sglang"}, &text)
	require.NoError(t, err)
	require.Equal(t, []worker.Engine{worker.VLLM, worker.SGLang}, o.engines)
	require.NotZero(t, o.seed)
	for _, args := range [][]string{{"-rate", "0"}, {"-for", "-1s"}, {"-engines", "none"}, {"extra"}, {"-nothing"}} {
		_, err := parse(args, &text)
		require.Error(t, err, args)
	}
}
