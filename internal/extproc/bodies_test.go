package extproc

import (
	"strconv"
	"strings"
	"testing"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// roomFor starts a server with room for eight MiB of bodies, six of them for large ones.
func roomFor(t *testing.T) *replica {
	return newReplica(t, "a", func(c *Config) { c.MaxBodiesBytes, c.MaxBodyBytes = 8<<20, 4<<20 })
}

// begin sends the headers of a request.
func (p *proxy) begin(duplex bool, pairs ...string) {
	mode := extprocfilterv3.ProcessingMode_BUFFERED
	if duplex {
		mode = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	pairs = append([]string{":method", "POST", ":path", "/v1/completions"}, pairs...)
	require.NoError(p.t, p.s.Send(&extprocv3.ProcessingRequest{
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: mode},
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: wiretest.HeaderMap(pairs...)}},
	}))
}

func (p *proxy) piece(body string, last bool) {
	require.NoError(p.t, p.s.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: last}},
	}))
}

// oneSecond matches the Retry-After for a small body, laterOn that for a large one.
const oneSecond, laterOn = `^1$`, `^([5-9]|1[0-4])$`

func (p *proxy) requireFull(retryAfter string) {
	p.t.Helper()
	im := p.recv().GetImmediateResponse()
	require.EqualValues(p.t, 503, im.GetStatus().GetCode())
	require.Contains(p.t, string(im.GetBody()), `"bodies_full"`)
	require.Regexp(p.t, retryAfter, setHeaders(im.GetHeaders())["retry-after"])
	p.cancel()
}

// TestABodyWithoutRoomIsRefused is about bodies of announced size, refused at the headers.
func TestABodyWithoutRoomIsRefused(t *testing.T) {
	r := roomFor(t)
	announce := func(n int, duplex bool, more ...string) *proxy {
		p := r.open(filterMain)
		p.begin(duplex, append(more, "content-length", strconv.Itoa(n))...)
		return p
	}
	first, second := announce(3<<20, false), announce(3<<20, false)
	require.NotNil(t, first.recv().GetRequestHeaders())
	require.NotNil(t, second.recv().GetRequestHeaders())
	used := r.srv.Usage()
	require.EqualValues(t, 6<<20, used.BodyBytes)
	require.EqualValues(t, 8<<20, used.BodyLimit)
	announce(2<<20, false).requireFull(laterOn)
	announce(2<<20, true).requireFull(laterOn)
	other := announce(2<<20, false, prefill.HeaderStart, "1800000000000", "x-envoy-attempt-count", "2")
	require.NotNil(t, other.recv(), "Envoy holds the body of a fresh attempt already")
	other.cancel()

	small := announce(len(someBody), false)
	require.NotNil(t, small.recv().GetRequestHeaders(), "a small one finds room")
	more := announce(1<<20, false)
	require.NotNil(t, more.recv().GetRequestHeaders())
	announce(1<<20, false).requireFull(oneSecond)
	small.piece(someBody, true)
	require.NotNil(t, small.recv().GetRequestBody())
	small.responseHeaders("500") // room is given back however a request ends
	for _, p := range []*proxy{first, second, small, more} {
		p.cancel()
	}
	r.forgetLegs()
	r.accessLog()
	r.requireIdle()
}

