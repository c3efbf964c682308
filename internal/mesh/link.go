package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/replicas"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

const (
	service  = "baton.v1.Replicas"
	tell     = "/" + service + "/Tell"
	tokenKey = "x-baton-replica" // of a stream's metadata

	// answerWithin is how long a replica may take to answer a message until its connection is given up.
	answerWithin = 2 * time.Second
	// againAfter is when a stream that has ended is begun anew, and unknownAgain when a replica that does not
	// know the service is asked again: it may have been updated.
	againAfter   = 200 * time.Millisecond
	unknownAgain = 5 * time.Second
	boxSize      = 64 // messages that wait for a slow replica
)

var tellDesc = grpc.StreamDesc{StreamName: "Tell", ClientStreams: true, ServerStreams: true}

// link sends the messages of this process to one other.
type link struct {
	hub    *Hub
	addr   string
	box    chan []byte
	open   atomic.Bool     // there is a stream
	behind atomic.Bool     // messages were dropped: the next one has to be whole
	ctx    context.Context //nolint:containedctx // ends run
	stop   context.CancelFunc
	cut    context.CancelFunc // ends the stream without a word
	wire   context.Context    //nolint:containedctx // of the stream
	told   atomic.Bool        // it has answered since said was logged
	said   string             // owned by run: why it is not told, as the log has it
}

func newLink(h *Hub, addr string) *link {
	ctx, stop := context.WithCancel(context.Background())
	wire, cut := context.WithCancel(context.Background()) // not of ctx: a process that leaves says so
	return &link{hub: h, addr: addr, box: make(chan []byte, boxSize), ctx: ctx, stop: stop, wire: wire, cut: cut}
}

// offer sends a message, if there is a stream: else the stream will begin with all.
func (l *link) offer(b []byte) {
	if !l.open.Load() {
		return
	}
	select {
	case l.box <- b:
	default:
		l.behind.Store(true)
		l.hub.cfg.Counted(Dropped)
	}
}

func (l *link) run() {
	defer l.cut()
	h := l.hub
	for l.ctx.Err() == nil {
		err := l.send()
		if l.ctx.Err() != nil {
			return
		}
		wait, text := againAfter, "the stream has ended"
		if err != nil {
			text = status.Convert(err).Message()
		}
		code := status.Code(err)
		switch code {
		case codes.Unimplemented:
			wait, text = unknownAgain, "it does not know how to share what is booked: it is of a version before 0.2"
		case codes.PermissionDenied, codes.FailedPrecondition, codes.InvalidArgument: // that does not change soon
			wait = unknownAgain
		}
		h.mu.Lock()
		if errors.Is(err, errKnown) {
			h.roster.Alias(l.addr, time.Now())
			delete(h.links, l.addr)
			h.mu.Unlock()
			return
		}
		h.roster.Sent(l.addr, text, code == codes.Unimplemented, time.Now())
		h.mu.Unlock()
		if l.told.Swap(false) || text != l.said {
			h.cfg.Log.Info("a replica is not told what is booked; it is tried again", logkey.Replica, l.addr, logkey.Reason, text)
			l.said = text
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(wait):
		}
	}
}

// send opens a stream and sends messages until it ends.
func (l *link) send() (err error) {
	creds := l.hub.cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(l.addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), // replicas are neighbours
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: answerWithin}))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(l.wire)
	defer cancel()
	var quiet atomic.Bool
	silence := time.AfterFunc(answerWithin, func() { quiet.Store(true); cancel() })
	defer silence.Stop()
	defer func() {
		if quiet.Load() {
			err = errQuiet
		}
	}()
	stream, err := conn.NewStream(metadata.AppendToOutgoingContext(ctx, tokenKey, l.hub.cfg.Token), &tellDesc, tell)
	if err != nil {
		return err
	}
	answers := make(chan error, 1)
	sent := &sendings{began: time.Now()}
	go func() { answers <- l.answers(stream, sent, silence) }()
	l.behind.Store(true)
	l.open.Store(true)
	defer l.open.Store(false)
	for {
		if l.behind.Swap(false) {
			for len(l.box) > 0 {
				<-l.box
			}
			if err := l.put(stream, l.hub.encode(l.hub.whole(nil, true)), sent); err != nil {
				return cause(err, answers)
			}
			continue
		}
		select {
		case b := <-l.box:
			if err := l.put(stream, b, sent); err != nil {
				return cause(err, answers)
			}
		case err := <-answers:
			return err
		case <-l.ctx.Done():
			_ = stream.CloseSend()
			select {
			case <-answers:
			case <-time.After(againAfter):
			}
			return nil
		}
	}
}

func (l *link) put(s grpc.ClientStream, b []byte, sent *sendings) error {
	sent.add(time.Now())
	if err := s.SendMsg(wrapperspb.Bytes(b)); err != nil {
		return err
	}
	l.hub.cfg.Counted(Sent)
	return nil
}

// errQuiet is why a stream is begun anew to a replica that may live.
var errQuiet = status.Errorf(codes.DeadlineExceeded, "it has not answered for %v", answerWithin)

// cause returns why sending has failed, which gRPC says to who receives.
func cause(err error, answers <-chan error) error {
	if errors.Is(err, io.EOF) {
		return <-answers
	}
	return err
}

