package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

func TestHeldCountsLeadingBlocksOnly(t *testing.T) {
	parent := func(h int64) *int64 { return &h }
	cached := []enginesim.CachedBlock{
		{Hash: 11, Tokens: []uint32{1, 2}},
		{Hash: 12, Parent: parent(11), Tokens: []uint32{3, 4}},
		{Hash: 13, Parent: parent(12), Tokens: []uint32{5, 6}},
		{Hash: 99, Parent: parent(98), Tokens: []uint32{7, 8}},
	}
	for name, c := range map[string]struct {
		prompt []uint32
		want   int
	}{
		"the whole prompt is cached":                    {[]uint32{1, 2, 3, 4, 5, 6}, 3},
		"a half block at the end does not count":        {[]uint32{1, 2, 3, 4, 5}, 2},
		"after the first miss nothing counts":           {[]uint32{1, 2, 9, 9, 5, 6}, 1},
		"the same tokens elsewhere are another block":   {[]uint32{3, 4}, 0},
		"a block whose parent is gone is not reachable": {[]uint32{1, 2, 3, 4, 5, 6, 7, 8}, 3},
		"a prompt shorter than a block holds none":      {[]uint32{1}, 0},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, held(cached, c.prompt, 2)) })
	}
}

// told is a decision as the plugin tells it.
func told(text string) decision.Record {
	var d decision.Record
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		panic(err)
	}
	return d
}

func TestWhyNamesTheNextBestAsTheStoryDoes(t *testing.T) {
	d := fitting().attempts[0]
	require.Equal(t, "lowest cost 0.0; next best p2 at 3.0", why(&d.Prefill, names{102: "p2"}))
}

func TestAttemptTextNamesTheFailure(t *testing.T) {
	d := told(`{"prefill":{"worker_id":"101"},"decode":{"worker_id":"201"},"outcome":"retried","detail":"prefill_failed",
		"prefill_leg":"failed","prefill_leg_detail":"connection_lost"}`)
	require.Equal(t, "prefill p1, decode 201: the prefill leg failed (connection_lost); given up for a fresh attempt (prefill_failed)", attemptText(&d, names{101: "p1"}))
	d.Outcome, d.Detail, d.Leg = decision.OK, "", "ended"
	require.Equal(t, "prefill 101, decode 201: ok", attemptText(&d, nil))
}

// fitting is a later turn of which everything is as it should be.
func fitting() *served {
	messages := []message{{"system", travelPrompt}, {"user", travelTurns[0]}}
	prompt := promptTokens(messages)
	return &served{
		conversation: &conversation{name: "Ann"}, turn: 2, messages: messages, prompt: prompt,
		held: map[worker.ID]int{101: 3, 102: 0},
		answer: &answer{
			text: expected(messages, answerTokens), promptTokens: len(prompt), cachedTokens: 3 * blockSize,
			explained: "isl=9; prefill=101/0 reason=lowest-cost", firstToken: 41 * time.Millisecond,
		},
		attempts: []decision.Record{told(fmt.Sprintf(`{"attempt":1,"outcome":"ok","prompt_blocks":%d,"decode":{"worker_id":"201"},
			"prefill":{"worker_id":"101","mode":"kv","overlap_blocks":3,"table":[
				{"worker_id":"101","picked":true,"eligible":true,"overlap_blocks":3,"cost":0},{"worker_id":"102","eligible":true,"cost":3}]}}`, len(prompt)/blockSize))},
	}
}

func TestAnUntrueStoryIsFound(t *testing.T) {
	require.NoError(t, fitting().verify())
	for name, spoil := range map[string]func(r *served){
		"the answer belongs to another prompt":         func(r *served) { r.answer.text = expected(r.messages[:1], answerTokens) },
		"the answer lacks its last word":               func(r *served) { r.answer.text = expected(r.messages, answerTokens-1) },
		"the attempt did not end well":                 func(r *served) { r.attempts[0].Outcome = "failed" },
		"the header names another worker":              func(r *served) { r.answer.explained = "prefill=102/0 reason=tie" },
		"the worker counts another prompt":             func(r *served) { r.answer.promptTokens++ },
		"the plugin counts another prompt":             func(r *served) { r.attempts[0].PromptBlocks++ },
		"the plugin knows of more than there is":       func(r *served) { r.held[101] = 2 },
		"the cache was not used":                       func(r *served) { r.answer.cachedTokens = 0 },
		"another worker held more and was passed over": func(r *served) { r.held[102] = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			r := fitting()
			spoil(r)
			require.Error(t, r.verify())
		})
	}
}