// TestABodyThatNeverFindsRoomIsTooLarge: a body that could never have room is refused with
// 413 and no Retry-After, as soon as its size is known. A body that can have room is admitted.
func TestABodyThatNeverFindsRoomIsTooLarge(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.MaxBodiesBytes = 8 << 20 })
	const most = 6 << 20
	requireTooLarge := func(p *proxy) {
		t.Helper()
		im := p.recv().GetImmediateResponse()
		require.EqualValues(t, 413, im.GetStatus().GetCode())
		require.Contains(t, string(im.GetBody()), `"body_too_large"`)
		require.Empty(t, setHeaders(im.GetHeaders())["retry-after"])
		p.cancel()
	}
	uses := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return r.srv.bodies.Used() == int64(n) }, 20*time.Second, 5*time.Millisecond)
	}
	announce := func(n int, duplex bool) *proxy {
		p := r.open(filterMain)
		p.begin(duplex, "content-length", strconv.Itoa(n))
		return p
	}
	holds := announce(most, false)
	require.NotNil(t, holds.recv().GetRequestHeaders())
	requireTooLarge(announce(most+1, false))
	requireTooLarge(announce(most+1, true))
	announce(most, true).requireFull(laterOn)
	holds.cancel()
	uses(0)

	mib := strings.Repeat("x", 1<<20)
	p := r.open(filterMain)
	p.begin(true)
	for range 5 {
		p.piece(mib, false)
	}
	uses(most)
	p.piece(mib, false)
	uses(most)
	p.piece("x", false)
	requireTooLarge(p)
	uses(0)

	p = r.open(filterMain)
	p.begin(false)
	require.NotNil(t, p.recv().GetRequestHeaders())
	p.piece(strings.Repeat("x", most+1), true)
	requireTooLarge(p)
	r.forgetLegs()
	r.accessLog()
	r.requireIdle()
}

// TestABodyOfUnknownSizeCountsAsItComes if it comes in pieces. If Envoy keeps it until it is
// whole, it counts for a part of the budget until then.
func TestABodyOfUnknownSizeCountsAsItComes(t *testing.T) {
	r := roomFor(t)
	uses := func(n int, why string) {
		t.Helper()
		require.Eventually(t, func() bool { return r.srv.bodies.Used() == int64(n) }, 20*time.Second, 5*time.Millisecond, why)
	}
	some := strings.Repeat("x", 3<<19)
	a, b := r.open(filterMain), r.open(filterMain)
	a.begin(true)
	a.piece(some, false)
	uses(2<<20, "the next power of two")
	b.begin(true)
	b.piece(some[:4000], false)
	uses(2<<20+4000, "so little may be small")
	b.piece(some, false)
	b.requireFull(laterOn)
	uses(2<<20, "it is given back at once")
	a.piece(some, false)
	uses(4<<20, "one that has begun goes on")
	a.cancel()
	r.requireIdle()

	whole := r.open(filterMain)
	whole.begin(true)
	whole.piece(`{"model":"m","prompt":"`, false)
	whole.piece(some, false)
	whole.piece(`"}`, true)
	require.NotNil(t, whole.recv().GetRequestHeaders())
	uses(len(some)+25, "what it is")
	whole.cancel()
	r.forgetLegs()
	r.accessLog()
	r.requireIdle()

	p := r.open(filterMain)
	p.begin(false)
	require.NotNil(t, p.recv().GetRequestHeaders())
	require.Equal(t, r.srv.bodies.Limit()/unseen, r.srv.bodies.Used(), "until it is whole")
	p.piece(someBody, true)
	require.NotNil(t, p.recv().GetRequestBody())
	require.EqualValues(t, len(someBody), r.srv.bodies.Used(), "until its answer has ended")
	p.cancel()
	r.forgetLegs()
	r.accessLog()
	r.requireIdle()
}

// TestALegsBodyCountsBesideItsRequests: a mirrored body counts, too, and is never refused.
func TestALegsBodyCountsBesideItsRequests(t *testing.T) {
	r := roomFor(t)
	main := r.open(filterMain)
	set := main.route(someBody)
	full := r.open(filterMain)
	full.begin(false, "content-length", strconv.Itoa(4<<20))
	require.NotNil(t, full.recv().GetRequestHeaders())
	leg := r.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.NotNil(t, leg.recv().GetRequestHeaders())
	big := `{"model":"m","prompt":"` + strings.Repeat("x", 3<<20) + `"}`
	leg.piece(big, true)
	require.NotNil(t, leg.recv().GetRequestBody())
	require.EqualValues(t, 4<<20+len(someBody)+len(big), r.srv.bodies.Used())
	for _, p := range []*proxy{leg, main, full} {
		p.cancel()
	}
	r.forgetLegs()
	r.accessLog()
	r.requireIdle()
}
