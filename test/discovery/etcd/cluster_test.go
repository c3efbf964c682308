package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// threeMembers returns a running cluster.
func threeMembers(t *testing.T) []*embed.Etcd {
	t.Helper()
	var configs []*embed.Config
	var cluster []string
	for i := range 3 {
		c := quickConfig(t, fmt.Sprintf("m%d", i), t.TempDir())
		c.ElectionMs = 200
		// A free port, which is free until the member uses it.
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		peer := []url.URL{{Scheme: "http", Host: ln.Addr().String()}}
		require.NoError(t, ln.Close())
		c.ListenPeerUrls, c.AdvertisePeerUrls = peer, peer
		cluster = append(cluster, c.Name+"=http://"+peer[0].Host)
		configs = append(configs, c)
	}
	members := make([]*embed.Etcd, len(configs))
	for i, c := range configs {
		c.InitialCluster = strings.Join(cluster, ",")
		members[i] = startMember(t, c)
	}
	for _, m := range members {
		<-m.Server.ReadyNotify()
	}
	return members
}

func TestAMovedLeaderLosesNoWorker(t *testing.T) {
	t.Parallel()
	members := threeMembers(t)
	var gates []*gate
	var ends []string
	for _, m := range members {
		g := newGate(t)
		g.open(m.Clients[0].Addr().String())
		gates = append(gates, g)
		ends = append(ends, g.addr())
	}
	t.Cleanup(func() {
		for i, m := range members {
			gates[i].shut()
			if m != nil {
				m.Close()
			}
		}
	})
	dial := func() *clientv3.Client {
		c, err := etcd.Dial(etcd.ClientConfig{Endpoints: ends})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := dial()
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = 4 * time.Second })
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	w := watchPlain(t, dial())
	w.has("10.0.0.1:30000")
	for range 3 {
		leader, next := -1, -1
		for i, m := range members {
			if m.Server.Leader() == m.Server.MemberID() {
				leader, next = i, (i+1)%len(members)
			}
		}
		require.GreaterOrEqual(t, leader, 0)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := members[leader].Server.MoveLeader(ctx, uint64(members[leader].Server.MemberID()), uint64(members[next].Server.MemberID()))
		cancel()
		require.NoError(t, err)
		eventually(t, func() bool { return members[next].Server.Leader() == members[next].Server.MemberID() }, "the leader has moved")
	}
	rested(t, 4500*time.Millisecond) // longer than the TTL
	put(t, c, 1, "10.0.0.1:8000")
	w.has("10.0.0.1:30000", "10.0.0.1:8000")
	require.NotNil(t, w.Load().Worker(id), "the same id")
	_, left := w.heard()
	require.Empty(t, left)

	// One of three members stops for good; the other two continue.
	gates[0].shut()
	members[0].Close()
	members[0] = nil
	put(t, c, 2, "10.0.0.1:8001")
	w.has("10.0.0.1:30000", "10.0.0.1:8000", "10.0.0.1:8001")
	_, left = w.heard()
	require.Empty(t, left)
}

// TestAMemberThatStandsStillIsPassedOver, whichever of three it is, by each listing and by each
// watch.
func TestAMemberThatStandsStillIsPassedOver(t *testing.T) {
	t.Parallel()
	for deaf := range 3 {
		t.Run(fmt.Sprint(deaf), func(t *testing.T) {
			t.Parallel()
			past, client, asked := oneOfThreeIsDeaf(t, deaf)
			for i := range 4 { // more than there are members
				src, err := etcd.New(client, etcd.Config{Silence: 4500 * time.Millisecond, ListTimeout: 4500 * time.Millisecond})
				require.NoError(t, err)
				heard, end := runs(t, src)
				list, ok := heard().(discovery.List)
				require.True(t, ok)
				require.Len(t, list.Entries, 1+i)
				added := fmt.Sprintf("10.0.0.2:800%d", i)
				put(t, past, worker.ID(2+i), added)
				batch, ok := heard().(discovery.Batch)
				require.True(t, ok)
				require.Equal(t, added, batch.Ops[0].Entry.Worker.Endpoint.String())
				require.NoError(t, end())
			}
			require.Positive(t, asked(), "else it was not passed over")
		})
	}
}

