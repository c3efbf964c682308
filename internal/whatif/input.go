package whatif

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mostBlocks bounds the blocks of all prompts together, 8 bytes each: a record has a shared prefix once, and a
// run has it for each prompt.
const mostBlocks = 1 << 26

// Input is requests to play, with what is known of the fleet that served them.
type Input struct {
	Kind  string // of the files
	Model string
	Load  replay.Workload
	Notes []string // what was left out, and why

	// Of a record.
	Ranks     []record.Rank
	Speeds    []record.Speed
	Seen      []Seen        // by request; nil: nothing was
	Between   time.Duration // median between tokens of an answer; 0: not known
	Estimated bool          // overlaps were what had been routed, not what ranks told
}

// Seen is what became of a request.
type Seen struct {
	Rank, Decode int  // of the ranks; below 0: none, or one that is not among them
	Bound        bool // the request limited who could be picked
	Refused      bool
	Overlap      int   // blocks that were believed to be there
	Cached       int64 // tokens; below 0: not told
	First        time.Duration
	Between      time.Duration
}

// Read reads files, all of one kind, which is found out from the first one. Model is which requests of a
// record are taken; "": those of the model that has most.
func Read(files []io.Reader, model string) (*Input, error) {
	log, text := record.NewLog(), []byte(nil)
	for i, f := range files {
		head := make([]byte, 8)
		n, err := io.ReadFull(f, head)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return nil, err
		}
		whole := io.MultiReader(bytes.NewReader(head[:n]), f)
		if i == 0 && !record.Is(head[:n]) || text != nil {
			b, err := io.ReadAll(whole)
			if err != nil {
				return nil, err
			}
			text = append(append(text, b...), '\n')
			continue
		}
		if err := log.Read(whole); err != nil {
			return nil, err
		}
	}
	if text == nil {
		log.Done()
		return FromRecord(log, model)
	}
	in := &Input{Kind: "Mooncake's trace"}
	first, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	if bytes.Contains(first, []byte(`"schema"`)) {
		return in, in.readDynamo(text)
	}
	w, err := replay.ParseTrace(text, 0, 1)
	if err != nil {
		return nil, fmt.Errorf("expected a record, a trace in Mooncake's form, or Dynamo's request trace: %w", err)
	}
	replay.Spread(w.Requests)
	in.Load = *w
	in.bound()
	return in, nil
}

// longestGap is how long nothing may arrive: a simulation costs by its time, too, and clocks jump.
const longestGap = 10 * time.Minute

// bound shortens long gaps, and leaves requests out from which on prompts have too many blocks.
func (in *Input) bound() {
	last, less, gaps := time.Duration(0), time.Duration(0), 0
	for i := range in.Load.Requests {
		q := &in.Load.Requests[i]
		gap := q.At - last
		last = q.At
		if gap > longestGap {
			less, gaps = less+gap-longestGap, gaps+1
		}
		q.At -= less
	}
	if gaps > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("%d times nothing arrived for more than %v, which is played as %v", gaps, longestGap, longestGap))
	}
	sum, all := 0, len(in.Load.Requests)
	for i := range in.Load.Requests {
		sum += len(in.Load.Requests[i].Blocks)
		if sum > mostBlocks {
			in.Load.Requests = in.Load.Requests[:i]
			in.Notes = append(in.Notes, fmt.Sprintf("left out, the last %d requests: prompts have more than %d blocks together", all-i, mostBlocks))
			return
		}
	}
}

// dynamoSchema is the only one of Dynamo's that is read.
const dynamoSchema = "dynamo.request.trace.v1"