func TestTheRowsAfterTheKillMustAvoidTheDead(t *testing.T) {
	var out bytes.Buffer
	killed := time.Now()
	s := &show{out: &screen{w: &out}, dead: &pod{name: "p1", id: 101}, killed: killed}
	require.ErrorContains(t, s.check(fitting()), "which is dead")

	r := fitting()
	r.held = map[worker.ID]int{102: 3}
	r.attempts[0].Prefill.Rank.ID, r.answer.explained = 102, "prefill=102/0 reason=only-candidate"
	require.NoError(t, s.check(r))

	first := decision.Record{Attempt: 1, Time: killed.Add(time.Second), Outcome: decision.Retried}
	r.attempts = append([]decision.Record{first}, r.attempts...)
	require.ErrorContains(t, s.check(r), "needed 2 attempts")
}

func TestALaterTurnMustFindItsBlocks(t *testing.T) {
	r := fitting()
	r.held, r.attempts[0].Prefill.OverlapBlocks, r.answer.cachedTokens = nil, 0, 0
	s := &show{out: &screen{w: new(bytes.Buffer)}}
	require.ErrorContains(t, s.check(r), "nobody held anything")
	r.turn = 1
	require.NoError(t, s.check(r))
}

func TestTableRowsStandUnderTheirTitles(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out}
	s.tableHead()
	s.tableRow(fitting())
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[1], "41 ms")
	for _, c := range []string{"overlap", "cached", "first token"} {
		end := strings.Index(lines[0], c) + len(c)
		require.NotEqual(t, byte(' '), lines[1][end-1], "right edge of %s: %q", c, lines[1])
		require.Equal(t, byte(' '), lines[1][end], "right edge of %s: %q", c, lines[1])
	}
	require.Equal(t, strings.Index(lines[0], "why"), strings.Index(lines[1], "lowest"))
}

func TestColoursAreLeftOutWhereNotWanted(t *testing.T) {
	require.Equal(t, "x", (&screen{}).paint(red, "x"))
	require.Equal(t, "\x1b[31mx\x1b[0m", (&screen{colour: true}).paint(red, "x"))
}

