package health

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// running starts Run in a bubble and returns what ends it.
func running(t *testing.T, tr *Tracker) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func broken(err error) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return 0, &net.OpError{Op: "dial", Err: err} }
}

func TestASuspectIsJudgedByItsProbeAlone(t *testing.T) {
	for _, row := range []struct {
		what   string
		answer func(context.Context) (int, error)
		want   string
	}{
		{"well", status(200), ""},
		{"without /health", status(404), ""},
		{"unwell", status(503), ""},
		{"refuses", broken(syscall.ECONNREFUSED), "connect-failed"},
		{"breaks", broken(syscall.ECONNRESET), "connect-failed"},
		{"hangs", hang, "page-late"},
		{"makes no connection", silence, "page-late"},
		{"makes no connection in the dialer's time", broken(os.ErrDeadlineExceeded), "no-connection"},
		{"its machine does not answer", broken(syscall.EHOSTUNREACH), "no-connection"},
		{"no file descriptor for the probe", broken(syscall.EMFILE), ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": row.answer}, start: time.Now()}
			tr := New(Config{Client: &http.Client{Transport: web}, MaxShare: 0.3})
			tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n9 prefill\n"), time.Now())
			haveAsked(tr)
			stall(tr, 8, time.Now()) // no room in the share
			end := running(t, tr)
			tr.Report(rankOf(7), Report{Outcome: Overdue, Request: 1}, time.Now())
			tr.Report(rankOf(7), Report{Outcome: Overdue, Request: 1}, time.Now())
			synctest.Wait()
			require.Equal(t, []string{"0s GET http://10.0.0.7:8000/health"}, web.seen, row.what)
			h, _ := tr.Lookup(rankOf(7))
			require.Equal(t, row.what == "hangs" || row.what == "makes no connection", h.Suspected, row.what)
			web.set("10.0.0.8:8000", status(503))
			web.set("10.0.0.7:8000", status(503))
			pass(5400 * time.Millisecond)
			h, _ = tr.Lookup(rankOf(7))
			require.Equal(t, row.want, string(h.Reason), row.what)
			require.Equal(t, row.want != "" && row.want != "page-late", h.State.aside(), row.what)
			require.Equal(t, row.want == "page-late", h.State == Doubted, row.what)
			end()
		})
	}
}

// How long a suspect is waited for before it is doubted depends on whether anything of it
// answers: SGLang's page takes a second while nothing runs, and until a prefill batch ends.
func TestASuspectIsDoubtedWhenItsProcessOrItsPageIsSilent(t *testing.T) {
	for _, row := range []struct {
		what        string
		page, knock func(context.Context) (int, error)
		doubted     time.Duration // after the probe began; 0: never
		reason      Reason
	}{
		{"SGLang while nothing runs", comes(1100 * time.Millisecond), status(200), 0, ""},
		{"SGLang in a prefill batch of four seconds", comes(4 * time.Second), status(401), 1250 * time.Millisecond, ReasonPageLate},
		{"a process that is stopped", hang, hang, time.Second, ReasonSilent},
		{"an event loop that is late", comes(700 * time.Millisecond), comes(450 * time.Millisecond), 0, ""},
		{"a network that drops packets", silence, silence, time.Second, ReasonSilent},
	} {
		synctest.Test(t, func(t *testing.T) {
			web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": row.knock, "10.0.0.7:8000/health": row.page}}
			var told []Transition
			start := time.Now()
			tr := New(Config{Client: &http.Client{Transport: web}, Hooks: Hooks{Transition: func(x Transition) { told = append(told, x) }}})
			tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), start)
			haveAsked(tr)
			end := running(t, tr)
			tr.Suspect(rankOf(7), start)
			pass(4500 * time.Millisecond)
			synctest.Wait()
			if row.doubted == 0 {
				require.Empty(t, told, row.what)
			} else {
				require.NotEmpty(t, told, row.what)
				require.Equal(t, Transition{Rank: rankOf(7), To: Doubted, Reason: row.reason, At: start.Add(row.doubted), Mates: true}, told[0], row.what)
				require.Equal(t, row.reason == ReasonSilent, told[0].Mute(), row.what)
			}
			end()
		})
	}
}

