package main

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// raw is a codec of messages that are bytes already.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	if b, ok := v.([]byte); ok {
		return b, nil
	}
	return nil, errors.New("no bytes")
}

func (raw) Unmarshal(b []byte, v any) error {
	if to, ok := v.(*[]byte); ok {
		*to = append([]byte(nil), b...)
		return nil
	}
	return errors.New("no place for bytes")
}

// watcher is an ext_proc server that lets an answer pass and, when its stream ends, tries to go on.
type watcher struct {
	log                   atomic.Pointer[string]
	duplex, hold, observe atomic.Bool
}

func (w *watcher) reset(f way) {
	s := ""
	w.log.Store(&s)
	w.duplex.Store(strings.Contains(f.name, "FULL_DUPLEX"))
	w.hold.Store(strings.Contains(f.name, "back"))
	w.observe.Store(strings.Contains(f.name, "observing"))
}

func (w *watcher) seen() string { return *w.log.Load() }

func (w *watcher) note(format string, args ...any) {
	t := *w.log.Load() + fmt.Sprintf(format, args...) + " "
	w.log.Store(&t)
}

// Fields of ext_proc's messages: a request's, then a response's.
const (
	responseHeaders, responseBody  = 3, 5
	headersAnswer, bodyAnswer      = 2, 4
	common, mutation, pieces, text = 1, 3, 3, 1
)

func field(n protowire.Number, of []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), of)
}

func inside(b []byte, want protowire.Number) ([]byte, bool) {
	for len(b) > 0 {
		n, kind, k := protowire.ConsumeTag(b)
		if k < 0 {
			return nil, false
		}
		b = b[k:]
		if n == want && kind == protowire.BytesType {
			v, k := protowire.ConsumeBytes(b)
			return v, k >= 0
		}
		if k = protowire.ConsumeFieldValue(n, kind, b); k < 0 {
			return nil, false
		}
		b = b[k:]
	}
	return nil, false
}

// streamed is the answer to a piece, or one that nobody has asked for.
func streamed(b []byte) []byte {
	return field(bodyAnswer, field(common, field(mutation, field(pieces, field(text, b)))))
}

func (w *watcher) process(_ any, s grpc.ServerStream) error {
	for {
		var m []byte
		if err := s.RecvMsg(&m); err != nil {
			w.note("end(%v)", err)
			w.note("sending more(%v)", s.SendMsg(streamed([]byte("data: more\n\n"))))
			return nil
		}
		answer := field(bodyAnswer, nil)
		if _, ok := inside(m, responseHeaders); ok {
			w.note("head")
			if w.hold.Load() {
				time.Sleep(300 * time.Millisecond)
			}
			answer = field(headersAnswer, nil)
		} else if body, ok := inside(m, responseBody); ok {
			b, _ := inside(body, 1)
			w.note("piece(%d)", len(b))
			if w.duplex.Load() {
				answer = streamed(b)
			}
		}
		if w.observe.Load() {
			continue
		}
		if err := s.SendMsg(answer); err != nil {
			return nil
		}
	}
}
