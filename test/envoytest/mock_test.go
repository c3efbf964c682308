//go:build e2e && long

package envoytest

import (
	"encoding/json"

	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A mock is a worker that shares no code with the simulators: what those get wrong
// about engines in the same way as the plugin, it does not. It knows one model, no
// tokens and no cache. A decode answers once a prefill of the same room is done.

// mockFault is what a mock does wrong; the zero value is nothing.
type mockFault struct {
	mode   string // error, empty, truncate, hang, slow; gone: the port is closed; stopped: not even /health answers
	when   string // before, begun (the head and a role are sent), mid
	status int
}

type mock struct {
	info  *worker.Worker
	rooms *mockRooms

	mu       sync.Mutex
	fault    mockFault
	listener net.Listener
	server   *http.Server
}

// mockRooms is where prefill and decode meet: the engines' side channel.
type mockRooms struct {
	mu   sync.Mutex
	done map[uint64]chan struct{}
}

func (r *mockRooms) room(n uint64) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.done[n]
	if c == nil {
		c = make(chan struct{})
		r.done[n] = c
	}
	return c
}

func newMock(t *testing.T, id int, role worker.Role, rooms *mockRooms) *mock {
	t.Helper()
	m := &mock{rooms: rooms, listener: listen(t)}
	at := netip.MustParseAddrPort(m.listener.Addr().String())
	endpoint, err := worker.ParseEndpoint(at.String())
	require.NoError(t, err)
	m.info = &worker.Worker{ID: worker.ID(id), Role: role, Engine: worker.SGLang, Models: []string{"m"}, Endpoint: endpoint, DPSize: 1, BlockSize: 16}
	if role == worker.Prefill {
		m.info.Bootstrap = worker.Bootstrap{Host: "127.0.0.1", Port: at.Port()}
	}
	m.server = &http.Server{Handler: m}
	go func() { _ = m.server.Serve(m.listener) }()
	t.Cleanup(func() { _ = m.server.Close() })
	return m
}

func (m *mock) sicken(f mockFault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault = f; f.mode == "gone" {
		_ = m.server.Close()
	}
}

func (m *mock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault.mode == "stopped" {
		<-r.Context().Done()
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Path == "/health" {
		return
	}
	if r.URL.Path != "/v1/completions" && r.URL.Path != "/v1/chat/completions" {
		http.NotFound(w, r)
		return
	}
	m.answer(w, r, body, fault)
}

// answer serves one request, or does what the fault says at its moment.
func (m *mock) answer(w http.ResponseWriter, r *http.Request, body []byte, fault mockFault) {
	var q struct {
		Stream    bool
		Prompt    string
		MaxTokens int             `json:"max_tokens"`
		Messages  json.RawMessage `json:"messages"`
		Room      *uint64         `json:"bootstrap_room"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		m.refuse(w, 400)
		return
	}
	out := http.NewResponseController(w)
	strike := func(moment string) bool {
		if fault.when != moment {
			return false
		}
		switch fault.mode {
		case "error":
			if moment == "before" || !q.Stream {
				m.refuse(w, fault.status)
			} else {
				fmt.Fprintf(w, "data: {\"error\":{\"message\":\"mock\",\"code\":%d}}\n\n", fault.status)
			}
		case "empty":
			w.WriteHeader(200)
		case "truncate":
			_ = out.Flush()
			panic(http.ErrAbortHandler)
		case "hang":
			<-r.Context().Done()
		case "slow":
			return r.Context().Err() != nil || !sleepFor(r, 300*time.Millisecond)
		default:
			return false
		}
		return true
	}
	switch {
	case strike("before"):
		return
	case strings.Contains(string(body), "over the context"):
		m.refuse(w, 400)
		return
	case strings.Contains(string(body), "poison"):
		m.refuse(w, 500)
		return
	}
	chunk, whole := `{"text":%q,"finish_reason":null}`, `{"text":%q,"finish_reason":"length"}`
	if strings.HasSuffix(r.URL.Path, "/chat/completions") {
		chunk, whole = `{"delta":{"content":%q},"finish_reason":null}`, `{"message":{"role":"assistant","content":%q},"finish_reason":"length"}`
	}
	if q.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}]}\n\n")
		_ = out.Flush()
	}
	if strike("begun") || !m.meet(r, q.Room) {
		return
	}
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		text := []byte(fmt.Sprintf(`{"choices":[`+whole+`],"usage":{"prompt_tokens":5,"completion_tokens":4}}`, mockText))
		if fault.when == "mid" && fault.mode != "" {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			w.Write(text[:len(text)/2])
			strike("mid")
			return
		}
		w.Write(text)
		return
	}
	for i := range 4 {
		if i == 2 && strike("mid") {
			return
		}
		fmt.Fprintf(w, "data: {\"choices\":["+chunk+"]}\n\n", mockText[i:i+1])
		_ = out.Flush()
	}
	io.WriteString(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
}

// mockText is what every good answer says.
const mockText = "mock"

func (m *mock) refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"object":"error","message":"mock","code":%d}`, status)
}

// meet waits for the other half.
func (m *mock) meet(r *http.Request, room *uint64) bool {
	if room == nil {
		return true
	}
	c := m.rooms.room(*room)
	if m.info.Role == worker.Prefill {
		close(c)
		return true
	}
	select {
	case <-c:
		return true
	case <-r.Context().Done():
		return false
	}
}

func sleepFor(r *http.Request, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.Context().Done():
		return false
	}
}

// newMockFleet makes a fleet of mocks.
func newMockFleet(t *testing.T, l layout, prefill, decode, aggregated int) (*fleet, []*mock) {
	t.Helper()
	rooms := &mockRooms{done: map[uint64]chan struct{}{}}
	var all []*mock
	for _, x := range []struct {
		n, id int
		role  worker.Role
	}{{prefill, 100, worker.Prefill}, {decode, 200, worker.Decode}, {aggregated, 300, worker.Aggregated}} {
		for i := range x.n {
			all = append(all, newMock(t, x.id+i, x.role, rooms))
		}
	}
	var infos []*worker.Worker
	for _, m := range all {
		infos = append(infos, m.info)
	}
	l.describe = func(f *fleet) {
		require.NoError(t, file.Write(filepath.Join(f.dir, "mocks.yaml"), infos))
	}
	l.workers = "mocks.yaml"
	f := newFleet(t, l)
	f.await("the mocks to be found", func() bool {
		return f.metric("baton_workers") == float64(len(all))
	})
	return f, all
}