// That nobody has answered changes nothing for a pick, and is told.
func TestAWorkerIsUnheardUntilSomethingOfItAnswers(t *testing.T) {
	for _, row := range []struct {
		what   string
		answer func(context.Context) (int, error)
		why    string
	}{
		{"refuses", func(context.Context) (int, error) { return 0, syscall.ECONNREFUSED }, "it refuses connections"},
		{"hangs", hang, "it takes connections and does not answer"},
		{"drops packets", silence, "no connection to it can be made"},
		{"has no such page", status(404), ""},
		{"is ill", status(500), ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": row.answer}}
			tr := New(Config{Client: &http.Client{Transport: web}})
			tr.Update(parseWorkers(t, "7 prefill\n"), time.Now())
			h, _ := tr.Lookup(rankOf(7))
			require.Equal(t, "it has not been asked yet", h.Unheard)
			end := running(t, tr)
			pass(10 * time.Second)
			h, _ = tr.Lookup(rankOf(7))
			require.Equal(t, row.why, h.Unheard, row.what)
			require.Equal(t, Healthy, h.State, row.what)
			tr.Report(rankOf(7), Report{Outcome: OK}, time.Now())
			h, _ = tr.Lookup(rankOf(7))
			require.Empty(t, h.Unheard, "a request was served")
			end()
		})
	}
}

// A worker whose answers have lately been slow is given longer.
func TestHowLongAWorkerMayBeSilentIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := comes(900 * time.Millisecond)
		web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": slow, "10.0.0.7:8000/health": slow}}
		tr := New(Config{Client: &http.Client{Transport: web}})
		tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), time.Now())
		end := running(t, tr) // it is asked at its arrival
		pass(time.Second)
		web.set("10.0.0.7:8000", hang)
		web.set("10.0.0.7:8000/health", hang)
		tr.Suspect(rankOf(7), time.Now())
		pass(2500 * time.Millisecond)
		h, _ := tr.Lookup(rankOf(7))
		require.Equal(t, Healthy, h.State, "three times 900 ms")
		pass(300 * time.Millisecond)
		h, _ = tr.Lookup(rankOf(7))
		require.Equal(t, Doubted, h.State)
		pass(3 * time.Second)
		h, _ = tr.Lookup(rankOf(7))
		require.Equal(t, Aside, h.State, "a second silence, and its mate is well")
		require.Equal(t, ReasonSilent, h.Reason)
		end()
	})
}

// An engine that is restarted as another one at the same address would be sent requests for the
// models that it had: SGLang answers them.
func TestAnEngineOfOtherModelsGetsNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at = "10.0.0.7:8000"
		web := &workersHTTP{answer: map[string]func(context.Context) (int, error){at: status(200)}, models: map[string]string{at: "m"}}
		tr := New(Config{Client: &http.Client{Transport: web}})
		tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), time.Now())
		end := running(t, tr)
		pass(time.Second)
		tr.Report(rankOf(7), Report{Outcome: ConnectFailed}, time.Now())
		web.serves(at, "other")
		pass(5 * time.Second)
		h, _ := tr.Lookup(rankOf(7))
		require.Equal(t, Aside, h.State)
		require.Equal(t, ReasonOtherModels, h.Reason)
		web.serves(at, "m")
		pass(5 * time.Second)
		require.True(t, tr.Allows(rankOf(7)), "it is the first one again")

		tr.Report(rankOf(7), Report{Outcome: ConnectFailed}, time.Now())
		web.serves(at, "other")
		pass(5 * time.Second)
		require.False(t, tr.Allows(rankOf(7)))
		tr.Update(parseWorkers(t, "7 prefill models=other\n8 prefill\n"), time.Now())
		pass(5 * time.Second)
		require.True(t, tr.Allows(rankOf(7)), "its record has other models now, as its engine has")
		end()
	})
}

