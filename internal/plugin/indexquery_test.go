package plugin

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// holds has the index hold the prompt's blocks on the rank.
func (x *told) holds(r worker.Rank, chain []kvindex.LocalHash) {
	x.t.Helper()
	x.index.Attach(r)
	var s kvindex.Stored
	for i, h := range chain {
		s.Blocks = append(s.Blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
	}
	require.NoError(x.t, x.index.Store(r, s))
}

func TestTheIndexSaysWhoHoldsHowMuch(t *testing.T) {
	x := newTold(t)
	prefill, decode, other := testWorker(t, 5, worker.Prefill, "1001"), testWorker(t, 1, worker.Decode, "1003"), testWorker(t, 9, worker.Decode, "1009")
	decode.DPSize = 2
	other.Models, other.BlockSize = []string{"other"}, 4
	x.set(discovery.Change{Joined: []worker.ID{1, 5, 9}}, prefill, decode, other)
	tokens := make([]uint32, 40)
	for i := range tokens {
		tokens[i] = uint32(100 + i)
	}
	seed := kvindex.Salt{LoRA: "l", CacheSalt: "s"}.Seed()
	chain := kvindex.AppendLocalHashes(nil, tokens, 16, seed)
	require.Len(t, chain, 2)
	x.holds(worker.Rank{ID: 5}, chain[:1])
	x.holds(worker.Rank{ID: 1, DPRank: 1}, chain)
	x.routes.Note(worker.Rank{ID: 1}, chain[:1], kvindex.Estimated, time.Now())

	row := func(id worker.ID, dp worker.DPRank, role string, size int, tree, routed uint32) admin.IndexOverlap {
		return admin.IndexOverlap{WorkerID: id, DPRank: dp, Role: role, BlockSize: size, TreeBlocks: tree, RoutedBlocks: routed}
	}
	all := []admin.IndexOverlap{
		row(1, 1, "decode", 16, 2, 0), row(5, 0, "prefill", 16, 1, 0), row(1, 0, "decode", 16, 0, 1), row(9, 0, "decode", 4, 0, 0),
	}
	a, err := x.askIndex(admin.IndexQuery{Tokens: tokens, BlockSize: 16, LoRA: "l", CacheSalt: "s"})
	require.NoError(t, err)
	require.Equal(t, admin.IndexAnswer{PromptBlocks: 2, BlockSize: 16, Ranks: all}, a)

	// The block size of the model's workers, and they alone.
	a, err = x.askIndex(admin.IndexQuery{Tokens: tokens, Model: "m", LoRA: "l", CacheSalt: "s"})
	require.NoError(t, err)
	require.Equal(t, admin.IndexAnswer{PromptBlocks: 2, BlockSize: 16, Ranks: all[:3]}, a)

	// By the hashes themselves.
	a, err = x.askIndex(admin.IndexQuery{Hashes: []uint64{uint64(chain[0]), uint64(chain[1]), 7}, Model: "m"})
	require.NoError(t, err)
	require.Equal(t, admin.IndexAnswer{PromptBlocks: 3, Ranks: all[:3]}, a)

	// Equal tokens under another salt are another prompt.
	a, err = x.askIndex(admin.IndexQuery{Tokens: tokens, BlockSize: 16, LoRA: "l"})
	require.NoError(t, err)
	for _, r := range a.Ranks {
		require.Zero(t, r.TreeBlocks+r.RoutedBlocks)
	}

	_, err = x.askIndex(admin.IndexQuery{Tokens: tokens, Model: "nobody's"})
	require.ErrorContains(t, err, `model "nobody's": expected one that a worker serves`)
	other.Models = []string{"m"}
	_, err = x.askIndex(admin.IndexQuery{Tokens: tokens, Model: "m"})
	require.ErrorContains(t, err, `have 16 and 4: expected one of them`)
}

func TestTheIndexIsAskedForEachWorkerAsItsBlocksAre(t *testing.T) {
	x := newTold(t)
	prefill, decode := testWorker(t, 5, worker.Prefill, "1001"), testWorker(t, 1, worker.Decode, "1003")
	prefill.Eagle = true
	x.set(discovery.Change{Joined: []worker.ID{1, 5}}, prefill, decode)
	tokens, seed := make([]uint32, 40), kvindex.Salt{}.Seed()
	x.holds(worker.Rank{ID: 5}, kvindex.AppendPairHashes(nil, tokens, 16, seed))
	x.holds(worker.Rank{ID: 1}, kvindex.AppendLocalHashes(nil, tokens[:16], 16, seed))
	a, err := x.askIndex(admin.IndexQuery{Tokens: tokens})
	require.NoError(t, err)
	require.Equal(t, admin.IndexAnswer{PromptBlocks: 2, BlockSize: 16, Ranks: []admin.IndexOverlap{
		{WorkerID: 5, Role: "prefill", BlockSize: 16, TreeBlocks: 2}, {WorkerID: 1, Role: "decode", BlockSize: 16, TreeBlocks: 1},
	}}, a)
}

func TestTheIndexIsAskedOnTheAdminPort(t *testing.T) {
	r := startPlugin(t, "listen: 127.0.0.1:0\n")
	r.writeWorkers("workers:\n- {id: 7, role: decode, engine: vllm, models: [m], endpoint: \"127.0.0.1:1\", block_size: 16}\n")
	rank := worker.Rank{ID: 7}
	require.Eventually(t, func() bool { return r.plugin.board.Load().Worker(7) != nil }, 20*time.Second, time.Millisecond)
	r.plugin.routes.Note(rank, []kvindex.LocalHash{255, 16}, kvindex.Estimated, time.Now())
	resp, err := http.Post("http://"+r.page.Addr().String()+"/debug/index", "application/json", strings.NewReader(`{"hashes":["0xff","16","17"]}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.JSONEq(t, `{"prompt_blocks":3,"ranks":[{"worker_id":"7","dp_rank":0,"role":"decode","block_size":16,"tree_blocks":0,"host_blocks":0,"disk_blocks":0,"routed_blocks":2}]}`, string(b))
}

// TestTheBudgetOfTheIndexIsTheConfigurations: what is shed for want of memory
// is counted, and what is too large for it refused.
func TestTheBudgetOfTheIndexIsTheConfigurations(t *testing.T) {
	x := newTold(t, "index: {max_bytes: 1048576}\n")
	x.set(discovery.Change{Joined: []worker.ID{1}}, testWorker(t, 1, worker.Decode, "1003"))
	r := worker.Rank{ID: 1}
	x.index.Attach(r)
	require.ErrorIs(t, x.index.Store(r, kvindex.Stored{Blocks: make([]kvindex.Block, 100_000)}), kvindex.ErrNoRoom)
	const shed = `baton_worker_index_shed_blocks_total{dp_rank="0",role="decode",worker_id="1"} `
	require.Contains(t, x.metrics(), shed+"0\n")
	for i := range uint64(40_000) {
		require.NoError(t, x.index.Store(r, kvindex.Stored{Blocks: []kvindex.Block{{Engine: kvindex.EngineHash(i), Local: kvindex.LocalHash(i)}}}))
	}
	text := x.metrics()
	require.Contains(t, text, shed)
	require.NotContains(t, text, shed+"0\n")
}

// TestTheIndexTakesHalfWhereAddressSpaceIsShort, and half of that, down to the
// least; other faults are told as they are.
func TestTheIndexTakesHalfWhereAddressSpaceIsShort(t *testing.T) {
	const mib = 1 << 20
	full := kvindex.DefaultMaxBytes / mib
	for name, c := range map[string]struct {
		asked, room int
		fault       error
		tried       []int
		ok          bool
	}{
		"enough":        {asked: 100, room: 100, tried: []int{100}, ok: true},
		"half":          {asked: 1000, room: 600, fault: syscall.ENOMEM, tried: []int{1000, 500}, ok: true},
		"of a default":  {asked: 0, room: full, tried: []int{full}, ok: true},
		"not the least": {asked: 300, room: 64, fault: syscall.ENOMEM, tried: []int{300, 150, 75}},
		"the least":     {asked: 256, room: 64, fault: syscall.ENOMEM, tried: []int{256, 128, 64}, ok: true},
		"another fault": {asked: 300, room: 64, fault: syscall.EPERM, tried: []int{300}},
	} {
		t.Run(name, func(t *testing.T) {
			var tried []int
			var text strings.Builder
			open := func(conf kvindex.TreeConfig, slots *kvindex.Slots) (*kvindex.Tree, error) {
				tried = append(tried, conf.MaxBytes/mib)
				if conf.MaxBytes > c.room*mib {
					return nil, fmt.Errorf("no memory: %w", c.fault)
				}
				require.True(t, conf.NoHugePages)
				conf.MaxBytes = mib
				return kvindex.NewTree(conf, slots)
			}
			log := slog.New(slog.NewTextHandler(&text, nil))
			index, err := newIndex(open, kvindex.TreeConfig{MaxBytes: c.asked * mib, NoHugePages: true}, kvindex.NewSlots(), log)
			require.Equal(t, c.tried, tried)
			if !c.ok {
				require.ErrorIs(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			require.NotNil(t, index)
			require.Equal(t, len(tried)-1, strings.Count(text.String(), "less memory than index.max_bytes"))
			if len(tried) > 1 {
				require.Contains(t, text.String(), fmt.Sprintf("max_bytes=%d ", c.tried[len(tried)-1]*mib))
			}
		})
	}
}