// readDynamo reads Dynamo's request trace, whose lines come when requests end.
func (in *Input) readDynamo(text []byte) error {
	in.Kind = "Dynamo's request trace"
	lacks := 0
	for line := range bytes.Lines(text) {
		var l struct {
			Schema  string `json:"schema"`
			Event   string `json:"event_type"`
			Request struct {
				Model    string  `json:"model"`
				Received float64 `json:"request_received_ms"`
				Answer   int     `json:"output_tokens"`
				Replay   *struct {
					Block  int      `json:"trace_block_size"`
					Tokens int      `json:"input_length"`
					Hashes []uint64 `json:"input_sequence_hashes"`
				} `json:"replay"`
			} `json:"request"`
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("request %d of Dynamo's trace: %w", len(in.Load.Requests)+1, err)
		}
		r := l.Request.Replay
		if l.Schema != dynamoSchema || l.Event != "request_end" || r == nil || r.Block < 1 || r.Tokens < 1 || in.Load.BlockTokens > 0 && r.Block != in.Load.BlockTokens {
			lacks++
			continue
		}
		in.Model, in.Load.BlockTokens = cmp.Or(in.Model, l.Request.Model), r.Block
		q := replay.Request{At: milliseconds(l.Request.Received), Tokens: r.Tokens, Answer: l.Request.Answer, Session: len(in.Load.Requests)}
		for _, h := range r.Hashes[:min(len(r.Hashes), r.Tokens/r.Block)] {
			q.Blocks = append(q.Blocks, blockOf(h))
		}
		in.Load.Requests = append(in.Load.Requests, q)
	}
	if lacks > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("left out, %d lines: of another schema or event, without the member replay, or with another trace_block_size", lacks))
	}
	if len(in.Load.Requests) == 0 {
		return fmt.Errorf("no request_end of %s with the member replay: expected some", dynamoSchema)
	}
	slices.SortStableFunc(in.Load.Requests, func(a, b replay.Request) int { return cmp.Compare(a.At, b.At) })
	began := in.Load.Requests[0].At
	for i := range in.Load.Requests {
		in.Load.Requests[i].At -= began
	}
	in.bound()
	return nil
}

func milliseconds(v float64) time.Duration {
	if !(v > 0 && v < 9e12) { // the year 2255
		return 0
	}
	return time.Duration(v * float64(time.Millisecond))
}

// blockOf is a hash as the simulation names a block, of which 0 is none.
func blockOf(h uint64) replay.Block { return replay.Block(max(h, 1)) }

// FromRecord takes the requests of a model, over the fleet that served most of them.
func FromRecord(l *record.Log, model string) (*Input, error) {
	in := &Input{Kind: fmt.Sprintf("a record of Baton %.40q", l.Version), Model: model, Speeds: l.Speeds, Notes: l.Notes}
	by := map[string]int{}
	for i := range l.Requests {
		by[l.Requests[i].Model]++
	}
	if in.Model == "" {
		in.Model = mostOf(by)
	}
	if by[in.Model] == 0 {
		return nil, fmt.Errorf("no request for model %q: expected one of %q", in.Model, slices.Sorted(maps.Keys(by)))
	}
	for name, n := range by {
		if name != in.Model {
			in.Notes = append(in.Notes, fmt.Sprintf("left out, %d requests for model %q", n, name))
		}
	}
	slices.Sort(in.Notes[len(l.Notes):])
	in.fleetOf(l)
	in.requests(l)
	if len(in.Load.Requests) == 0 || len(in.Ranks) == 0 {
		return nil, errors.New("no request that could be played: expected decisions, and the ranks of their fleet")
	}
	return in, nil
}

func mostOf[K cmp.Ordered](by map[K]int) (most K) {
	for _, k := range slices.Sorted(maps.Keys(by)) {
		if by[k] > by[most] {
			most = k
		}
	}
	return most
}

// fleetOf finds the ranks. Roles are those of pairs if any request was served by a pair.
func (in *Input) fleetOf(l *record.Log) {
	fleets, picked, pairs := map[int]int{}, map[worker.Rank]bool{}, false
	for i := range l.Requests {
		if r := &l.Requests[i]; r.Model == in.Model {
			fleets[r.FleetOf()]++
			picked[r.Prefill.Rank], picked[r.Decode.Rank] = true, true
			pairs = pairs || r.Prefill.Rank.ID != 0
		}
	}
	at := mostOf(fleets)
	if at < 0 || at >= len(l.Fleets) {
		return
	}
	told := 0
	for _, r := range l.Fleets[at].Ranks {
		switch {
		case r.Model != in.Model && r.Model != "" && !picked[r.Rank]:
			continue
		case pairs && (r.Role == worker.Prefill || r.Role == worker.Decode):
		case !pairs && (r.Role == worker.Aggregated || picked[r.Rank]):
			r.Role = worker.Aggregated
		default:
			continue
		}
		in.Ranks = append(in.Ranks, r)
		in.Load.BlockTokens = cmp.Or(in.Load.BlockTokens, r.BlockSize)
		if r.Role != worker.Decode && r.Told {
			told++
		} else if r.Role != worker.Decode {
			told--
		}
	}
	in.Estimated = told <= 0
	if len(fleets) > 1 {
		in.Notes = append(in.Notes, fmt.Sprintf("the workers have changed %d times: all requests are played over those that served most, %d of %d", len(fleets)-1, fleets[at], len(l.Requests)))
	}
}