// sink hands on what it is sent.
type sink chan discovery.Event

func (s sink) Send(ev discovery.Event) error {
	if several, ok := ev.(discovery.Batches); ok {
		for _, b := range several {
			s <- b
		}
		return nil
	}
	s <- ev
	return nil
}

// runs runs a source until end, which returns its error. heard returns its next event.
func runs(t *testing.T, src *etcd.Source) (heard func() discovery.Event, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(sink, 1000), make(chan error, 1)
	go func() { done <- src.Run(ctx, events) }()
	heard = func() discovery.Event {
		t.Helper()
		select {
		case ev := <-events:
			return ev
		case <-time.After(patience):
			require.FailNow(t, "no event came")
			return nil
		}
	}
	return heard, func() error { cancel(); return <-done }
}

// oneOfThreeIsDeaf returns a client with three endpoints of an etcd that has one key, another
// past them, and how much was sent to the deaf one. All three were used; one of them does not
// answer any more.
func oneOfThreeIsDeaf(t *testing.T, deaf int) (past, client *clientv3.Client, asked func() int) {
	t.Helper()
	s := newServer(t)
	past = direct(t, s)
	put(t, past, 1, "10.0.0.1:8000")
	var ends []string
	var gates []*gate
	for range 3 {
		g := newGate(t)
		g.open(s.etcd.Clients[0].Addr().String())
		gates, ends = append(gates, g), append(ends, g.addr())
	}
	client, err := etcd.Dial(etcd.ClientConfig{Endpoints: ends})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually(t, func() bool {
		for _, g := range gates {
			g.mu.Lock()
			n := len(g.conns)
			g.mu.Unlock()
			if _, err := client.Get(ctx, "x"); n == 0 || err != nil {
				return false
			}
		}
		return true
	}, "all ways are used")
	gates[deaf].deafen()
	t.Cleanup(gates[deaf].hear)
	return past, client, gates[deaf].held
}

// pki writes the certificates of an authority, a server and a client, and returns their
// files.
func pki(t *testing.T) (ca string, server, client [2]string) {
	t.Helper()
	dir := t.TempDir()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	write := func(name, kind string, der []byte) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return p
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, caKey.Public(), caKey)
	require.NoError(t, err)
	ca = write("ca.pem", "CERTIFICATE", der)
	leaf := func(name string, serial int64) [2]string {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		cert := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"etcd.test"},
			NotBefore: root.NotBefore, NotAfter: root.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, root, key.Public(), caKey)
		require.NoError(t, err)
		pk, err := x509.MarshalECPrivateKey(key)
		require.NoError(t, err)
		return [2]string{write(name+".pem", "CERTIFICATE", der), write(name+".key", "EC PRIVATE KEY", pk)}
	}
	return ca, leaf("server", 2), leaf("client", 3)
}

