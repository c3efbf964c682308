package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/test/bench/wire"
)

// digits is the width of the numbers that make a request its own.
const digits = 8

// request is one client's request, as bytes. Its conversation is the client's
// own, so all but the last block of a prompt repeats; the turn, at its end, is
// never the same.
type request struct {
	raw   []byte
	turns []int // offsets of the digits
}

// What a request asks for, after the prompt.
const (
	wanted   = `"temperature":0.7,"max_tokens":64,"stream":false`
	streamed = `"temperature":0.7,"max_tokens":64,"stream":true`
	oneHeld  = `"temperature":0.7,"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	pulling = wanted + `,"kv_transfer_params":` + wire.HandOff
)

// newRequest returns the request of that client. With what it asks for replaced
// by wanted, its body is size bytes (at least 300).
func newRequest(client, size int, asks string) *request {
	head := fmt.Sprintf(`{"model":%q,"messages":[{"role":"system","content":"Conversation %0*d.`, modelName, digits, client)
	middle := `"},{"role":"user","content":"Turn `
	tail := `"}],` + asks + "}"
	fill := max(0, size-len(head)-len(middle)-digits-len(tail)+len(asks)-len(wanted))
	body := append([]byte(head), words(fill)...)
	body = append(body, middle...)
	turn := len(body)
	body = fmt.Appendf(body, "%0*d%s", digits, 0, tail)
	top := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", len(body))
	return &request{raw: append(top, body...), turns: []int{len(top) + turn}}
}

// named gives the request an id of its own, which Envoy would give it: workers
// know by it which prefill and which decode belong together.
func (r *request) named(client int) *request {
	line, rest, _ := bytes.Cut(r.raw, []byte("\r\n"))
	top := fmt.Appendf(nil, "%s\r\nx-request-id: direct-%0*d-", line, digits, client)
	turn := len(top)
	top = fmt.Appendf(top, "%0*d\r\n", digits, 0)
	grown := len(top) - len(line) - len("\r\n")
	for i := range r.turns {
		r.turns[i] += grown
	}
	r.raw, r.turns = append(top, rest...), append(r.turns, turn)
	return r
}

// words returns n bytes of text as JSON has it, escapes included, always the
// same.
func words(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]byte, 0, n)
	for len(out) < n {
		switch r.IntN(40) {
		case 0:
			out = append(out, `\n`...)
		case 1:
			out = append(out, `\"so\"`...)
		}
		out = append(out, ' ')
		for range 2 + r.IntN(8) {
			out = append(out, byte('a'+r.IntN(26)))
		}
	}
	out = out[:n]
	for i := max(0, n-8); i < n; i++ {
		out[i] = '.' // no escape is cut in two
	}
	return out
}

// bytes returns the request of that turn. It is good until the next call.
func (r *request) bytes(turn int) []byte {
	for _, start := range r.turns {
		at := r.raw[start : start+digits]
		for i, n := digits-1, turn; i >= 0; i, n = i-1, n/10 {
			at[i] = byte('0' + n%10)
		}
	}
	return r.raw
}

// client is one closed loop: of one call, or of calls one after the other, as
// someone makes them who asks both workers himself. Owned by one goroutine at a
// time.
type client struct {
	calls []*call
	turn  int
}

// call is one request and its answer on a keep-alive connection.
type call struct {
	addr string
	req  *request
	head wire.Head
	conn net.Conn // nil: none yet, or broken
	br   *bufio.Reader
}

// once makes all calls of one turn.
func (c *client) once(ctx context.Context) error {
	c.turn++
	for _, k := range c.calls {
		if err := k.once(ctx, c.turn); err != nil {
			return err
		}
	}
	return nil
}

// once sends one request and reads its answer.
func (c *call) once(ctx context.Context, turn int) error {
	if c.conn == nil {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", c.addr)
		if err != nil {
			return err
		}
		c.conn, c.br = conn, bufio.NewReaderSize(conn, 8<<10)
	}
	err := c.exchange(turn)
	if err != nil {
		c.close()
	}
	return err
}

func (c *call) exchange(turn int) error {
	if err := c.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.req.bytes(turn)); err != nil {
		return err
	}
	if err := c.head.ReadHead(c.br); err != nil {
		return err
	}
	if _, err := c.head.DiscardBody(c.br); err != nil {
		return err
	}
	if c.head.Status != 200 {
		return errStatus(c.head.Status)
	}
	return nil
}

func (c *call) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

type errStatus int

func (e errStatus) Error() string { return "status " + strconv.Itoa(int(e)) + ", expected 200" }

// crowd is the clients of one case.
type crowd []*client

func newCrowd(addr string, clients, size int, asks string) crowd {
	out := make(crowd, clients)
	for i := range out {
		out[i] = &client{calls: []*call{{addr: addr, req: newRequest(i, size, asks)}}}
	}
	return out
}

// newDirectCrowd returns clients that ask prefill and then decode, with no
// Envoy between. Both requests are made ahead, the hand-off in its place, so
// that what they cost is the calls alone.
func newDirectCrowd(prefill, decode string, clients, size int) crowd {
	out := make(crowd, clients)
	for i := range out {
		out[i] = &client{calls: []*call{
			{addr: prefill, req: newRequest(i, size, oneHeld).named(i)}, {addr: decode, req: newRequest(i, size, pulling).named(i)},
		}}
	}
	return out
}

func (w crowd) close() {
	for _, c := range w {
		for _, k := range c.calls {
			k.close()
		}
	}
}

// tally is what a crowd has seen in one slice.
type tally struct {
	latencies []time.Duration // of answered requests
	failed    int
	first     error // the first failure
	took      time.Duration
}

// run lets every client loop for d, or until the context ends. A request that
// has begun is finished.
func (w crowd) run(ctx context.Context, d time.Duration) tally {
	parts := make([]tally, len(w))
	start := time.Now()
	var wg sync.WaitGroup
	for i, c := range w {
		wg.Go(func() { parts[i] = c.loop(ctx, start.Add(d)) })
	}
	wg.Wait()
	sum := tally{took: time.Since(start)}
	for _, p := range parts {
		sum.latencies = append(sum.latencies, p.latencies...)
		sum.failed += p.failed
		if sum.first == nil {
			sum.first = p.first
		}
	}
	return sum
}

func (c *client) loop(ctx context.Context, until time.Time) tally {
	t := tally{latencies: make([]time.Duration, 0, 4096)}
	for now := time.Now(); now.Before(until) && ctx.Err() == nil && t.failed < 100; {
		err := c.once(ctx)
		end := time.Now()
		if err != nil {
			t.failed++
			if t.first == nil {
				t.first = err
			}
		} else {
			t.latencies = append(t.latencies, end.Sub(now))
		}
		now = end
	}
	return t
}