func (in *Input) at(r worker.Rank) int {
	return slices.IndexFunc(in.Ranks, func(x record.Rank) bool { return x.Rank == r })
}

func (in *Input) requests(l *record.Log) {
	var began time.Time
	var answers []int
	var between []time.Duration
	var chain []uint64
	blocks, retried, beyond, estimated, odd := 0, 0, 0, 0, 0
	for i := range l.Requests {
		r := &l.Requests[i]
		if r.Model != in.Model {
			continue
		}
		k := max(r.BlockTokens/max(in.Load.BlockTokens, 1), 1)
		if r.End.Outcome == "retried" {
			retried++
			continue
		}
		blocks += k * l.Blocks(r)
		if blocks > mostBlocks || r.Tokens < 1 {
			beyond++
			continue
		}
		if began.IsZero() {
			began = r.At
		}
		q := replay.Request{At: max(r.At.Sub(began), 0), Tokens: r.Tokens, Answer: int(min(r.End.Output, 1<<20)), Session: i}
		if in.Load.BlockTokens == 0 || r.BlockTokens != k*in.Load.BlockTokens {
			odd++
		} else {
			chain = l.Chain(chain[:0], r)
			q.Blocks = spread(chain, k, q.Tokens/in.Load.BlockTokens)
		}
		if r.Source == "byte estimate" {
			estimated++
		}
		s := seenOf(in, r)
		if q.Answer > 0 {
			answers = append(answers, q.Answer)
		}
		if s.Between > 0 {
			between = append(between, s.Between)
		}
		in.Load.Requests, in.Seen = append(in.Load.Requests, q), append(in.Seen, s)
	}
	in.Load.BlockTokens = cmp.Or(in.Load.BlockTokens, 64)
	in.Estimated = in.Estimated || 2*estimated > len(in.Seen)
	if len(between) > 0 {
		in.Between = stats.Median(between)
	}
	in.fill(answers)
	in.note(blocks, retried, beyond, odd)
	in.bound()
}

func (in *Input) note(blocks, retried, beyond, odd int) {
	for _, n := range []struct {
		n   int
		why string
	}{{retried, "attempts that others followed"}, {beyond, "requests without tokens, or beyond the most blocks that are played"}} {
		if n.n > 0 {
			in.Notes = append(in.Notes, fmt.Sprintf("left out, %d %s", n.n, n.why))
		}
	}
	if blocks == 0 {
		in.Notes = append(in.Notes, "no prompt has blocks (were tokens counted? see tokens.mode): nothing that is said of caches, or follows from them, can be right")
	}
	if odd > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("%d requests are played as if nobody had their prompts: their blocks have another size than the workers'", odd))
	}
}

// fill gives the median answer to requests of which no answer is known.
func (in *Input) fill(answers []int) {
	usual, filled := 1, 0
	if len(answers) > 0 {
		usual = stats.Median(answers)
	}
	for i := range in.Load.Requests {
		if q := &in.Load.Requests[i]; q.Answer < 1 {
			q.Answer = usual
			filled++
		}
	}
	if filled > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("%d answers of a length that is not known count as the median, %d tokens", filled, usual))
	}
}

// spread makes k blocks of each hash, at most so many.
func spread(chain []uint64, k, most int) []replay.Block {
	out := make([]replay.Block, 0, min(k*len(chain), most))
	for _, h := range chain {
		for part := range uint64(k) { //nolint:gosec // above 0
			if len(out) == most {
				return out
			}
			out = append(out, blockOf(h^part*0x9e3779b97f4a7c15))
		}
	}
	return out
}

func seenOf(in *Input, r *record.Request) Seen {
	s := Seen{Rank: in.at(r.Decode.Rank), Decode: -1, Bound: r.Bound, Refused: r.Refused != "", Overlap: r.Decode.Overlap, Cached: r.End.Cached, First: r.End.First}
	if r.Prefill.Rank.ID != 0 {
		s.Rank, s.Decode, s.Overlap = in.at(r.Prefill.Rank), s.Rank, r.Prefill.Overlap
	}
	if r.End.Outcome != "ok" {
		s.First, s.Cached = 0, -1
		return s
	}
	switch n := r.End.Output; {
	case s.First == 0 && n == 1:
		s.First = r.End.Whole
	case s.First > 0 && n > 1:
		s.Between = (r.End.Whole - s.First) / time.Duration(n-1)
	}
	return s
}
