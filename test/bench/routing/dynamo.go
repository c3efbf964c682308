package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// bridge carries requests to the workers that NVIDIA Dynamo's selection service picks. The service is told of
// each prompt's tokens, of the end of its prefill and of the request's end, as Dynamo's own frontend does.
type bridge struct {
	service string // its URL
	client  *http.Client
	last    atomic.Uint64
}

// call sends a request to the service and reads its answer into to, if that is not nil.
func (b *bridge) call(ctx context.Context, method, path string, body, to any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, b.service+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, answer)
	case to != nil:
		return json.Unmarshal(answer, to)
	}
	return nil
}

// register tells the service of the workers, and waits until it can pick among them.
func (b *bridge) register(ctx context.Context, workers []*stack.Worker, page int) error {
	if err := stack.Await(ctx, "the selection service to serve", func() bool { return b.call(ctx, http.MethodGet, "/health", nil, nil) == nil }); err != nil {
		return err
	}
	for i, w := range workers {
		err := b.call(ctx, http.MethodPost, "/workers", map[string]any{
			"worker_id": i + 1, "model_name": modelName, "endpoint": "http://" + w.Info.Endpoint.String(), "block_size": page, "data_parallel_size": 1,
			"kv_events_endpoints": map[string]string{"0": fmt.Sprintf("tcp://%s:%d", w.Info.KVEvents.Host, w.Info.KVEvents.Port)},
		}, nil)
		if err != nil {
			return err
		}
	}
	return stack.Await(ctx, "all workers to be schedulable", func() bool {
		var list []struct{ Lifecycle string }
		ready := 0
		if b.call(ctx, http.MethodGet, "/workers", nil, &list) == nil {
			for _, w := range list {
				if w.Lifecycle == "schedulable" {
					ready++
				}
			}
		}
		return ready == len(workers)
	})
}

// ServeHTTP implements http.Handler.
func (b *bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var asked struct{ Prompt string }
	if err == nil {
		err = json.Unmarshal(body, &asked)
	}
	id := "r" + strconv.FormatUint(b.last.Add(1), 10)
	var picked struct{ Endpoint string }
	if err == nil {
		err = b.call(r.Context(), http.MethodPost, "/select_and_reserve", map[string]any{"selection_id": id, "model_name": modelName, "token_ids": enginesim.Tokenize(asked.Prompt)}, &picked)
	}
	to, e := url.Parse(picked.Endpoint)
	if err != nil || e != nil {
		http.Error(w, fmt.Sprint(err, e), http.StatusBadGateway)
		return
	}
	ctx := context.WithoutCancel(r.Context())
	defer b.call(ctx, http.MethodDelete, "/reservations/"+id, nil, nil) //nolint:errcheck // the next pick shows it
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	proxy.ModifyResponse = func(*http.Response) error {
		return b.call(ctx, http.MethodPost, "/reservations/"+id+"/prefill_complete", map[string]any{}, nil)
	}
	proxy.ServeHTTP(w, r)
}

// startBridge starts the selection service and the bridge before it.
func (l *lab) startBridge(ctx context.Context, python string, ports []int, page int) (err error) {
	if python == "" {
		return errors.New("expected -python, a Python with the packages of make bench-rivals")
	}
	l.url = urlOf(ports[0])
	l.rival, err = stack.StartProgram(ctx, stack.ProgramOptions{Name: "dynamo", Path: python, Args: []string{"-m", "dynamo.select_service", "--port", strconv.Itoa(ports[1])}})
	if err != nil {
		return err
	}
	b := &bridge{service: "http://127.0.0.1:" + strconv.Itoa(ports[1]), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := b.register(wait, l.prefill, page); err != nil {
		return fmt.Errorf("%w\n%s", err, l.rival.Log())
	}
	at, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])))
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(at) }()
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	return nil
}
