package main

import (
	"bufio"
	"bytes"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/test/bench/wire"
)

// ask sends one request to serve and returns the status of the answer.
func ask(t *testing.T, serve func(*conn) error, id string) <-chan int {
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		k := &conn{Conn: there, br: bufio.NewReader(there), came: make(chan struct{}, 1)}
		_ = serve(k)
	}()
	status := make(chan int, 1)
	go func() {
		defer here.Close()
		_, err := here.Write([]byte("POST / HTTP/1.1\r\nx-request-id: " + id + "\r\ncontent-length: 2\r\n\r\n{}"))
		var h wire.Head
		br := bufio.NewReader(here)
		if err == nil {
			err = h.ReadHead(br)
		}
		n := 0
		if err == nil {
			n, err = h.DiscardBody(br)
		}
		if err != nil || n == 0 {
			t.Errorf("answer of %d bytes: %v", n, err)
		}
		status <- h.Status
	}()
	return status
}

func TestADecodeAnswerWaitsForItsPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(0)
		first, second := ask(t, p.decode, "1"), ask(t, p.decode, "2")
		synctest.Wait()
		require.Empty(t, first)
		require.Equal(t, 200, <-ask(t, p.prefill, "2"))
		require.Equal(t, 200, <-second)
		require.Empty(t, first)
		require.Equal(t, 200, <-ask(t, p.prefill, "1"))
		require.Equal(t, 200, <-first)
		require.Empty(t, p.waiting)
		require.Empty(t, p.early)
	})
}

func TestAPrefillMayComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(0)
		require.Equal(t, 200, <-ask(t, p.prefill, "1"))
		require.Equal(t, 200, <-ask(t, p.decode, "1"))
		require.Empty(t, p.early)
	})
}

func TestADecodeWithoutPrefillIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(0)
		start := time.Now()
		require.Equal(t, 500, <-ask(t, p.decode, "1"))
		require.Equal(t, timeout, time.Since(start))
		require.Empty(t, p.waiting)
	})
}

func TestTheAnswerSaysThatPrefillWentWell(t *testing.T) {
	require.True(t, bytes.Contains(newPair(0).ok, []byte(`"finish_reason":"length"`)))
}

func TestTheHandOffIsOneThatThePluginTakes(t *testing.T) {
	p := newPair(0)
	_, body, _ := bytes.Cut(p.handed, []byte("\r\n\r\n"))
	got, err := handoff.ReadAnswer(vllm.HandOff, body, false)
	require.NoError(t, err)
	require.Equal(t, handoff.HandOff, got.Verdict)
	require.JSONEq(t, wire.HandOff, string(got.HandOff.Of(body)))

	_, body, _ = bytes.Cut(p.ok, []byte("\r\n\r\n"))
	got, err = handoff.ReadAnswer(vllm.HandOff, body, false)
	require.NoError(t, err)
	require.Equal(t, handoff.Missing, got.Verdict)
}

func TestAPrefillThatHandsOverIsMetToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(0)
		require.Equal(t, 200, <-ask(t, p.handOver, "1"))
		require.Equal(t, 200, <-ask(t, p.decode, "1"))
		require.Empty(t, p.early)
	})
}