// Two records that take turns at one address are of one worker: each would begin anew else, and
// a worker that fails would be tried for ever.
func TestTwoIDsThatTakeTurnsAtOneAddressAreOneWorker(t *testing.T) {
	tr := New(Config{})
	now := time.Unix(1000, 0)
	at := func(id worker.ID) *worker.Snapshot {
		ws := []*worker.Worker{
			{ID: id, Role: worker.Decode, Engine: worker.SGLang, Models: []string{"m"}, DPSize: 1, BlockSize: 16},
			{ID: 99, Role: worker.Decode, Engine: worker.SGLang, Models: []string{"m"}, DPSize: 1, BlockSize: 16},
		}
		var err error
		ws[0].Endpoint, err = worker.ParseEndpoint("10.0.0.7:8000")
		require.NoError(t, err)
		ws[1].Endpoint, err = worker.ParseEndpoint("10.0.0.9:8000")
		require.NoError(t, err)
		s, err := worker.NewSnapshot(1, ws)
		require.NoError(t, err)
		return s
	}
	fails := func(id worker.ID) {
		tr.Report(rankOf(id), Report{Outcome: ServerError, Proven: true}, now)
	}
	tr.Update(at(1), now)
	fails(1)
	tr.Update(at(2), now)
	fails(2)
	tr.Update(at(1), now)
	fails(1)
	h, _ := tr.Lookup(rankOf(1))
	require.Equal(t, Aside, h.State, "the third of one worker")
	tr.Update(at(2), now)
	h, _ = tr.Lookup(rankOf(2))
	require.Equal(t, Recovering, h.State)
	fails(2)
	h, _ = tr.Lookup(rankOf(2))
	require.Equal(t, Aside, h.State, "one is enough while it recovers")

	tr.Report(rankOf(2), Report{Outcome: ConnectFailed}, now)
	tr.Update(at(3), now)
	h, _ = tr.Lookup(rankOf(3))
	require.Equal(t, Healthy, h.State, "somebody has registered it since")
}

// Who answered a probe before it was registered anew is no worse than who had not answered yet.
func TestAWorkerThatIsRegisteredAnewAfterItsPageAnsweredIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": status(200)}}
		tr := New(Config{Client: &http.Client{Transport: web}})
		before := parseWorkers(t, "7 prefill\n8 prefill\n")
		tr.Update(before, time.Now())
		end := running(t, tr)
		tr.Report(rankOf(7), Report{Outcome: ConnectFailed}, time.Now())
		pass(5 * time.Second)
		h, _ := tr.Lookup(rankOf(7))
		require.Equal(t, Recovering, h.State)
		anew := *before.Worker(7)
		anew.ID = 9
		now, err := worker.NewSnapshot(2, []*worker.Worker{before.Worker(8), &anew})
		require.NoError(t, err)
		tr.Update(now, time.Now())
		h, _ = tr.Lookup(rankOf(9))
		require.Equal(t, Healthy, h.State)
		end()
	})
}

// A probe whose end is noticed late was not waited for: this process has stood still.
func TestAProbeThatEndsLateShowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		still := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			<-time.After(2 * time.Second)
			return 0, ctx.Err()
		}
		web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": status(200), "10.0.0.7:8000/health": still}}
		tr := New(Config{Client: &http.Client{Transport: web}})
		tr.Update(parseWorkers(t, "7 prefill\n8 prefill\n"), time.Now())
		haveAsked(tr)
		tr.Suspect(rankOf(7), time.Now())
		p, any := tr.begin(time.Now())
		require.True(t, any)
		require.Equal(t, unclear, tr.ask(t.Context(), p))
	})
}

