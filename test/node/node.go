//go:build kube

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/stack"
)

// Address is the node's. Pods have addresses of 10.88.0.0/24, Services of 10.96.0.0/16.
const Address = "10.77.0.2"

const name = "n1"

var services = schema.GroupVersionResource{Version: "v1", Resource: "services"}

// Node is the cluster. Methods that start or stop a program of it may not be used at the same
// time as others.
type Node struct {
	dir       string // of all files
	kube      string // Kubernetes' programs
	tools     string // the folder of those that run containers
	processes []*stack.Process
	client    dynamic.Interface // an administrator's
	store     string            // etcd's endpoint
	api       *stack.Process    // the apiserver
	end       context.CancelFunc
}

// Start starts a cluster, and returns once its node is ready. say gets a line for each step.
func Start(ctx context.Context, say func(string)) (_ *Node, err error) {
	kube, err := kubeparts.Kube()
	if err != nil {
		return nil, err
	}
	tools, err := kubeparts.Node()
	if err != nil {
		return nil, err
	}
	background, end := context.WithCancel(context.Background())
	n := &Node{dir: Folder(), kube: kube, tools: tools, end: end}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if err := n.files(); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the control plane", n.startControl},
		{"containerd", n.startContainerd},
		{"the kubelet", n.startKubelet},
	} {
		say("starting " + step.what)
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("node: %s: %w", step.what, err)
		}
	}
	if err := n.answerNames(background); err != nil {
		return nil, fmt.Errorf("node: names of Services: %w", err)
	}
	go n.balance(background)
	return n, nil
}

// Close ends the cluster's programs. Pods end with the program, at the latest.
func (n *Node) Close() {
	n.end()
	for i := len(n.processes) - 1; i >= 0; i-- {
		_ = n.processes[i].Kill()
	}
}

// Logs returns the last lines of each of the cluster's programs.
func (n *Node) Logs() string {
	var out strings.Builder
	for _, p := range n.processes {
		text := p.Log()
		fmt.Fprintf(&out, "--- %s (running: %t)\n%s\n", p.Name, p.Alive(), text[max(0, len(text)-3000):])
	}
	return out.String()
}

func (n *Node) file(name string) string { return filepath.Join(n.dir, name) }

// run starts a program of the node.
func (n *Node) run(name, path string, env []string, args ...string) (*stack.Process, error) {
	p, err := stack.StartProgram(context.Background(), stack.ProgramOptions{
		Name: name, Path: path, Args: args, Dir: n.dir,
		Env: append([]string{"PATH=" + filepath.Join(n.tools, "bin") + ":" + os.Getenv("PATH"), "HOME=" + n.dir}, env...),
	})
	if err == nil {
		n.processes = append(n.processes, p)
	}
	return p, err
}

// await waits until is says yes, or the program has ended.
func await(ctx context.Context, p *stack.Process, is func() bool) error {
	err := stack.Await(ctx, p.Name+" to be ready", func() bool { return !p.Alive() || is() })
	if err == nil && !p.Alive() {
		err = errors.New("it has ended")
	}
	if err != nil {
		text := p.Log()
		return fmt.Errorf("%s: %w\n%s", p.Name, err, text[max(0, len(text)-3000):])
	}
	return nil
}

func (n *Node) startControl(ctx context.Context) error {
	if err := stack.Build(n.dir, "", false, "./test/cmd/devetcd"); err != nil {
		return err
	}
	etcd, err := stack.StartEtcd(context.Background(), stack.EtcdOptions{BinDir: n.dir, Dir: n.file("etcd")})
	if err != nil {
		return err
	}
	n.processes = append(n.processes, etcd.Process)
	n.store = etcd.Endpoints[0]
	if err := n.StartAPI(ctx); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", n.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	n.client, err = dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	managers := func(part, user string, more ...string) []string {
		as := "=" + n.file(user+".kubeconfig")
		return append([]string{
			part, "--kubeconfig" + as, "--authentication-kubeconfig" + as, "--authorization-kubeconfig" + as,
			"--leader-elect=false", "--cert-dir=" + n.file(part+"-certs"),
		}, more...)
	}
	_, err = n.run("kube-controller-manager", n.kube, nil, managers("kube-controller-manager", "controllers",
		"--service-account-private-key-file="+n.file("accounts.key"), "--root-ca-file="+n.file("ca.crt"), "--use-service-account-credentials=true",
		// A node that is not heard of for less is ready: the apiserver may be away for a while.
		"--node-monitor-grace-period=5m")...)
	if err != nil {
		return err
	}
	_, err = n.run("kube-scheduler", n.kube, nil, managers("kube-scheduler", "scheduler")...)
	return err
}

// StartAPI starts the apiserver, and returns once it is ready.
func (n *Node) StartAPI(ctx context.Context) (err error) {
	n.api, err = n.run("kube-apiserver", n.kube, nil,
		"kube-apiserver", "--etcd-servers="+n.store, "--service-cluster-ip-range=10.96.0.0/16",
		"--advertise-address="+Address, "--bind-address=0.0.0.0", "--secure-port=6443",
		"--tls-cert-file="+n.file("api.crt"), "--tls-private-key-file="+n.file("api.key"), "--cert-dir="+n.file("api-certs"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+n.file("accounts.key"), "--service-account-signing-key-file="+n.file("accounts.key"),
		"--authorization-mode=Node,RBAC", "--token-auth-file="+n.file("tokens.csv"), "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP")
	if err != nil {
		return err
	}
	web := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, //nolint:gosec // it is asked whether it is there, in a network of its own
	}}
	return await(ctx, n.api, func() bool { return page(ctx, web, "https://"+Address+":6443/readyz", "admin") })
}