func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	ca, server, client := pki(t)
	s := newServer(t, func(c *embed.Config) {
		free := []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
		c.ListenClientUrls, c.AdvertiseClientUrls = free, free
		c.ClientTLSInfo = transport.TLSInfo{CertFile: server[0], KeyFile: server[1], TrustedCAFile: ca, ClientCertAuth: true}
	})
	tls := func(c *etcd.ClientConfig) {
		c.Endpoints = []string{"https://" + s.gate.addr()}
		c.CA, c.Cert, c.Key, c.ServerName = ca, client[0], client[1], "etcd.test"
	}
	r := register(t, s.dial(tls))
	r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	w := watchPlain(t, s.dial(tls))
	w.has("10.0.0.1:30000")

	bare := s.dial(tls, func(c *etcd.ClientConfig) { c.Endpoints = []string{s.gate.addr()} })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := bare.Get(ctx, "x")
	require.NoError(t, err, "without a scheme, but with a CA")

	elsewhere, _, _ := pki(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	var said []func()
	for why, wrong := range map[string]func(*etcd.ClientConfig){
		"tls: ":              func(c *etcd.ClientConfig) { c.Cert, c.Key = "", "" },
		"not other.test":     func(c *etcd.ClientConfig) { c.ServerName = "other.test" },
		"unknown authority":  func(c *etcd.ClientConfig) { c.CA = elsewhere },
		"connection refused": func(c *etcd.ClientConfig) { c.Endpoints = []string{"https://" + closed.Addr().String()} },
		"error reading":      func(c *etcd.ClientConfig) { *c = etcd.ClientConfig{Endpoints: []string{"http://" + s.gate.addr()}} },
	} {
		client := s.dial(tls, wrong)
		w := watchPlain(t, client)
		r := register(t, client)
		r.Announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
		said = append(said, func() {
			eventually(t, func() bool {
				causes, _ := w.heard()
				return strings.Contains(strings.Join(causes, "\n"), why) && len(w.Load().Workers()) == 0
			}, "the source says %q", why)
			eventually(t, func() bool {
				_, _, faults := r.heard()
				return len(faults) > 0 && strings.Contains(fmt.Sprint(faults), why)
			}, "the registrar says %q", why)
		})
	}
	for _, f := range said { // each takes seconds until it fails, so they run together
		f()
	}
}

// withUsers turns authentication on, with root and a user that may use the prefix.
func withUsers(t *testing.T, c *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must := func(_ any, err error) {
		t.Helper()
		require.NoError(t, err)
	}
	must(c.UserAdd(ctx, "root", "secret"))
	must(c.UserGrantRole(ctx, "root", "root"))
	must(c.RoleAdd(ctx, "workers"))
	must(c.RoleGrantPermission(ctx, "workers", folder, clientv3.GetPrefixRangeEnd(folder), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(c.RoleAdd(ctx, "readers"))
	must(c.RoleGrantPermission(ctx, "readers", folder, clientv3.GetPrefixRangeEnd(folder), clientv3.PermissionType(clientv3.PermRead)))
	must(c.UserAdd(ctx, "reader", "word"))
	must(c.UserGrantRole(ctx, "reader", "readers"))
	must(c.UserAdd(ctx, "user", "word"))
	must(c.UserGrantRole(ctx, "user", "workers"))
	must(c.AuthEnable(ctx))
}

func TestUsersWithPasswordsOutliveTheirTokens(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *embed.Config) { c.AuthTokenTTL, c.BcryptCost = 1, 4 })
	withUsers(t, s.dial())
	s.stop()
	as := func(c *etcd.ClientConfig) { c.Username, c.Password = "user", "word" }
	reader := func(c *etcd.ClientConfig) { c.Username, c.Password = "reader", "word" } // as a plugin is
	first, second := s.dial(as), s.dial(reader)                                        // made while etcd is away
	s.start()
	r := register(t, first, func(c *etcd.RegistrarConfig) { c.TTL = 4 * time.Second })
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	w := watchPlain(t, second)
	w.has("10.0.0.1:30000")
	rested(t, 4500*time.Millisecond) // the life of four tokens, and longer than the TTL
	require.NotNil(t, w.Load().Worker(id))
	r2 := register(t, first)
	r2.announce(workerAt(t, worker.Decode, "10.0.0.1:8000"), 1)
	w.has("10.0.0.1:30000", "10.0.0.1:8000")
	w.state(discovery.Watching)
	_, losses, _ := r.heard()
	require.Empty(t, losses)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := first.Put(ctx, "elsewhere", "x")
	require.ErrorContains(t, err, "permission denied")
	_, err = s.dial(func(c *etcd.ClientConfig) { c.Username, c.Password = "user", "wrong" }).Get(ctx, folder)
	require.ErrorContains(t, err, "authentication failed")
}
