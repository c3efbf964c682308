package extproc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is for requests that name their workers themselves
// (docs/behaviour.md#named-workers).

// way is what a main leg's filter says of the requests that come through it.
// The zero value believes nothing.
type way struct {
	trust  pin.Trust
	repick bool // who names workers is asked again on each attempt
	// headersOnly: clients reach this filter, and their bodies with them; only
	// headers, which the edge strips, come from who may name workers.
	headersOnly bool
	// gateway: the filter speaks the endpoint picker protocol; plain: and there is
	// nothing of ours beside it, no listener for a prefill leg, no fresh attempt,
	// no access log, and nobody strips what clients may not set.
	gateway, plain bool
}

// strangeKey returns an error where the filter's metadata has a key of ours that
// nobody knows: one that is misspelt would let in what it was to keep out.
func strangeKey(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	known := []string{filterKey, prefill.HeaderLeg, routingKey, routingRepickKey, routingFieldsKey, protocolKey}
	for _, key := range slices.Sorted(maps.Keys(md)) {
		if strings.HasPrefix(key, "x-baton-") && !slices.Contains(known, key) {
			return fmt.Errorf("initial metadata %s is not known: expected none but %s; mend it on the ext_proc filter's grpc_service", key, strings.Join(known, ", "))
		}
	}
	return nil
}

// wayOf reads the filter's metadata. The error says what was expected.
func wayOf(ctx context.Context, plain bool) (way, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	one := func(key string, allowed ...string) (string, error) {
		v := md.Get(key)
		if len(v) == 0 {
			return "", nil
		}
		if len(v) > 1 || !slices.Contains(allowed, v[0]) {
			return "", fmt.Errorf("initial metadata %s is %q: expected one of %q, or none; set it on the ext_proc filter's grpc_service", key, v, allowed)
		}
		return v[0], nil
	}
	routing, err1 := one(routingKey, "prerouted", "direct")
	repick, err2 := one(routingRepickKey, "true", "false")
	fields, err3 := one(routingFieldsKey, "believe", "refuse")
	protocol, err4 := one(protocolKey, "gateway")
	var err5 error
	if plain && routing+repick+fields+protocol != "" {
		err5 = fmt.Errorf("initial metadata says more than nothing, and not %s: set it to %s on the ext_proc filter's grpc_service", filterKey, filterMain)
	}
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return way{}, err
	}
	trust, err := pin.ParseTrust(routing)
	return way{
		trust: trust, repick: repick == "true", headersOnly: fields == "refuse", gateway: plain || protocol != "", plain: plain,
	}, err
}

// wish is what a request says of workers, as far as it is believed.
type wish struct {
	trust pin.Trust
	pins  pin.Pins
	query bool // it asks who would serve it, and is not to be served

	// What the data plane says besides.
	subset    *subset.Set // who may be picked; nil: all
	endpoints int         // how many decode workers are named at most
	oneLeg    bool        // nothing carries a mirrored prefill leg
}

// names reports whether the request names a worker, for either leg.
func (w *wish) names() bool { return w.pins.Prefill.Named() || w.pins.Decode.Named() }

// wishOf reads a request's wish. Members of the body that name workers are
// refused where they are not believed: passed on, they could be believed by
// what stands behind a worker's address. Headers are overwritten or removed.
func wishOf(w way, headers []wire.Header, r *openai.Request, body []byte) (wish, *failure) {
	out := wish{trust: w.trust, endpoints: 1, oneLeg: w.plain}
	var fields pin.Fields
	if r != nil && r.Given(body, openai.NVExt) {
		var err *pin.Error
		fields, err = pin.ReadFields(r.Value(openai.NVExt).Of(body))
		switch {
		case fields.First != "" && (w.trust == pin.Normal || w.headersOnly):
			return out, badBody(&openai.Error{Kind: openai.ForbiddenField, Field: fields.First})
		case err != nil:
			return out, pinned(err)
		}
		out.query = fields.Query
	}
	if w.trust == pin.Normal {
		return out, nil
	}
	var named []pin.Header
	for _, h := range headers {
		named = append(named, pin.Header(h))
	}
	var err *pin.Error
	if out.pins, err = pin.Read(named, fields); err != nil {
		return out, pinned(err)
	}
	return out, nil
}

