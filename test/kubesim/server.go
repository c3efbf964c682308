package kubesim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Resource names a resource that the server has.
type Resource struct {
	Group   string // "" for the core group
	Version string
	Plural  string
	Kind    string
}

// The resources that every Server has.
var (
	pods = Resource{"", "v1", "pods", "Pod"}
	all  = []Resource{pods}
)

// Pools is the resource of inference pools.
func Pools() Resource {
	return Resource{"inference.networking.k8s.io", "v1", "inferencepools", "InferencePool"}
}

// Pods is the resource of pods.
func Pods() Resource { return pods }

// Config configures a [Server].
type Config struct {
	// Resources besides pods.
	Resources []Resource
	// NoWatchList refuses sendInitialEvents, as apiservers before 1.32 do.
	NoWatchList bool
	// Bookmarks is how often a watch gets a bookmark. Default 1 minute.
	Bookmarks time.Duration
	// Token that each request must carry. Default: none is checked.
	Token func() string
}

// Request is one request that the server has received.
type Request struct {
	Verb, Resource, Namespace                     string
	ResourceVersion, LabelSelector, ContinueToken string
	Limit                                         string
	Initial                                       bool // sendInitialEvents
	Token                                         string
}

// certificate makes a certificate that nobody knows.
func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, &t, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Server is the apiserver. Its methods are safe for concurrent use.
type Server struct {
	cfg       Config
	resources []Resource

	// Guarded by mu.
	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at each write
	version   uint64
	oldest    uint64 // versions before it are compacted
	objects   map[key]*stored
	history   []change
	pages     map[string]page
	refused   map[string]bool // "verb plural"
	requests  []Request
	http      *http.Server
	address   string
	hanging   chan struct{} // not nil: nothing is answered until it is closed
	ended     chan struct{}
	watchStop chan struct{} // closed to end all watches
}

type key struct{ plural, namespace, name string }

type stored struct {
	object  map[string]any
	version uint64
}

type change struct {
	key     key
	version uint64
	before  map[string]any // nil: made
	after   map[string]any // nil: deleted
}

type page struct {
	version uint64
	rest    []map[string]any
}

// New returns a server that is not started.
func New(cfg Config) *Server {
	if cfg.Bookmarks == 0 {
		cfg.Bookmarks = time.Minute
	}
	return &Server{
		cfg: cfg, resources: append(slices.Clone(all), cfg.Resources...), version: 1, oldest: 1,
		changed: make(chan struct{}), watchStop: make(chan struct{}), objects: map[key]*stored{}, pages: map[string]page{}, refused: map[string]bool{},
	}
}

// Start listens, at the address of the last Start if there was one.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	cert, err := certificate()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	s.address = l.Addr().String()
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}
	s.ended = make(chan struct{})
	go func(h *http.Server, ended chan struct{}) {
		defer close(ended)
		_ = h.ServeTLS(l, "", "")
	}(s.http, s.ended)
	return nil
}

// Stop cuts every connection and answers no more, as a process that is killed.
func (s *Server) Stop() {
	s.mu.Lock()
	h, ended := s.http, s.ended
	s.http = nil
	s.endWatchesLocked()
	s.mu.Unlock()
	if h != nil {
		_ = h.Close()
		<-ended
	}
}

// URL is where the server is reached.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "https://" + s.address
}

// Kubeconfig is a file by which clients reach an apiserver whose certificate nobody has
// signed. credential is a key of a user with its value, such as `token: "x"`; "" is none.
func Kubeconfig(url, credential string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, url, credential)
}

// Hang makes the server answer nothing until the function that it returns is called.
func (s *Server) Hang() (goOn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.hanging = c
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hanging = nil
		close(c)
	})
}

// Refuse makes the server refuse a verb (list, watch) of a resource with 403; Allow takes
// it back.
func (s *Server) Refuse(verb, plural string) { s.refuse(verb, plural, true) }

// Allow takes a Refuse back.
func (s *Server) Allow(verb, plural string) { s.refuse(verb, plural, false) }

func (s *Server) refuse(verb, plural string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[verb+" "+plural] = on
}

// Put makes or changes an object. Its namespace and name are those of its metadata.
func (s *Server) Put(r Resource, object map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := keyOf(r, object)
	s.version++
	object = clone(object)
	object["apiVersion"], object["kind"] = r.APIVersion(), r.Kind
	metadata(object)["resourceVersion"] = strconv.FormatUint(s.version, 10)
	var before map[string]any
	if was := s.objects[k]; was != nil {
		before = was.object
	}
	s.objects[k] = &stored{object, s.version}
	s.tellLocked(change{k, s.version, before, object})
}

// Delete removes an object. final is its last state; nil: as it is.
func (s *Server) Delete(r Resource, namespace, name string, final map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{r.Plural, namespace, name}
	was := s.objects[k]
	if was == nil {
		return
	}
	s.version++
	last := was.object
	if final != nil {
		last = clone(final)
		last["apiVersion"], last["kind"] = r.APIVersion(), r.Kind
	}
	delete(s.objects, k)
	s.tellLocked(change{k, s.version, last, nil})
}

func (s *Server) tellLocked(c change) {
	s.history = append(s.history, c)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Compact forgets all versions before the present one, and ends all watches, so that they
// have to say from where they go on.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
	s.history = nil
	s.endWatchesLocked()
}

// EndWatches ends all watches, as their time limits do.
func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWatchesLocked()
}

func (s *Server) endWatchesLocked() {
	close(s.watchStop)
	s.watchStop = make(chan struct{})
}

// Requests returns the requests that were received, and forgets them.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.requests
	s.requests = nil
	return out
}

// wait waits while the server hangs.
func (s *Server) wait(ctx context.Context) error {
	s.mu.Lock()
	c := s.hanging
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return errors.New("the client has left")
	}
}

// APIVersion is the resource's group and version, as an object has them.
func (r Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

func metadata(object map[string]any) map[string]any {
	m, _ := object["metadata"].(map[string]any)
	return m
}

func keyOf(r Resource, object map[string]any) key {
	m := metadata(object)
	namespace, _ := m["namespace"].(string)
	name, _ := m["name"].(string)
	return key{r.Plural, namespace, name}
}

// clone copies an object as far as the server writes to it.
func clone(object map[string]any) map[string]any {
	out := maps.Clone(object)
	m := maps.Clone(metadata(object))
	if m == nil {
		m = map[string]any{}
	}
	out["metadata"] = m
	return out
}
