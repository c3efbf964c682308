//go:build kube

package kubetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/stack"
)

// Who may ask, by static tokens. The clients of a test are the service
// account that the plugin would have.
const (
	namespace   = "infra"
	clientUser  = "system:serviceaccount:" + namespace + ":baton"
	clientToken = "client"
	adminToken  = "admin"
)

// control is an etcd with two apiservers.
type control struct {
	dir         string
	kube        string // the program
	etcd        *stack.Etcd
	front, back *apiserver
	admin       dynamic.Interface // through back
}

// startControl starts all, and returns once both apiservers are ready.
func startControl(ctx context.Context) (_ *control, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	c := &control{}
	c.kube, err = kubeparts.Kube()
	if err != nil {
		return nil, err
	}
	c.dir, err = os.MkdirTemp("", "kubetest")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.files(); err != nil {
		return nil, err
	}
	if err := stack.Build(c.dir, "", false, "./test/cmd/devetcd"); err != nil {
		return nil, err
	}
	c.etcd, err = stack.StartEtcd(context.Background(), stack.EtcdOptions{BinDir: c.dir, Dir: filepath.Join(c.dir, "etcd")})
	if err != nil {
		return nil, err
	}
	ports, err := stack.FreePorts(context.Background(), 2)
	if err != nil {
		return nil, err
	}
	c.front, c.back = &apiserver{control: c, name: "front", port: ports[0]}, &apiserver{control: c, name: "back", port: ports[1]}
	var g errgroup.Group
	g.Go(func() error { return c.front.start(ctx) })
	g.Go(func() error { return c.back.start(ctx) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	c.admin, err = dynamic.NewForConfig(&rest.Config{
		Host: c.back.url(), BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
	})
	return c, err
}

// close ends all, and removes what they have written.
func (c *control) close() {
	for _, a := range []*apiserver{c.front, c.back} {
		if a != nil && a.process != nil {
			_ = a.process.Kill()
		}
	}
	if c.etcd != nil {
		_ = c.etcd.Kill()
	}
	_ = os.RemoveAll(c.dir)
}

// files writes what apiservers are started with.
func (c *control) files() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key) // in PKCS#8 the apiserver finds no public key
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"account.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		"tokens.csv":  fmt.Appendf(nil, "%s,admin,admin,\"system:masters\"\n%s,%s,client\n", adminToken, clientToken, clientUser),
		"audit.yaml": []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted, ResponseComplete, Panic]
rules: [{level: Metadata}]
`),
	} {
		if err := os.WriteFile(filepath.Join(c.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// apiserver is one kube-apiserver. The process is replaced when it is started again.
type apiserver struct {
	*control
	name    string
	port    int
	process *stack.Process
	told    int64 // bytes of the audit log that Requests has read
}

func (a *apiserver) url() string   { return fmt.Sprintf("https://127.0.0.1:%d", a.port) }
func (a *apiserver) audit() string { return filepath.Join(a.dir, a.name+".audit") }
func (a *apiserver) alive() bool   { return a.process != nil && a.process.Alive() }

func (a *apiserver) last() string {
	text := a.process.Log()
	return text[max(0, len(text)-2000):]
}

// start starts the process, and returns once it is ready.
func (a *apiserver) start(ctx context.Context) (err error) {
	file := func(name string) string { return filepath.Join(a.dir, name) }
	a.process, err = stack.StartProgram(context.Background(), stack.ProgramOptions{
		Name: "kube-apiserver " + a.name, Path: a.kube, Dir: a.dir,
		Args: []string{
			"kube-apiserver",
			"--etcd-servers=" + a.etcd.Endpoints[0],
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", a.port),
			"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/24",
			"--cert-dir=" + file(a.name+".certs"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + file("account.key"), "--service-account-signing-key-file=" + file("account.key"),
			"--token-auth-file=" + file("tokens.csv"), "--authorization-mode=RBAC",
			"--disable-admission-plugins=ServiceAccount", // no controller makes the namespaces' accounts
			"--audit-policy-file=" + file("audit.yaml"), "--audit-log-path=" + a.audit(), "--audit-log-mode=blocking-strict",
		},
	})
	if err != nil {
		return err
	}
	err = stack.Await(ctx, a.name+" apiserver to be ready", func() bool {
		code, _ := a.ask(ctx, http.MethodGet, "/readyz", adminToken, nil)
		return code == http.StatusOK || !a.alive()
	})
	if err == nil && !a.alive() {
		err = errors.New("it has ended")
	}
	if err != nil {
		return fmt.Errorf("kubetest: %w\n%s", err, a.last())
	}
	return nil
}

// web is a client of the apiserver's pages.
func (*apiserver) web() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its certificate is its own, on loopback
	}}
}

// ask asks the apiserver; the code is 0 if it does not answer.
func (a *apiserver) ask(ctx context.Context, method, path, token string, body []byte) (code int, answer []byte) {
	req, err := http.NewRequestWithContext(ctx, method, a.url()+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.web().Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}