// StopAPI kills the apiserver.
func (n *Node) StopAPI() error { return n.api.Kill() }

func (n *Node) socket() string { return n.file("containerd.sock") }

func (n *Node) startContainerd(ctx context.Context) error {
	p, err := n.run("containerd", filepath.Join(n.tools, "bin", "containerd"), nil, "--config", n.file("containerd.toml"))
	if err != nil {
		return err
	}
	if err := await(ctx, p, func() bool { _, err := n.ctr(ctx, "version"); return err == nil }); err != nil {
		return err
	}
	if err := n.Build("", "./test/node/pause"); err != nil {
		return err
	}
	return n.Import(ctx, Image{Name: pauseImage, Entrypoint: []string{"/pause"}, Files: map[string]string{"/pause": n.Built("pause")}})
}

func (n *Node) startKubelet(ctx context.Context) error {
	kubelet, err := n.run("kubelet", n.kube, nil,
		"kubelet", "--config="+n.file("kubelet.yaml"), "--kubeconfig="+n.file("kubelet.kubeconfig"), "--hostname-override="+name,
		"--node-ip="+Address, "--root-dir="+n.file("kubelet"), "--cert-dir="+n.file("kubelet-certs"))
	if err != nil {
		return err
	}
	// kube-proxy runs nft.
	proxy, err := n.run("kube-proxy", n.kube, []string{"LD_LIBRARY_PATH=" + filepath.Join(n.tools, "lib")},
		"kube-proxy", "--config="+n.file("proxy.yaml"))
	if err != nil {
		return err
	}
	if err := await(ctx, proxy, func() bool { return page(ctx, http.DefaultClient, "http://127.0.0.1:10256/livez", "") }); err != nil {
		return err
	}
	return await(ctx, kubelet, func() bool {
		out, err := n.Kubectl(ctx, "", "get", "node", name, `--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && out == "True"
	})
}

// Kill kills all processes of a pod that run the program. The kubelet starts their containers
// again.
func (n *Node) Kill(uid, program string) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	killed := 0
	for _, p := range processes {
		groups, _ := os.ReadFile(filepath.Join(p, "cgroup")) // it may have ended
		at, _ := os.Readlink(filepath.Join(p, "exe"))
		if !strings.Contains(string(groups), uid) || filepath.Base(at) != program {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(p))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
		killed++
	}
	if killed == 0 {
		return fmt.Errorf("node: the pod %s runs no %s", uid, program)
	}
	return nil
}

// page reports whether a page is there.
func page(ctx context.Context, web *http.Client, url, token string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := web.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Kubeconfig is a file for the cluster's administrator.
func (n *Node) Kubeconfig() string { return n.file("admin.kubeconfig") }

// Kubectl runs kubectl as the cluster's administrator, and returns what it printed. An error
// has what it said.
func (n *Node) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return n.command(ctx, stdin, n.kube, append([]string{"kubectl", "--kubeconfig", n.Kubeconfig()}, args...)...)
}

// Helm runs helm as the cluster's administrator, and returns what it printed.
func (n *Node) Helm(ctx context.Context, args ...string) (string, error) {
	helm, err := kubeparts.Helm()
	if err != nil {
		return "", err
	}
	return n.command(ctx, "", helm, append(args, "--kubeconfig", n.Kubeconfig())...)
}

// Apply writes objects.
func (n *Node) Apply(ctx context.Context, objects string) error {
	_, err := n.Kubectl(ctx, objects, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
	return err
}

func (n *Node) ctr(ctx context.Context, args ...string) (string, error) {
	return n.command(ctx, "", filepath.Join(n.tools, "bin", "ctr"), append([]string{"--address", n.socket(), "--namespace", "k8s.io"}, args...)...)
}

func (n *Node) command(ctx context.Context, stdin, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{"HOME=" + n.dir, "TMPDIR=" + os.TempDir(), "PATH=" + os.Getenv("PATH")} // nothing of the user's counts
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, said.String())
	}
	return string(out), err
}

// Build compiles commands, named as for stack.Build, as programs that need no library.
func (n *Node) Build(tags string, packages ...string) error {
	return stack.Compile(n.dir, []string{"-tags", tags, "-ldflags", "-s -w"}, []string{"CGO_ENABLED=0"}, packages...)
}

// Built is the path of a command that Build has compiled.
func (n *Node) Built(command string) string { return n.file(command) }

// balance gives Services of the type LoadBalancer an address, until the context ends.
// kube-proxy serves it, and nothing else has it.
func (n *Node) balance(ctx context.Context) {
	services := n.client.Resource(services)
	given := 0
	for tick := time.NewTicker(time.Second); ctx.Err() == nil; {
		list, err := services.List(ctx, metav1.ListOptions{})
		if err == nil {
			for _, s := range list.Items {
				spec, _ := s.Object["spec"].(map[string]any)
				status, _ := s.Object["status"].(map[string]any)
				balancer, _ := status["loadBalancer"].(map[string]any)
				if spec["type"] != "LoadBalancer" || balancer["ingress"] != nil {
					continue
				}
				given++
				patch := fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": "10.77.1.%d"}]}}}`, given)
				_, _ = services.Namespace(s.GetNamespace()).Patch(ctx, s.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
