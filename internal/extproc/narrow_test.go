package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A picker that is asked again may name the same worker again. Then any rank of the worker
// may be picked, also the one that has failed the request.
func TestANamedWorkersRankIsPickedThoughItHasFailedTheRequest(t *testing.T) {
	ws := routetest.Workers()
	ws[3].DPSize = 2
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.StartTimeout = time.Minute })
	busy := make([]load.Reservation, 2) // rank 1 of the named worker, and the whole other worker
	params := r.srv.cfg.Decode
	params.BlockSize = 4
	for i, rank := range []worker.Rank{{ID: 4, DPRank: 1}, {ID: 3}} {
		req := &load.Request{Params: &params}
		req.Pick.Role, req.Pick.ISLTokens, req.Pick.NewBlocks = worker.Decode, 4000, 1000
		require.NoError(t, r.book.Reserve(req, rank, 0, &busy[i]))
	}
	q := &leg.Request{Attempt: 1, Headers: wire.Headers{RequestID: "r", Start: "1"}}
	r.srv.avoid.add(q, leg.Lesson{Avoid: []worker.Rank{{ID: 4}}}, time.Now())
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

// While prefill becomes ready, a request that only asks who would serve it is refused if
// there is no decode worker.
func TestAQuestionWithoutADecodeWorkerIsRefusedWhilePrefillBecomesReady(t *testing.T) {
	ws := routetest.Workers()[:2]
	for _, w := range ws {
		w.Bootstrap = worker.Bootstrap{}
	}
	r := newReplicaOf(t, "a", fixed(ws), nil)
	p := r.through(routingKey, "prerouted")
	status, code, _ := codeOf(t, p.ask(`{"model":"m","prompt":[1,2],"nvext":{"annotations":["query_instance_id:"]}}`))
	p.cancel()
	require.Equal(t, "503 prefill_not_ready", fmt.Sprint(status, " ", code))
	r.requireIdle()
}

func TestTheAnswerToAQuestionLetterByLetter(t *testing.T) {
	d := &route.Decision{Key: worker.Key{Model: `a "quoted" name`}, Apart: true}
	d.Prefill.Rank, d.Decode.Rank = worker.Rank{ID: 1<<64 - 1, DPRank: 2}, worker.Rank{ID: 3}
	at := time.Unix(1_700_000_000, 999)
	const ids = `"nvext":{"worker_id":{"prefill_worker_id":18446744073709551615,"prefill_dp_rank":2,"decode_worker_id":3,"decode_dp_rank":0}}}`
	for path, want := range map[openai.Path]string{
		openai.Completions:     `{"id":"query","object":"text_completion","created":1700000000,"model":"a \"quoted\" name","choices":[],` + ids,
		openai.ChatCompletions: `{"id":"query","object":"chat.completion","created":1700000000,"model":"a \"quoted\" name","choices":[],` + ids,
		openai.Generate:        `{"text":"",` + ids,
	} {
		require.Equal(t, want, string(appendQueryAnswer(nil, path, d, at)))
	}
}

// The answer has the decision only if the operator allows that and the request asks for it.
func TestTheAnswerToAQuestionTellsTheDecisionOnlyWhereItMay(t *testing.T) {
	for _, row := range []struct{ allowed, asked bool }{{true, true}, {true, false}, {false, true}} {
		r := newReplica(t, "a", func(c *Config) { c.DebugHeader = row.allowed })
		p := r.through(routingKey, "prerouted")
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