// stillAsks reports whether a request that cannot be served for f is answered
// all the same: a question while prefill is becoming ready
// (docs/behaviour.md#becoming-ready).
func (q *question) stillAsks(f *failure) bool {
	q.decodeOnly = q.wish.query && f == &failPending && len(q.pool.Decode) > 0
	return q.decodeOnly
}

// lead returns the workers that say how the prompt is to be read.
func (q *question) lead() []*worker.Worker {
	switch {
	case q.disagg:
		return q.pool.Prefill
	case q.decodeOnly:
		return q.pool.Decode
	default:
		return q.pool.Aggregated
	}
}

// place finds the workers that the request names.
func (srv *Server) place(q *question) *failure {
	if q.wish.trust == pin.Normal {
		return nil
	}
	var err *pin.Error
	q.places, err = q.wish.pins.Resolve(pin.Scope{
		Snap: q.snap.Snapshot, Key: q.pool.Key, Trust: q.wish.trust,
		Disaggregated: q.disagg, Alone: !q.disagg && !q.decodeOnly, Left: srv.leavers.has, LeftFrom: srv.leavers.hasAt,
	})
	if err != nil {
		return pinned(err)
	}
	return nil
}

// misnamed returns what is wrong with the workers that the request names where
// nobody could be picked for f: that is judged before any pick, and who
// named a worker that drains must learn that it was this one.
func (srv *Server) misnamed(q *question, f *failure) *failure {
	if f != &failNoPrefill && f != &failNoDecode && f != &failNoCommon {
		return nil
	}
	apart := *q
	apart.disagg = true
	return srv.place(&apart)
}

// placeOf returns the worker that is named for the role, nil for none.
func (q *question) placeOf(r worker.Role) *pin.Place {
	if r == worker.Prefill {
		return q.places.Prefill
	}
	return q.places.Decode
}

// nobody returns the row for a pick that found nobody: of a worker that was
// named, that it has left since.
func (q *question) nobody(r worker.Role, f *failure, err error) *failure {
	if errors.Is(err, errOutside) {
		return &failOutside
	}
	var taint *picker.TaintError
	if at := q.placeOf(r); at != nil && errors.Is(err, picker.ErrNoCandidate) && !errors.As(err, &taint) {
		gone := failPinGone
		gone.message += ": " + r.String() + " worker " + at.Worker.ID.String() + "."
		return &gone
	}
	return f.because(err)
}

// narrow leaves of a pick only what the request names: one rank, or the ranks
// of one worker. What keeps others from being picked does not count for it:
// neither that it is set aside, nor that it has failed this request, nor a
// limit. No cursor moves (docs/behaviour.md#one-turn).
func narrow(r *load.Request, at *pin.Place, p *picker.Params) {
	from, _ := slices.BinarySearchFunc(r.Ranks, worker.Rank{ID: at.Worker.ID, DPRank: at.DPRank}, worker.Rank.Compare)
	n := 1
	if at.AnyRank {
		n = int(at.Worker.DPSize)
	}
	n = min(n, len(r.Ranks)-from)
	guessed := r.Estimated
	r.Estimated = nil
	for i := range n {
		if guessed.Has(from + i) {
			if r.Estimated == nil {
				r.Estimated = picker.NewBits(n)
			}
			r.Estimated.Set(i)
		}
	}
	for _, column := range []*[]uint32{&r.Overlaps, &r.Predicted, &r.Host, &r.Disk} {
		if len(*column) >= from+n {
			*column = (*column)[from : from+n]
		}
	}
	r.Ranks = r.Ranks[from : from+n : from+n]
	r.Filter, r.Exclude, r.MaxQueuedISLTokens = everyone{r.Filter}, nil, 0
	p.ServeOverloaded = true
	if p.Mode == picker.RoundRobin {
		p.Mode = picker.KV
	}
}

// everyone lets all workers be picked, and tells the filter within who was.
type everyone struct{ load.Filter }

func (everyone) Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	return 1, dst, since != 1
}

func (everyone) Standing(worker.Rank) health.Standing { return health.Free }
