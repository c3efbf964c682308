package extproc

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhatWasLearnedOutlivesTheProcess: another one believes it of the same workers, and the book knows it before
// the first leg has ended.
func TestWhatWasLearnedOutlivesTheProcess(t *testing.T) {
	first, second := newReplica(t, "a", nil), newReplica(t, "b", nil)
	key, slow, now := worker.Key{Model: "m"}, worker.Rank{ID: 2}, time.Now()
	pair := legRanks{worker.Rank{ID: 1}, worker.Rank{ID: 3}}
	for i := range 40 {
		c, size := &first.srv.cfg, int64(1000+100*i)
		now = now.Add(time.Second)
		first.srv.Paces.took(c, paced{key, worker.Prefill}, worker.Rank{ID: 1}, time.Duration(size)*time.Millisecond, now, size)
		first.srv.Paces.took(c, paced{key, worker.Prefill}, slow, 3*time.Duration(size)*time.Millisecond, now, size)
		first.srv.Paces.handedOver(c, key, pair, time.Duration(size)*time.Microsecond, now, size)
	}
	var kept bytes.Buffer
	require.NoError(t, first.srv.Paces.Write(&kept))
	for _, bad := range []string{"", "{", `{"Fleets":[{"Fleet":{"All":{"N":-1}}}]}`} {
		require.Error(t, second.srv.Paces.Read(strings.NewReader(bad), now))
	}
	require.NoError(t, second.srv.Paces.Read(strings.NewReader(`{"Fleets":[{}],"Pairs":[{}]}`), now))
	require.NoError(t, second.srv.Paces.Read(&kept, now))
	second.srv.Paces.tell(&second.srv.cfg)
	for _, r := range []*replica{first, second} {
		w := r.srv.view.Load().Worker(slow.ID)
		s, legs, known := r.srv.Paces.Believed(w, slow)
		require.True(t, known)
		require.Greater(t, s.Seconds(1000), 2.0)
		require.Greater(t, legs, 5.0)
		p, held := picker.DefaultParamsFor(worker.Prefill), new(load.Reservation)
		req := &load.Request{Params: &p, Now: now, Pick: picker.Request{Role: worker.Prefill, ISLTokens: 1000}}
		require.NoError(t, r.book.Reserve(req, slow, 0, held))
		require.Greater(t, r.book.Wait(slow, now), 2.0)
		held.Release(now)
	}
	require.InDelta(t, 0.001, first.book.HandOff(key, 1000), 1e-4)
}

// TestWhatTheFirstLegsTeachIsBelievedOfAllRanks at once: a rank that has served nothing is not taken for one of
// ten thousand tokens a second while its mates are known to have a tenth of that.
func TestWhatTheFirstLegsTeachIsBelievedOfAllRanks(t *testing.T) {
	r := newReplica(t, "a", nil)
	key, now := worker.Key{Model: "m"}, time.Now()
	wait := func(of worker.Rank) float64 {
		p, held := picker.DefaultParamsFor(worker.Prefill), new(load.Reservation)
		req := &load.Request{Params: &p, Now: now, Pick: picker.Request{Role: worker.Prefill, ISLTokens: 1000}}
		require.NoError(t, r.book.Reserve(req, of, 0, held))
		defer held.Release(now)
		return r.book.Wait(of, now)
	}
	require.Less(t, wait(worker.Rank{ID: 2}), 0.2)
	for i := range 8 {
		size := int64(500 + 100*i)
		now = now.Add(time.Millisecond)
		r.srv.Paces.took(&r.srv.cfg, paced{key, worker.Prefill}, worker.Rank{ID: 1}, time.Duration(size)*time.Millisecond, now, size)
	}
	require.InDelta(t, 1, wait(worker.Rank{ID: 2}), 0.1)
}

// TestAnAdapterTeachesOfTheRanksOfItsModel: the ranks are the same ones. An adapter that is loaded by its first
// request makes no rank slow for all others.
func TestAnAdapterTeachesOfTheRanksOfItsModel(t *testing.T) {
	workers := routetest.Workers()
	for i, w := range workers {
		own := *w
		own.Models, own.Adapters = append([]string{"lora"}, w.Models...), []string{"lora"}
		workers[i] = &own
	}
	r := newReplicaOf(t, "a", fixed(workers), nil)
	now, at := time.Now(), worker.Rank{ID: 1}
	leg := func(model string, took time.Duration) {
		now = now.Add(time.Millisecond)
		r.srv.Paces.took(&r.srv.cfg, paced{worker.Key{Model: model}, worker.Prefill}, at, took, now, 1000)
	}
	for range 100 {
		leg("m", 100*time.Millisecond)
	}
	leg("lora", 30*time.Second)
	for range 5 {
		leg("lora", 100*time.Millisecond)
	}
	s, legs, known := r.srv.Paces.Believed(r.srv.view.Load().Worker(at.ID), at)
	require.True(t, known)
	require.Greater(t, legs, 20.0)
	require.Less(t, s.Seconds(1000), 0.15)
	require.Len(t, r.srv.Paces.fleets, 1)
}

// TestWhatAnotherReplicaHasLearnedIsBelieved where this one has seen nothing, until that one is gone.
func TestWhatAnotherReplicaHasLearnedIsBelieved(t *testing.T) {
	first, second := newReplica(t, "a", nil), newReplica(t, "b", nil)
	key, now := worker.Key{Model: "m"}, time.Now()
	pair := legRanks{worker.Rank{ID: 1}, worker.Rank{ID: 3}}
	for i := range 40 {
		c, size := &first.srv.cfg, int64(1000+100*i)
		now = now.Add(time.Second)
		first.srv.Paces.took(c, paced{key, worker.Prefill}, worker.Rank{ID: 1}, time.Duration(size)*time.Millisecond, now, size)
		first.srv.Paces.handedOver(c, key, pair, time.Duration(size)*time.Microsecond, now, size)
	}
	learned, err := first.srv.Paces.Learned()
	require.NoError(t, err)
	c := &second.srv.cfg
	for _, bad := range []string{"{", `{"Fleets":[{"Fleet":{"All":{"N":-1}}}]}`} {
		require.Error(t, second.srv.Paces.Learn(c, 7, []byte(bad)))
	}
	require.NoError(t, second.srv.Paces.Learn(c, 7, []byte(`{"Fleets":[{},{"Of":{"Model":"nobody's"},"Fleet":{}}],"Pairs":[{}]}`)))
	require.NoError(t, second.srv.Paces.Learn(c, 7, learned))
	believed := func() float64 {
		s, _, _ := second.srv.Paces.Believed(second.srv.view.Load().Worker(1), worker.Rank{ID: 1})
		return s.Seconds(1000)
	}
	require.InDelta(t, 1, believed(), 0.2)
	require.InDelta(t, 0.001, second.book.HandOff(key, 1000), 1e-4)
	own, err := second.srv.Paces.Learned()
	require.NoError(t, err)
	require.NotContains(t, string(own), `"Ranks":[{`, "it is not passed on")
	require.NoError(t, second.srv.Paces.Learn(c, 7, nil))
	require.Zero(t, believed())
}