func TestAStreamedAnswerIsReadToItsEnd(t *testing.T) {
	chunk := func(content string) string {
		return `data: {"choices":[{"delta":{"content":"` + content + `"}}]}` + "\n\n"
	}
	usage := `data: {"choices":[],"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n"
	for name, c := range map[string]struct{ stream, text, err string }{
		"a whole answer":              {chunk("") + chunk("d1") + chunk(" w1") + usage + "data: [DONE]\n\n", "d1 w1", ""},
		"one that was cut":            {chunk("d1") + chunk(" w1"), "", `cut after "d1 w1"`},
		"an error in the answer":      {chunk("d1") + `data: {"error":{"message":"no"}}` + "\n\n", "", "an error in the answer"},
		"an event that is not JSON":   {"data: {\n\n", "", "an event of the answer"},
		"nothing that can be counted": {"", "", "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			var a answer
			err := a.read(strings.NewReader(c.stream))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.text, a.text)
			require.Equal(t, 40, a.promptTokens)
			require.Equal(t, 32, a.cachedTokens)
		})
	}
}

func TestARefusalIsReadOrTheAnswerIsCalledWrong(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want any
	}{
		"one in OpenAI's shape": {`{"error":{"message":"No.","type":"x","code":"no_decode_worker"}}`, &refusal{503, "no_decode_worker", "No.", "1"}},
		"one without a code":    {`{"error":{"message":"No."}}`, nil},
		"none of the plugin's":  {"upstream connect error", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.WriteString(c.body)
			err := refused(w.Result())
			var got *refusal
			if c.want == nil {
				require.NotErrorAs(t, err, &got)
				require.ErrorContains(t, err, "status 503, without a code")
				return
			}
			require.ErrorAs(t, err, &got)
			require.Equal(t, c.want, got)
		})
	}
}

// answering lets a show ask a server that gives one answer.
func answering(t *testing.T, status int, header, body string) *show {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			w.Header().Set("Retry-After", header)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return &show{st: &stage{envoy: &stack.Envoy{URL: srv.URL}}}
}

func TestOnlyTheRightRefusalIsTakenWhileNobodyCanAnswer(t *testing.T) {
	code := func(c string) string { return `{"error":{"message":"No.","code":"` + c + `"}}` }
	for name, c := range map[string]struct {
		status       int
		header, body string
		err          string
	}{
		"dead workers are on the list":     {503, "1", code("decode_unreachable"), ""},
		"no worker is on the list":         {503, "1", code("no_decode_worker"), ""},
		"the wrong code":                   {503, "1", code("no_aggregated_worker"), "expected a 503"},
		"the wrong status":                 {502, "1", code("no_decode_worker"), "expected a 503"},
		"nobody says when to try again":    {503, "", code("no_decode_worker"), "expected a 503"},
		"Envoy's own words":                {503, "1", "no healthy upstream", "without a code"},
		"an answer without its end is not": {200, "", "", "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dan := answering(t, c.status, c.header, c.body), &conversation{name: "Dan"}
			for range 2 {
				ok, err := s.ask(t.Context(), s.nextKnock(dan))
				require.False(t, ok)
				var no *refusal
				if c.err != "" {
					require.ErrorContains(t, err, c.err)
					require.NotErrorAs(t, err, &no)
					continue
				}
				require.ErrorAs(t, err, &no)
				require.Equal(t, 0, dan.turns, "who is refused asks the same again")
			}
			if c.err == "" {
				require.Equal(t, 2, s.refused)
			}
			require.Empty(t, s.served)
			require.Len(t, dan.messages, 1)
		})
	}
}

func TestThePluginMustKnowThoseThatLiveAndNobodyElse(t *testing.T) {
	known := map[worker.ID]workerState{7: {}, 8: {}}
	require.True(t, same(known, []*pod{{id: 8}, {id: 7}}))
	require.False(t, same(known, []*pod{{id: 7}}), "a dead one is on the list")
	require.False(t, same(known, []*pod{{id: 7}, {id: 9}}), "a living one is not")
	require.False(t, same(known, []*pod{{id: 7}, {id: 8}, {id: 9}}))
}

func TestEndpointsOfAnEtcdAreSplit(t *testing.T) {
	got, err := endpoints("etcd-0:2379,http://[::1]:2379")
	require.NoError(t, err)
	require.Equal(t, []string{"etcd-0:2379", "http://[::1]:2379"}, got)
	got, err = endpoints("")
	require.NoError(t, err)
	require.Empty(t, got)
	for _, text := range []string{"etcd", "etcd:2379,", "etcd:2379 etcd2:2379"} {
		_, err := endpoints(text)
		require.ErrorContains(t, err, "expected host:port", text)
	}
}

func TestLaterTurnsBeginWithTheEarlierOnes(t *testing.T) {
	s := &show{}
	c := &conversation{name: "Ann", messages: []message{{"system", travelPrompt}}}
	first := s.next(c, travelTurns[0])
	c.messages = append(c.messages, message{"assistant", "d1 w1"})
	second := s.next(c, travelTurns[1])
	require.Equal(t, first.prompt, second.prompt[:len(first.prompt)])
	require.Len(t, first.messages, 2, "what was sent is not changed by what follows")
	require.NotEqual(t, first.user, second.user)
	require.Equal(t, "Ann 2", second.label())
}

func TestTheLetterIsLongEnoughToDieOver(t *testing.T) {
	reading := time.Duration(len(promptTokens([]message{{"user", letter()}}))) * prefillPerToken * time.Microsecond
	require.Greater(t, reading, 3*beforeKill)
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	for name, args := range map[string][]string{
		"traffic without a stack": {"-traffic"},
		"an unknown flag":         {"-down"},
		"a stray word":            {"up"},
		"etcd without a port":     {"-etcd-endpoints", "127.0.0.1:2379,etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			require.Equal(t, exitUsage, run(t.Context(), args, environment{}, &out, &errs))
			require.Empty(t, out.String())
			require.Contains(t, errs.String(), "-traffic")
		})
	}
}
