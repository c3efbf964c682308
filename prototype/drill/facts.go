package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/internal/stack"
)

// facts shows what Envoy without a module does when the upstream of an answer that has begun is
// reset: a worker sends its head and two events and closes the connection in mid-answer.
func facts(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "goeson")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	worker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var requests atomic.Int64
	go dying(worker, &requests)
	processor, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w := &watcher{}
	g := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(w.process))
	go func() { _ = g.Serve(processor) }()
	defer g.Stop()
	for _, f := range ways {
		requests.Store(0)
		w.reset(f)
		if err := f.try(ctx, dir, worker, processor, &requests, w); err != nil {
			return err
		}
	}
	return nil
}

// way is one in which somebody might learn of the reset, and do something about it.
type way struct{ name, inner, outer string }

var ways = []way{
	{"retry below an internal listener", "", ""},
	{"a response filter below it that reads the body (Lua)", lua, ""},
	{"the same above it", "", lua},
	{"ext_proc below it, body STREAMED", processorFilter("STREAMED", ""), ""},
	{"ext_proc below it, body FULL_DUPLEX_STREAMED", processorFilter("FULL_DUPLEX_STREAMED", ""), ""},
	{"ext_proc above it, body FULL_DUPLEX_STREAMED", "", processorFilter("FULL_DUPLEX_STREAMED", "")},
	{"ext_proc below it keeps the head back", processorFilter("NONE", ""), ""},
	{"ext_proc above it, observing", "", processorFilter("STREAMED", "observability_mode: true")},
}

func (f way) try(ctx context.Context, dir string, worker, processor net.Listener, requests *atomic.Int64, w *watcher) error {
	ports, err := stack.FreePorts(ctx, 2)
	if err != nil {
		return err
	}
	path, err := stack.FindEnvoy(*envoyPath)
	if err != nil {
		return err
	}
	e, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: path, Dir: dir, LogLevel: "warning",
		Config: []byte(factsConfig(ports, worker.Addr().(*net.TCPAddr).Port, processor.Addr().(*net.TCPAddr).Port, f.inner, f.outer))})
	if err != nil {
		return err
	}
	resp, err := http.Get(e.URL)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(resp.Body)
	time.Sleep(200 * time.Millisecond)
	fmt.Printf("%s: status %d, client has %d events, then %v; worker asked %d times; processor: %s; Lua's loop ended: %t\n", f.name,
		resp.StatusCode, strings.Count(string(b), "data:"), err, requests.Load(), w.seen(), strings.Contains(e.Log(), "the loop ended"))
	_ = resp.Body.Close()
	return e.Kill()
}

func dying(l net.Listener, n *atomic.Int64) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		n.Add(1)
		go func() {
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
			for range 2 {
				_, _ = io.WriteString(c, "9\r\ndata: x\n\n\r\n")
				time.Sleep(50 * time.Millisecond)
			}
		}()
	}
}

const lua = `          - name: envoy.filters.http.lua
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
              default_source_code:
                inline_string: |
                  function envoy_on_response(h)
                    for chunk in h:bodyChunks() do h:logWarn("a chunk of " .. chunk:length()) end
                    h:logWarn("the loop ended")
                  end
`

func processorFilter(mode, more string) string {
	trailers := "SKIP"
	if mode == "FULL_DUPLEX_STREAMED" {
		trailers = "SEND"
	}
	return fmt.Sprintf(`          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: processor}}
              message_timeout: 5s
              %s
              processing_mode: {request_header_mode: SKIP, response_header_mode: SEND, response_body_mode: %s, response_trailer_mode: %s}
`, more, mode, trailers)
}

func factsConfig(ports []int, worker, processor int, inner, outer string) string {
	hcm := func(prefix, cluster, filters string) string {
		return fmt.Sprintf(`    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: %s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: "/"}
                route:
                  cluster: %s
                  timeout: 0s
                  retry_policy: {retry_on: "5xx,reset,connect-failure,refused-stream,retriable-4xx,http3-post-connect-failure", num_retries: 3}
          http_filters:
%s          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`, prefix, cluster, filters)
	}
	static := func(name, address, more string) string {
		return fmt.Sprintf(`  - name: %s
    type: STATIC
    load_assignment:
      cluster_name: %s
      endpoints: [{lb_endpoints: [{endpoint: {address: %s}}]}]
%s`, name, name, address, more)
	}
	return fmt.Sprintf(`admin: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}
bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: {"@type": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener}
static_resources:
  listeners:
  - name: client
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
`, ports[0], ports[1]) + hcm("client", "inner", outer) + `  - name: inner
    internal_listener: {}
` + hcm("inner", "worker", inner) + "  clusters:\n" +
		static("inner", "{envoy_internal_address: {server_listener_name: inner}}", "") +
		static("worker", fmt.Sprintf("{socket_address: {address: 127.0.0.1, port_value: %d}}", worker), "") +
		static("processor", fmt.Sprintf("{socket_address: {address: 127.0.0.1, port_value: %d}}", processor), `    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`)
}
