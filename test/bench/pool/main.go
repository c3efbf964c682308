// Command pool measures the memory of a plugin whose workers are the pods of a pool: its
// resident set at 0, 100 and 1,000 pods, when it has read them and after all of them have
// changed.
//
// Contract. It runs the binary that -extproc names, as a picker of a pool of
// test/kubesim, and prints one line for each number of pods. The pods have the size of
// real ones.
//
// What it does not do: it sends no requests, and asks nothing of the pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/kubesim"
)

func main() {
	extproc := flag.String("extproc", "bin/extproc", "the binary")
	admin := flag.String("admin", "127.0.0.1:39902", "where its status page is to be")
	settle := flag.Duration("settle", 5*time.Second, "how long it is left alone before it is measured")
	flag.Parse()
	fmt.Println("pods  read MiB  changed MiB  peak MiB")
	for _, n := range []int{0, 100, 1000} {
		if err := measure(*extproc, *admin, n, *settle); err != nil {
			fmt.Fprintln(os.Stderr, "pool:", err)
			os.Exit(1)
		}
	}
}

// measure runs one plugin and prints its line.
func measure(extproc, admin string, pods int, settle time.Duration) error {
	k := kubesim.New(kubesim.Config{Resources: []kubesim.Resource{kubesim.Pools()}})
	k.Put(kubesim.Pools(), map[string]any{
		"metadata": map[string]any{"namespace": "infra", "name": "primary", "uid": "p"},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "llama"}}, "targetPorts": []any{map[string]any{"number": 8000}},
		},
	})
	fleet(k, pods, 0)
	if err := k.Start(); err != nil {
		return err
	}
	defer k.Stop()
	dir, err := os.MkdirTemp("", "pool")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, kubesim.Kubeconfig(k.URL(), ""), 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, extproc, "epp", "--pool-name", "primary", "--pool-namespace", "infra", "--kubeconfig", kubeconfig,
		"--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--admin", admin, "--log-level", "error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { // before the folder is removed
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	if err := ready(ctx, admin); err != nil {
		return err
	}
	time.Sleep(settle)
	read, _, err := host.Memory(cmd.Process.Pid)
	if err != nil {
		return err
	}
	fleet(k, pods, 1)
	time.Sleep(settle)
	changed, most, err := host.Memory(cmd.Process.Pid)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	fmt.Printf("%4d  %8.1f  %11.1f  %8.1f\n", pods, float64(read)/mib, float64(changed)/mib, float64(most)/mib)
	return nil
}

// fleet writes pods as an engine's Deployment makes them: some 6 KB each.
func fleet(k *kubesim.Server, pods, round int) {
	env := make([]any, 40)
	for i := range env {
		env[i] = map[string]any{"name": fmt.Sprintf("VLLM_SETTING_%d", i), "value": strings.Repeat("x", 60)}
	}
	for n := range pods {
		k.Put(kubesim.Pods(), map[string]any{
			"metadata": map[string]any{
				"namespace": "infra", "name": fmt.Sprintf("llama-%d", n), "uid": fmt.Sprintf("0b7d9a44-90f2-4c5e-8a39-%012d", n),
				"labels": map[string]any{"app": "llama", "llm-d.ai/role": "both", "pod-template-hash": "5d4f8c7b9"},
				"annotations": map[string]any{
					"baton.dev/engine": "vllm", "baton.dev/models": "llama", "baton.dev/block-size": "16", "round": strconv.Itoa(round),
					"cni.projectcalico.org/podIPs": "10.0.0.1/32",
				},
				"managedFields": []any{map[string]any{"manager": "kubelet", "fieldsV1": map[string]any{"f:status": map[string]any{"f:conditions": map[string]any{}}}}},
			},
			"spec": map[string]any{"containers": []any{map[string]any{"name": "vllm", "image": "vllm/vllm-openai:v0.12.0", "env": env}}},
			"status": map[string]any{
				"phase": "Running", "podIP": fmt.Sprintf("10.%d.%d.%d", 1+n>>16, n>>8&255, n&255),
				"conditions":        []any{map[string]any{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}},
				"containerStatuses": []any{map[string]any{"name": "vllm", "ready": true, "imageID": strings.Repeat("a", 100)}},
			},
		})
	}
}

// ready waits until the plugin is.
func ready(ctx context.Context, admin string) error {
	for ctx.Err() == nil {
		resp, err := http.Get("http://" + admin + "/readyz") //nolint:noctx // on this machine
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the plugin has not become ready")
}