// Who ends must not take a probe that it has cut off for a worker's silence.
func TestAProbeThatIsCutOffByTheEndBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.7:8000": hang}}
		tr := New(Config{Client: &http.Client{Transport: web}})
		tr.Update(parseWorkers(t, "7 prefill\n"), time.Now())
		haveAsked(tr)
		tr.Suspect(rankOf(7), time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		require.NoError(t, tr.Run(ctx))
		require.Equal(t, 2, web.probes())
		h, _ := tr.Lookup(rankOf(7))
		require.Equal(t, RankHealth{Rank: rankOf(7), Unheard: "it has not been asked yet"}, h)
	})
}

// No request is needed to see that an address leads back, and none is needed to stay aside.
func TestAWorkerWhoseAddressLeadsBackIsSetAside(t *testing.T) {
	for _, row := range []struct {
		what    string
		answer  func(context.Context) (int, error)
		baton   string // where one answers
		suspect bool   // only then; at arrival nobody answers
		aside   worker.ID
	}{
		{"the only one of its role", status(200), "10.0.0.3:8000", false, 3},
		{"a Baton that does not know its workers yet", status(503), "10.0.0.3:8000", false, 3},
		{"where decode reaches prefill", status(404), "10.0.0.9:8998", false, 7},
		{"the path for models alone", status(200), "10.0.0.3:8000/v1/models", false, 3},
		{"a page that comes on suspicion", status(200), "10.0.0.3:8000/health", true, 3},
		{"a knock on suspicion", hang, "10.0.0.3:8000/v1/models", true, 3},
		{"an engine", status(200), "", false, 0},
		{"nobody listens", refused, "", false, 0},
		{"a process that is stopped", silence, "", false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			web := &workersHTTP{answer: map[string]func(context.Context) (int, error){"10.0.0.3:8000": row.answer, "10.0.0.9:8998": row.answer}, start: time.Now()}
			if row.baton != "" {
				web.batons = map[string]bool{row.baton: true}
			}
			web.set("10.0.0.3:8000/v1/models", map[bool]func(context.Context) (int, error){false: row.answer, true: status(200)}[row.suspect])
			var told []Transition
			tr := New(Config{Client: &http.Client{Transport: web}, Hooks: Hooks{Transition: func(x Transition) { told = append(told, x) }}})
			tr.Update(parseWorkers(t, "3 decode\n7 prefill bootstrap=10.0.0.9\n8 prefill bootstrap=10.0.0.10\n"), time.Now())
			if row.suspect {
				haveAsked(tr)
				tr.Suspect(rankOf(3), time.Now())
			}
			end := running(t, tr)
			pass(time.Minute)
			synctest.Wait()
			if row.aside == 0 {
				require.Empty(t, told, row.what)
			} else {
				require.NotEmpty(t, told, row.what)
				require.Equal(t, []any{rankOf(row.aside), Aside, ReasonLeadsBack, true}, []any{told[0].Rank, told[0].To, told[0].Reason, told[0].Silent()}, row.what)
			}
			require.LessOrEqual(t, len(told), 1, row.what)
			require.Equal(t, row.aside != 0, tr.Aside(rankOf(max(row.aside, 3))), row.what)
			end()
		})
	}
}