// answers reads what the replica answers: how many messages it has had, and the life of its process.
func (l *link) answers(s grpc.ClientStream, sent *sendings, silence *time.Timer) error {
	for first := true; ; first = false {
		v := new(wrapperspb.BytesValue)
		if err := s.RecvMsg(v); err != nil {
			return err
		}
		silence.Reset(answerWithin)
		b := v.GetValue()
		if len(b) != 16 {
			return status.Error(codes.InvalidArgument, "it answers what is no answer")
		}
		life := binary.LittleEndian.Uint64(b[8:])
		took, timed := sent.since(binary.LittleEndian.Uint64(b), time.Now())
		h := l.hub
		h.mu.Lock()
		known := life == h.cfg.Life || h.roster.Known(l.addr, life)
		if first {
			h.roster.Sent(l.addr, "", false, time.Now())
			l.told.Store(true)
		}
		if timed {
			h.roster.AnsweredIn(l.addr, took)
		}
		h.mu.Unlock()
		if known {
			return errKnown
		}
	}
}

// sendings are when the newest messages of a stream were sent. One goroutine adds, another reads.
type sendings struct {
	began time.Time
	n     atomic.Uint64
	at    [64]atomic.Int64 // since began
}

func (s *sendings) add(now time.Time) {
	n := s.n.Load() + 1
	s.at[n%uint64(len(s.at))].Store(int64(now.Sub(s.began)))
	s.n.Store(n)
}

// since returns how long ago message n was sent, counted from 1; false if that is not known any more.
func (s *sendings) since(n uint64, now time.Time) (time.Duration, bool) {
	if last := s.n.Load(); n == 0 || n > last || last-n >= uint64(len(s.at)) {
		return 0, false
	}
	return now.Sub(s.began) - time.Duration(s.at[n%uint64(len(s.at))].Load()), true
}

// answerEvery is how often messages are answered at most.
const answerEvery = replicas.PulseEvery / 2

// Register adds the service to a gRPC server.
func (h *Hub) Register(s grpc.ServiceRegistrar) {
	d := tellDesc
	d.Handler = func(_ any, s grpc.ServerStream) error { return h.serve(s) }
	s.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{d}}, h)
}

// caller is a replica whose messages come on a stream.
type caller struct {
	name, addr string
	life       uint64 // 0: no message has come yet
	messages   uint64
	answered   time.Time
}

// serve takes the messages of one replica.
func (h *Hub) serve(s grpc.ServerStream) error {
	c, err := h.caller(s.Context())
	if err != nil {
		h.cfg.Counted(Refused)
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- h.listen(s, c) }() // ends with the stream
	select {
	case err := <-ended:
		return err
	case <-h.hung:
		return status.Error(codes.Unavailable, "this process is about to end")
	}
}

// listen takes messages until the stream ends.
func (h *Hub) listen(s grpc.ServerStream, c *caller) error {
	left := false
	defer func() {
		if c.life == 0 {
			return
		}
		h.mu.Lock()
		do := h.roster.Closed(c.addr, c.life, left, time.Now())
		h.mu.Unlock()
		h.do(context.Background(), do, time.Now())
	}()
	for {
		v := new(wrapperspb.BytesValue)
		if err := s.RecvMsg(v); err != nil {
			left = errors.Is(err, io.EOF)
			if left {
				return nil
			}
			return err
		}
		c.messages++
		if more, err := h.take(s, c, v.GetValue()); !more {
			return err
		}
	}
}

// take takes one message. It returns false if the stream is to end.
func (h *Hub) take(s grpc.ServerStream, c *caller, b []byte) (more bool, err error) {
	m, err := replicas.Decode(b)
	now := time.Now()
	switch {
	case err != nil || c.life != 0 && m.Life != c.life:
		h.cfg.Counted(Garbage)
		return false, status.Errorf(codes.InvalidArgument, "a message cannot be read: %v", err)
	case m.Life == h.cfg.Life: // the answer tells who it is
		return false, s.SendMsg(wrapperspb.Bytes(h.answer(c.messages)))
	case c.life == 0:
		h.mu.Lock()
		do, ok := h.roster.Opened(c.addr, c.name, m.Life, now)
		h.mu.Unlock()
		h.do(s.Context(), do, now)
		if !ok {
			h.cfg.Counted(Stale)
			return false, status.Error(codes.FailedPrecondition, "another process has come after this one at its address, or there are too many replicas")
		}
		c.life = m.Life
	}
	if !h.hear(c.addr, m) {
		return false, status.Error(codes.FailedPrecondition, "another process has come after this one at its address")
	}
	if now.Sub(c.answered) < answerEvery {
		return true, nil
	}
	c.answered = now
	err = s.SendMsg(wrapperspb.Bytes(h.answer(c.messages)))
	return err == nil, err
}

// caller returns who has opened a stream.
func (h *Hub) caller(ctx context.Context) (*caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	token := md.Get(tokenKey)
	if len(token) != 1 {
		return nil, status.Error(codes.PermissionDenied, "expected the token of a replica")
	}
	name, addr, err := h.cfg.Open(token[0])
	if err != nil || addr == "" {
		return nil, status.Error(codes.PermissionDenied, "the token is not sealed with this replica's key (leg.key_file), or names no address (leg.advertise)")
	}
	return &caller{name: name, addr: addr}, nil
}

// answer says how many messages of a stream have come, and which process this is.
func (h *Hub) answer(n uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, n), h.cfg.Life)
}
