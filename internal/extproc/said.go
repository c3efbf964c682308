package extproc

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// said is what the log was told once, of what comes with each request. Safe for concurrent use.
type said struct {
	log *slog.Logger // set at construction, read-only

	unheeded                   atomic.Uint32 // headers of wire.Unheeded, a bit for each
	retries, unread, unweighed sync.Once

	mu         sync.Mutex
	complaints []string // guarded by mu: faults of filters
}

// mostComplaints bounds the faults of filters that are logged.
const mostComplaints = 64

// misled returns the status that refuses a stream whose filter is configured wrongly. It
// logs each fault once, since Envoy's log does not name the cause.
func (s *said) misled(err error) error {
	text := err.Error()
	s.mu.Lock()
	news := len(s.complaints) < mostComplaints && !slices.Contains(s.complaints, text)
	if news {
		s.complaints = append(s.complaints, text)
	}
	s.mu.Unlock()
	if news {
		s.log.Error("a filter's streams are refused; this is said once", logkey.Err, err)
	}
	return status.Error(codes.InvalidArgument, text)
}

// unreadHead logs that Envoy has opened no stream for the first events of an answer: its
// configuration is older, or not Baton's.
func (s *said) unreadHead(head *wire.Headers) {
	if head.LocalReply == "" && leg.StatusOf(head.Status)/100 == 2 && leg.IsEventStream(head.ContentType) {
		s.unread.Do(func() {
			s.log.Warn("Envoy's main leg has no filter baton.first_token, or not on the route of x-baton-first-token: " +
				"an error in a streamed answer is not seen (docs/decisions/0011-first-token.md); answer.first_token: off ends this line")
		})
	}
}

// sent logs, once for each header of wire.Unheeded, that clients send it.
func (s *said) sent(seen uint8) {
	if seen == 0 {
		return
	}
	fresh := uint32(seen) &^ s.unheeded.Or(uint32(seen))
	for i, name := range wire.Unheeded {
		if fresh>>i&1 == 1 {
			s.log.Info("clients send a header on which nothing here acts; it goes to workers as it is", logkey.Header, name)
		}
	}
}

// handedByGateway logs what a gateway's own retries do to hand-offs that go through it.
func (s *said) handedByGateway() {
	s.retries.Do(func() {
		s.log.Warn("hand-offs go to decode through a gateway with one leg: if the gateway itself retries a request that a worker has had, it repeats a used hand-off, " +
			"and decode may answer with another prompt's KV; see docs/gateway-api.md, the gateway's own retries")
	})
}

// weighed logs that a request's weights are not read.
func (s *said) weighed() {
	s.unweighed.Do(func() {
		s.log.Warn("a request would weigh its own picks, and is picked for like others: its nvext.router_config_override " +
			"is not read while routing.request_overrides is off; logged once")
	})
}