// A fleet that starts is asked for seconds. Who becomes suspect meanwhile, or comes back, does
// not wait for that, and the fleet does not wait for suspects.
func TestQuestionsAtArrivalAndProbesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, rate = 60, 20
		s := fleetOf(t, n)
		web := &workersHTTP{start: time.Now()}
		tr := New(Config{Client: &http.Client{Transport: web}, MaxProbes: rate})
		end := running(t, tr)
		tr.Update(s, time.Now())
		for range 10 * 6 {
			tr.Report(rankOf(1), Report{Outcome: ConnectFailed}, time.Now())
			for _, w := range s.Workers() {
				tr.Suspect(rankOf(w.ID), time.Now())
			}
			pass(time.Second / 10)
		}
		end()
		questions := func(lines []string) (k int) {
			for _, line := range lines {
				if strings.HasSuffix(line, "/v1/models") {
					k++
				}
			}
			return k
		}
		require.InDelta(t, 6*rate, len(web.seen), 1)
		require.InDelta(t, 3*rate, questions(web.seen), 1)
		require.InDelta(t, rate/2, questions(web.seen[:rate]), 1)
		require.True(t, slices.ContainsFunc(web.seen, func(line string) bool { return strings.HasSuffix(line, "//10.0.0.0:8000/health") }), "it can come back meanwhile")
	})
}

func TestProbesAreSpreadEvenlyOverTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, rate = 60, 20
		answers := map[string]func(context.Context) (int, error){}
		s := fleetOf(t, n)
		for _, w := range s.Workers() {
			answers[w.Endpoint.String()] = status(503)
		}
		web := &workersHTTP{answer: answers, start: time.Now()}
		tr := New(Config{Client: &http.Client{Transport: web}, MaxProbes: rate})
		tr.Update(s, time.Now())
		haveAsked(tr)
		for _, w := range s.Workers() {
			tr.Report(rankOf(w.ID), Report{Outcome: ConnectFailed}, time.Now())
		}
		end := running(t, tr)
		pass(13 * time.Second)
		end()
		times, of := map[string]int{}, map[string]int{}
		var last time.Duration
		for _, line := range web.seen {
			at, request, _ := strings.Cut(line, " ")
			d, err := time.ParseDuration(at)
			require.NoError(t, err)
			if last > 0 {
				require.GreaterOrEqual(t, d-last, time.Second/rate)
			}
			last = d
			times[d.Truncate(time.Second).String()]++
			of[request]++
		}
		require.InDelta(t, 12*rate, len(web.seen), rate/2)
		for at, k := range times {
			require.LessOrEqual(t, k, rate, at)
		}
		for request, k := range of {
			require.InDelta(t, len(web.seen)/n, k, 1, request)
		}
	})
}

func TestChangesAreToldOnceOrAsAll(t *testing.T) {
	tr := New(Config{})
	tr.Update(fleetOf(t, 3), zero)
	haveAsked(tr)
	now, changed, all := tr.Changes(0, nil)
	require.True(t, all, "since no version")
	require.Empty(t, changed)
	since := now
	for range kept / 2 {
		tr.Report(rankOf(2), Report{Outcome: ConnectFailed}, zero)
		p, _ := tr.begin(zero.Add(time.Hour))
		tr.probed(p, well, zero.Add(time.Hour))
		tr.nextBegin = zero
	}
	now, changed, all = tr.Changes(since, []worker.ID{9})
	require.False(t, all)
	require.Equal(t, since+kept, now)
	require.Equal(t, []worker.ID{9, 2}, slices.Compact(changed))
	require.Len(t, changed, 1+kept)

	tr.Begin(worker.Rank{ID: 2})
	again, changed, all := tr.Changes(now, nil)
	require.False(t, all)
	require.Equal(t, []worker.ID{2}, changed)
	_, changed, all = tr.Changes(since, nil)
	require.True(t, all, "too far behind")
	require.Empty(t, changed)
	_, _, all = tr.Changes(again+1, nil)
	require.True(t, all, "a version of somebody else")
	_, changed, all = tr.Changes(again, nil)
	require.False(t, all)
	require.Empty(t, changed)

	// Who leaves, or moves, is healthy from then on.
	tr.Update(fleetOf(t, 1), zero)
	_, changed, _ = tr.Changes(again, nil)
	require.Equal(t, []worker.ID{2}, changed)
	require.Equal(t, Free, tr.Standing(rankOf(2)))
	require.True(t, tr.Allows(worker.Rank{ID: 2}))
}
