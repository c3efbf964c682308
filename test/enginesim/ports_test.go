package enginesim

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	workerrecord "github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func TestEachRankAnswersAtAPortOfItsOwn(t *testing.T) {
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			s := start(t, Config{Role: worker.Aggregated, Engine: engine, DPSize: 3, PortPerRank: true})
			require.Equal(t, s.Addr(), s.RankAddr(0))
			for i, rank := range []int{2, 0, 1, 2} { // in an order other than the worker's own
				require.Equal(t, core.PortOf(s.Addr())+rank, core.PortOf(s.RankAddr(rank)))
				r := post(t.Context(), "http://"+s.RankAddr(rank)+completions, `{"model":"sim","prompt":"a b","max_tokens":2}`)
				require.Equal(t, 200, r.status, r.body)
				require.Equal(t, rank, s.Requests(uint64(i))[0].DPRank)
			}
			require.Empty(t, s.State(false).Violations)
			ranks := s.State(false).Ranks
			require.Equal(t, ranks[0].PromptTokens, ranks[1].PromptTokens)
			require.Equal(t, 2*ranks[0].PromptTokens, ranks[2].PromptTokens)

			r := post(t.Context(), "http://"+s.RankAddr(1)+completions, `{"model":"sim","prompt":"a b"}`, "X-Data-Parallel-Rank", "1")
			require.Equal(t, 400, r.status, r.body)
			require.Equal(t, "rank_named", s.State(false).Violations[0].Kind)
			require.Equal(t, 1, s.Requests(4)[0].DPRank, "a refused one, too")

			line, err := json.Marshal(s.Identity())
			require.NoError(t, err)
			w, err := workerrecord.Parse("ready", line)
			require.NoError(t, err)
			for rank := range 3 {
				require.Equal(t, s.RankAddr(rank), w.EndpointOf(worker.DPRank(rank)).String())
			}
		})
	}
}

// Both halves go to the own ports of ranks. The room determines the same rank of prefill.
func TestHalvesMeetAcrossPortsOfRanks(t *testing.T) {
	p, d := pair(t, Config{DPSize: 3, PortPerRank: true})
	const room = 7 // the room of rank 1
	body := pdBody(p, room, "a b", "")
	dec := later(t.Context(), "http://"+d.RankAddr(2)+completions, body)
	pre := post(t.Context(), "http://"+p.RankAddr(1)+completions, body)
	require.Equal(t, 200, pre.status, pre.body)
	require.Equal(t, 200, (<-dec).status)
	require.Equal(t, 1, p.Requests(0)[0].DPRank)
	require.Equal(t, 2, d.Requests(0)[0].DPRank)

	pre = post(t.Context(), "http://"+p.RankAddr(2)+completions, pdBody(p, room+3, "a b", ""))
	require.Equal(t, 500, pre.status)
	require.Contains(t, pre.body, "follow_bootstrap_room conflict")
}

func TestAWorkerThatRefusesDoesSoAtEveryPort(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, DPSize: 2, PortPerRank: true, ControlListen: "127.0.0.1:0"})
	require.NoError(t, s.SetFault(Fault{Mode: FaultRefuse}))
	for rank := range 2 {
		Eventually(t, func() bool {
			c, err := net.Dial("tcp", s.RankAddr(rank))
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		}, "closed")
	}
	require.NoError(t, s.SetFault(Fault{Mode: FaultNone}))
	for rank := range 2 {
		Eventually(t, func() bool {
			return post(t.Context(), "http://"+s.RankAddr(rank)+completions, `{"model":"sim","prompt":"a"}`).status == http.StatusOK
		}, "open again")
		all := s.Requests(0)
		require.Equal(t, rank, all[len(all)-1].DPRank)
	}
}

func TestPortsOfRanksThatAreTakenAreNotRunFrom(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	before := net.JoinHostPort("127.0.0.1", strconv.Itoa(core.PortOf(ln.Addr().String())-1))
	_, err = New(Config{Role: worker.Aggregated, DPSize: 2, PortPerRank: true, Listen: before})
	require.ErrorContains(t, err, "address already in use")
}
