package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/test/bench/wire"
)

// What every request is answered with. The finish reason is that of a prefill
// leg that went well.
const answerMembers = `{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"a"},"finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}`

// A streamed answer: the head and the role come at once, as engines send them, and the
// only token with the end. What a client waits for is its first token.
const (
	streamHead  = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	roleEvent   = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	tokenEvent  = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length"}]}` + "\n\ndata: [DONE]\n\n"
	streamError = `data: ` + lostBody + "\n\n"
)

const lostBody = `{"error":{"message":"the prefill request of this decode request did not come","type":"bench"}}`

func message(status, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", status, len(body), body)
}

func chunk(data string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data) }

// conn is one keep-alive connection. Owned by its goroutine.
type conn struct {
	net.Conn
	br   *bufio.Reader
	head wire.Head
	came chan struct{} // holds one: the other half has come
}

// pair is the workers. Safe for concurrent use.
type pair struct {
	step             time.Duration
	steps            chan due
	ok, handed, lost []byte
	begun            []byte // of a streamed answer
	done, failed     []byte // its rest

	mu      sync.Mutex
	waiting map[string]chan struct{} // guarded by mu: decode requests that wait
	early   map[string]time.Time     // guarded by mu: prefill requests that came first, and when
}

type due struct {
	at   time.Time
	done chan struct{}
}

func newPair(step time.Duration) *pair {
	p := &pair{
		step: step, steps: make(chan due, 1<<16), ok: message("200 OK", answerMembers+"}"), lost: message("500 Lost", lostBody),
		begun: append([]byte(streamHead), chunk(roleEvent)...),
		done:  append(chunk(tokenEvent), "0\r\n\r\n"...), failed: append(chunk(streamError), "0\r\n\r\n"...),
		handed:  message("200 OK", answerMembers+`,"kv_transfer_params":`+wire.HandOff+"}"),
		waiting: make(map[string]chan struct{}), early: make(map[string]time.Time),
	}
	if step > 0 {
		go p.tick()
	}
	return p
}

// tick ends steps. All are of the same length, so they end in the order in
// which they began. A thread of its own sleeps in the kernel: the runtime's
// timers are late by up to a millisecond on an idle process.
func (p *pair) tick() {
	runtime.LockOSThread()
	exactTimers()
	for d := range p.steps {
		if left := time.Until(d.at); left > 0 {
			sleep(left)
		}
		d.done <- struct{}{}
	}
}

func accept(l net.Listener, serve func(*conn) error) {
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "constant: accept:", err)
			return
		}
		go func() {
			defer c.Close()
			k := &conn{Conn: c, br: bufio.NewReaderSize(c, 64<<10), came: make(chan struct{}, 1)}
			for serve(k) == nil {
			}
		}()
	}
}

func (k *conn) read() error {
	if err := k.head.ReadHead(k.br); err != nil {
		return err
	}
	_, err := k.head.DiscardBody(k.br)
	return err
}

func (p *pair) prefill(k *conn) error { return p.prefilled(k, p.ok) }

// handOver is prefill for decode workers that need its answer.
func (p *pair) handOver(k *conn) error { return p.prefilled(k, p.handed) }

func (p *pair) prefilled(k *conn, answer []byte) error {
	if err := k.read(); err != nil {
		return err
	}
	p.meet(k.head.RequestID)
	_, err := k.Write(answer)
	return err
}

// meet tells the decode request of this id, there or to come, that its prefill
// request has come.
func (p *pair) meet(id []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if came, ok := p.waiting[string(id)]; ok {
		delete(p.waiting, string(id))
		came <- struct{}{}
		return
	}
	now := time.Now()
	if len(p.early) > 1<<12 { // halves whose decode was never sent
		for other, at := range p.early {
			if now.Sub(at) > timeout {
				delete(p.early, other)
			}
		}
	}
	p.early[string(id)] = now
}

func (p *pair) decode(k *conn) error {
	if err := k.read(); err != nil {
		return err
	}
	return p.decoded(k, p.ok, p.lost)
}

// stream is decode of a request that asks for a stream.
func (p *pair) stream(k *conn) error {
	if err := k.read(); err != nil {
		return err
	}
	if _, err := k.Write(p.begun); err != nil {
		return err
	}
	return p.decoded(k, p.done, p.failed)
}

// decoded answers once prefill has come.
func (p *pair) decoded(k *conn, answer, lost []byte) error {
	if !p.met(k) {
		answer = lost
	} else if p.step > 0 {
		p.steps <- due{at: time.Now().Add(p.step), done: k.came}
		<-k.came
	}
	_, err := k.Write(answer)
	return err
}

// met waits until the prefill request of k's request has come.
func (p *pair) met(k *conn) bool {
	if len(k.head.RequestID) == 0 {
		return true // not through Envoy: a health probe
	}
	id := string(k.head.RequestID)
	p.mu.Lock()
	if _, ok := p.early[id]; ok {
		delete(p.early, id)
		p.mu.Unlock()
		return true
	}
	p.waiting[id] = k.came
	p.mu.Unlock()
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-k.came:
		return true
	case <-t.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, still := p.waiting[id]; still {
		delete(p.waiting, id)
		return false
	}
	<-k.came // it came just now
	return true
}
