package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// listener receives one engine's KV events.
type listener struct {
	sock zmq4.Socket
	in   chan [][]byte
	next uint64 // the sequence number that should come next
	any  bool   // a message has come
	odd  signs
}

// signs says whether hashes below zero, or of 2^63 and more, have come.
type signs struct{ negative, large bool }

func listen(ctx context.Context, addr string) (*listener, error) {
	l := &listener{sock: zmq4.NewSub(ctx, quiet), in: make(chan [][]byte, 1000)}
	if err := l.sock.Dial(addr); err != nil {
		return nil, fmt.Errorf("capture: KV events of %s: %w", addr, err)
	}
	if err := l.sock.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		return nil, fmt.Errorf("capture: KV events of %s: %w", addr, err)
	}
	go func() {
		defer close(l.in)
		for {
			m, err := l.sock.Recv()
			if err != nil {
				return
			}
			l.in <- m.Frames
		}
	}()
	return l, nil
}

var quiet = zmq4.WithLogger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelError))

// close ends the listener and returns once its goroutine has ended.
func (l *listener) close() {
	_ = l.sock.Close()
	for range l.in {
	}
}

// until returns the lines of the events before the block of the marker. It fails if
// nothing comes for as long as patience.
func (l *listener) until(ctx context.Context, seed int, patience time.Duration) ([]string, error) {
	names := hashes{}
	var out []string
	for {
		select {
		case frames, ok := <-l.in:
			if !ok {
				return nil, fmt.Errorf("capture: the stream of KV events ended")
			}
			b, err := readBatch(frames)
			if err != nil {
				return nil, err
			}
			l.odd.negative = l.odd.negative || b.odd.negative
			l.odd.large = l.odd.large || b.odd.large
			follows := b.seq == l.next || !l.any
			l.next, l.any = b.seq+1, true
			marked := b.cut(firstID(seed))
			if len(b.events) > 0 || !marked {
				out = append(out, b.lines(names, follows)...)
			}
			if marked {
				return out, nil
			}
		case <-time.After(patience):
			return nil, fmt.Errorf("capture: no block of the marker %d within %s", seed, patience)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// batch is one message of KV events.
type batch struct {
	frames int
	topic  string
	seq    uint64
	head   string // how the payload's array is encoded
	rank   any
	events []kvEvent
	odd    signs
}

// kvEvent is one event, with its members in their order.
type kvEvent struct {
	head    string
	members []member
}

type member struct {
	name  string
	value any
}

func readBatch(frames [][]byte) (*batch, error) {
	if len(frames) != 3 {
		return nil, fmt.Errorf("capture: a message of KV events with %d frames", len(frames))
	}
	b := &batch{frames: len(frames), topic: string(frames[0]), seq: binary.BigEndian.Uint64(frames[1])}
	return b, b.payload(frames[2])
}

func (b *batch) payload(p []byte) error {
	d := msgpack.NewDecoder(bytes.NewReader(p))
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	n, err := d.DecodeArrayLen()
	if err != nil {
		return fmt.Errorf("capture: a batch of KV events: %w", err)
	}
	b.head = fmt.Sprintf("%s of %d", form(code), n)
	if _, err := d.DecodeFloat64(); err != nil {
		return fmt.Errorf("capture: the time of a batch: %w", err)
	}
	count, err := d.DecodeArrayLen()
	if err != nil {
		return fmt.Errorf("capture: the events of a batch: %w", err)
	}
	for range count {
		e, err := b.event(d)
		if err != nil {
			return fmt.Errorf("capture: an event: %w", err)
		}
		b.events = append(b.events, e)
	}
	if n > 2 {
		b.rank, err = d.DecodeInterface()
	}
	return err
}

func (b *batch) event(d *msgpack.Decoder) (e kvEvent, err error) {
	code, err := d.PeekCode()
	if err != nil {
		return e, err
	}
	n, err := d.DecodeMapLen()
	if err != nil {
		return e, err
	}
	e.head = fmt.Sprintf("%s of %d", form(code), n)
	for range n {
		var m member
		m.name, err = d.DecodeString()
		if err != nil {
			return e, err
		}
		m.value, err = d.DecodeInterface()
		if err != nil {
			return e, err
		}
		e.members = append(e.members, m)
		b.note(m)
	}
	return e, nil
}

// note records the signs of an event's hashes.
func (b *batch) note(m member) {
	list, ok := m.value.([]any)
	if !ok || m.name != "block_hashes" {
		return
	}
	for _, h := range list {
		switch h := h.(type) {
		case int64:
			b.odd.negative = b.odd.negative || h < 0
		case uint64:
			b.odd.large = b.odd.large || h>>63 == 1
		}
	}
}

// form is the encoding of a container.
func form(code byte) string {
	switch {
	case msgpcode.IsFixedMap(code):
		return "fixmap"
	case code == msgpcode.Map16:
		return "map16"
	case msgpcode.IsFixedArray(code):
		return "fixarray"
	case code == msgpcode.Array16:
		return "array16"
	default:
		return fmt.Sprintf("0x%02x", code)
	}
}

// cut removes the event that stores a block beginning with this token, and all events
// after it. False means that there is no such event.
func (b *batch) cut(first int) bool {
	for i, e := range b.events {
		for _, m := range e.members {
			if list, ok := m.value.([]any); ok && m.name == "token_ids" && len(list) > 0 && number(list[0]) == fmt.Sprint(first) {
				b.events = b.events[:i]
				return true
			}
		}
	}
	return false
}

// hashes names hashes in the order in which they appear.
type hashes map[string]string

func (h hashes) name(v any) string {
	if v == nil {
		return "nil"
	}
	key := fmt.Sprint(v)
	if _, ok := h[key]; !ok {
		h[key] = fmt.Sprintf("h%d", len(h)+1)
	}
	return h[key]
}

// row names hashes. Of a row of consecutive names it has the first and the last.
func (h hashes) row(list []any) string {
	var parts []string
	for i := 0; i < len(list); {
		first := h.name(list[i])
		end := i + 1
		for n, _ := strconv.Atoi(first[1:]); end < len(list) && h.name(list[end]) == fmt.Sprintf("h%d", n+end-i); {
			end++
		}
		if end > i+1 {
			first += ".." + h.name(list[end-1])
		}
		parts, i = append(parts, first), end
	}
	return strings.Join(parts, " ")
}

func (b *batch) lines(names hashes, follows bool) []string {
	seq := "the next"
	if !follows {
		seq = "not the next"
	}
	out := []string{fmt.Sprintf("batch of %d frames, topic %q, sequence %s, %s, rank %v", b.frames, b.topic, seq, b.head, b.rank)}
	for _, e := range b.events {
		out = append(out, e.lines(names)...)
	}
	return out
}

func (e kvEvent) lines(names hashes) []string {
	out := []string{"event " + e.head}
	for _, m := range e.members {
		out = append(out, "."+m.name+" "+m.text(names))
	}
	return out
}

func (m member) text(names hashes) string {
	list, isList := m.value.([]any)
	switch {
	case m.name == "block_hashes" && isList:
		return names.row(list)
	case m.name == "parent_block_hash":
		return names.name(m.value)
	case m.name == "token_ids" && isList:
		first := "none"
		if len(list) > 0 {
			first = number(list[0])
		}
		return fmt.Sprintf("[%d] first %s", len(list), first)
	default:
		return plain(m.value)
	}
}

func plain(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case string:
		return fmt.Sprintf("%q", v)
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = plain(e)
		}
		if rest := slices.Compact(slices.Clone(parts)); len(rest) == 1 {
			return fmt.Sprintf("[%d times %s]", len(v), rest[0])
		}
		return "[" + strings.Join(parts, " ") + "]"
	default:
		return number(v)
	}
}

func number(v any) string { return fmt.Sprint(v) }

// replayed returns lines about a replay of the stream: the first message, the end, and
// the signs of all hashes so far.
func (l *listener) replayed(ctx context.Context, addr string) ([]string, error) {
	d := zmq4.NewDealer(ctx, quiet)
	defer d.Close() //nolint:errcheck // a client loses nothing by closing
	if err := d.Dial(addr); err != nil {
		return nil, fmt.Errorf("capture: replay of %s: %w", addr, err)
	}
	if err := d.SendMulti(zmq4.NewMsgFrom(nil, make([]byte, 8))); err != nil {
		return nil, fmt.Errorf("capture: replay of %s: %w", addr, err)
	}
	var out []string
	for n := 0; ; n++ {
		m, err := d.Recv()
		if err != nil {
			return nil, fmt.Errorf("capture: replay of %s: %w", addr, err)
		}
		last := slices.ContainsFunc(m.Frames, func(f []byte) bool { return bytes.Equal(f, bytes.Repeat([]byte{0xff}, 8)) })
		if n == 0 || last {
			out = append(out, "message "+frameText(m.Frames))
		}
		if n == 0 && !last {
			b := &batch{}
			if err := b.payload(m.Frames[len(m.Frames)-1]); err != nil {
				return nil, err
			}
			for _, e := range b.events {
				out = append(out, "first "+plain(e.members[0].value))
			}
		}
		if last {
			break
		}
	}
	return append(out, fmt.Sprintf("hashes below zero %t, from 2^63 on %t", l.odd.negative, l.odd.large)), nil
}

// frameText describes the frames of a message: 8 bytes as a number, others by their kind.
func frameText(frames [][]byte) string {
	parts := make([]string, len(frames))
	for i, f := range frames {
		switch len(f) {
		case 0:
			parts[i] = "empty"
		case 8:
			parts[i] = fmt.Sprintf("%x", f)
		default:
			parts[i] = "payload"
		}
	}
	return strings.Join(parts, " ")
}
