package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What is known of a named worker's ranks stays with them, wherever in its pool they
// stand.
func TestANamedWorkerKeepsWhatIsKnownOfItsRanks(t *testing.T) {
	ranks := []worker.Rank{{ID: 1}, {ID: 5}, {ID: 5, DPRank: 1}, {ID: 5, DPRank: 2}, {ID: 9}}
	column := func(from uint32) []uint32 { return []uint32{from, from + 1, from + 2, from + 3, from + 4} }
	for name, row := range map[string]struct {
		at        pin.Place
		want      []worker.Rank
		from      uint32 // where they stand
		estimated []int
	}{
		"the first":        {pin.Place{Worker: &worker.Worker{ID: 1, DPSize: 1}}, ranks[:1], 0, nil},
		"the last":         {pin.Place{Worker: &worker.Worker{ID: 9, DPSize: 1}}, ranks[4:], 4, nil},
		"one of its ranks": {pin.Place{Worker: &worker.Worker{ID: 5, DPSize: 3}, DPRank: 1}, ranks[2:3], 2, []int{0}},
		"any of its ranks": {pin.Place{Worker: &worker.Worker{ID: 5, DPSize: 3}, AnyRank: true}, ranks[1:4], 1, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			guessed := picker.NewBits(5)
			guessed.Set(2)
			r := load.Request{
				Ranks: ranks, Overlaps: column(10), Predicted: column(20), Host: column(30), Disk: column(40), Estimated: guessed,
				Exclude: row.want[:1], MaxQueuedISLTokens: 7,
			}
			p := picker.Params{Mode: picker.RoundRobin}
			narrow(&r, &row.at, &p)
			require.Equal(t, row.want, r.Ranks)
			for i := range row.want {
				at := row.from + uint32(i)
				require.Equal(t, []uint32{10 + at, 20 + at, 30 + at, 40 + at}, []uint32{r.Overlaps[i], r.Predicted[i], r.Host[i], r.Disk[i]})
			}
			require.Len(t, r.Disk, len(row.want))
			var estimated []int
			for i := range 5 {
				if r.Estimated.Has(i) {
					estimated = append(estimated, i)
				}
			}
			require.Equal(t, row.estimated, estimated)
			require.Nil(t, r.Exclude, "what has failed the request before is no reason either")
			require.Zero(t, r.MaxQueuedISLTokens)
			require.Equal(t, health.Free, r.Filter.Standing(row.want[0]))
			require.True(t, p.ServeOverloaded)
			require.Equal(t, picker.KV, p.Mode, "no turn moves")
		})
	}
}

// A picker that is asked again may name the same worker again: then any of its ranks
// is as good as before, the one that has failed the request too.
func TestANamedWorkersRankIsPickedThoughItHasFailedTheRequest(t *testing.T) {
	ws := testWorkers(t)
	ws[3].DPSize = 2
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.StartTimeout = time.Minute })
	busy := make([]load.Reservation, 2) // rank 1 of it, and all of the other
	params := r.srv.cfg.Decode
	params.BlockSize = 4
	for i, rank := range []worker.Rank{{ID: 4, DPRank: 1}, {ID: 3}} {
		req := &load.Request{Params: &params}
		req.Pick.Role, req.Pick.ISLTokens, req.Pick.NewBlocks = worker.Decode, 4000, 1000
		require.NoError(t, r.book.Reserve(req, rank, 0, &busy[i]))
	}
	m := mainLeg{attempt: 1, avoid: []worker.Rank{{ID: 4}}, plan: new(plan), hdr: wire.Headers{RequestID: "r", Start: "1"}}
	r.srv.avoid.add(&m, time.Now())
	p := r.through(routingKey, "prerouted", routingRepickKey, "true")
	set, _ := routed(t, p.ask(eightTokens, "x-worker-instance-id", "4", "x-request-id", "r", "x-baton-start", "1", "x-envoy-attempt-count", "2"))
	require.Equal(t, "4/0", set["x-worker-instance-id"]+"/"+set["x-dp-rank"])
	p.cancel()
	for i := range busy {
		busy[i].Release(time.Now())
	}
	r.forgetLegs()
	r.requireIdle()
}

// That prefill is becoming ready is not told where there is nobody for decode either.
func TestAQuestionWithoutADecodeWorkerIsRefusedWhilePrefillBecomesReady(t *testing.T) {
	ws := testWorkers(t)[:2]
	for _, w := range ws {
		w.Bootstrap = worker.Bootstrap{}
	}
	r := newReplicaOf(t, "a", fixed(ws), nil)
	p := r.open(filterMain)
	status, code, _ := codeOf(t, p.ask(`{"model":"m","prompt":[1,2],"nvext":{"annotations":["query_instance_id:"]}}`))
	p.cancel()
	require.Equal(t, "503 prefill_not_ready", fmt.Sprint(status, " ", code))
	r.requireIdle()
}

func TestTheAnswerToAQuestionLetterByLetter(t *testing.T) {
	q := &question{pool: &worker.Pool{Key: worker.Key{Model: `a "quoted" name`}}}
	v := &verdict{}
	v.prefill.made = true
	v.prefill.decision.Rank, v.decode.decision.Rank = worker.Rank{ID: 1<<64 - 1, DPRank: 2}, worker.Rank{ID: 3}
	at := time.Unix(1_700_000_000, 999)
	const ids = `"nvext":{"worker_id":{"prefill_worker_id":18446744073709551615,"prefill_dp_rank":2,"decode_worker_id":3,"decode_dp_rank":0}}}`
	for path, want := range map[openai.Path]string{
		openai.Completions:     `{"id":"query","object":"text_completion","created":1700000000,"model":"a \"quoted\" name","choices":[],` + ids,
		openai.ChatCompletions: `{"id":"query","object":"chat.completion","created":1700000000,"model":"a \"quoted\" name","choices":[],` + ids,
		openai.Generate:        `{"text":"",` + ids,
	} {
		require.Equal(t, want, string(appendQueryAnswer(nil, path, q, v, at)))
	}
}

// The decision is told where the operator lets it be told, and where it is asked for.
func TestTheAnswerToAQuestionTellsTheDecisionOnlyWhereItMay(t *testing.T) {
	for _, row := range []struct{ allowed, asked bool }{{true, true}, {true, false}, {false, true}} {
		r := newReplica(t, "a", func(c *Config) { c.DebugHeader = row.allowed })
		p := r.open(filterMain)
		var headers []string
		if row.asked {
			headers = []string{"x-debug-decision", "1"}
		}
		im := p.ask(`{"model":"m","prompt":[1,2],"nvext":{"annotations":["query_instance_id:"]}}`, headers...).GetImmediateResponse()
		p.cancel()
		require.EqualValues(t, 200, im.GetStatus().GetCode())
		told := strings.Contains(setHeaders(im.GetHeaders())["x-baton-decision"], " reason=")
		require.Equal(t, row.allowed && row.asked, told, "%+v", row)
	}
}
