package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/test/bench/wire"
)

func TestARequestIsValidJSONOfItsSize(t *testing.T) {
	for _, size := range []int{300, 2_000, 220_000} {
		r := newRequest(3, size, wanted)
		first := string(r.bytes(1))
		second := string(r.bytes(2))
		require.NotEqual(t, first, second, "no two turns are the same")
		require.Len(t, second, len(first))
		head, body, ok := strings.Cut(second, "\r\n\r\n")
		require.True(t, ok)
		require.Len(t, body, size)
		require.Contains(t, head, "content-length: ")
		var doc struct {
			Messages []struct{ Content string }
		}
		require.NoError(t, json.Unmarshal([]byte(body), &doc))
		require.Contains(t, doc.Messages[0].Content, "Conversation 00000003.")
		require.Equal(t, "Turn 00000002", doc.Messages[1].Content)
	}
}

func TestADirectClientAsksPrefillAndThenDecodeByTheSameName(t *testing.T) {
	type asked struct {
		worker, id string
		body       []byte
	}
	var log []asked // one client: one request at a time
	serve := func(name string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			log = append(log, asked{name, r.Header.Get("X-Request-Id"), body})
		}))
		t.Cleanup(srv.Close)
		return srv.Listener.Addr().String()
	}
	v := &variant{name: directServer, addr: serve("decode"), prefill: serve("prefill")}
	w := v.crowd(load{2_000, 1})
	defer w.close()
	require.NoError(t, w[0].once(t.Context()))
	require.NoError(t, w[0].once(t.Context()))

	require.Len(t, log, 4)
	for i, want := range []asked{
		{worker: "prefill", id: "direct-00000000-00000001"}, {worker: "decode", id: "direct-00000000-00000001"},
		{worker: "prefill", id: "direct-00000000-00000002"}, {worker: "decode", id: "direct-00000000-00000002"},
	} {
		require.Equal(t, want.worker, log[i].worker)
		require.Equal(t, want.id, log[i].id)
	}
	client := newRequest(0, 2_000, wanted).bytes(2)
	_, body, _ := bytes.Cut(client, []byte("\r\n\r\n"))
	scan := new(openai.Request)
	require.NoError(t, openai.Scan(openai.ChatCompletions, body, scan))
	require.JSONEq(t, string(handoff.AppendPrefill(nil, body, scan, vllm.HandOff, 0, false)), string(log[2].body))
	answer := []byte(`{"choices":[{"finish_reason":"length"}],"kv_transfer_params":` + wire.HandOff + `}`)
	res, err := handoff.ReadAnswer(vllm.HandOff, answer, false)
	require.NoError(t, err)
	require.JSONEq(t, string(handoff.AppendDecode(nil, body, scan, vllm.HandOff, answer, res)), string(log[3].body))
}

func TestACrowdCountsWhatItIsAnswered(t *testing.T) {
	status := make(chan int, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case s := <-status:
			w.WriteHeader(s)
		default:
			_, _ = w.Write(bytes.Repeat([]byte("x"), 5000)) // chunked
		}
	}))
	defer srv.Close()
	w := newCrowd(srv.Listener.Addr().String(), 3, 400, wanted)
	defer w.close()
	status <- 503
	got := w.run(t.Context(), 50*time.Millisecond)
	require.NotEmpty(t, got.latencies)
	require.Equal(t, 1, got.failed)
	require.EqualError(t, got.first, "status 503, expected 200")

	gone := newCrowd("127.0.0.1:1", 2, 400, wanted)
	got = gone.run(t.Context(), time.Minute)
	require.Empty(t, got.latencies)
	require.Equal(t, 200, got.failed, "a client gives up after 100 failures")
	var op *net.OpError
	require.ErrorAs(t, got.first, &op)
}
