//go:build kube

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/real"
	"github.com/seed-60ae5743/baton/test/stack"
)

// engines are what the story's pods run.
type engines struct {
	what      string // in the story
	model     string
	images    func(context.Context, *node.Node) error
	pod       func(worker.Role) (spec string, err error) // as YAML's flow
	counts    func(ctx context.Context, url string) (counts, error)
	answer    int           // tokens of the answer under which the picker dies
	ignoreEOS bool          // the answer has them all
	start     time.Duration // bounds the start of all pods
}

// counts are what an engine has done since its start, by its own word.
type counts struct {
	served int // requests
	cached int // tokens of prompts that it had
}

// simulated engines are in the form of SGLang.
func simulated() *engines {
	return &engines{
		what: "simulated engines", model: "sim", answer: 150, start: 2 * time.Minute,
		images: func(ctx context.Context, n *node.Node) error { return n.ImportWorkers(ctx) },
		pod: func(role worker.Role) (string, error) {
			args := map[worker.Role]string{
				worker.Prefill: `"--bootstrap-listen=$(POD_IP):8998"`,
				worker.Decode:  `--decode-us-per-token=20000`,
			}
			return fmt.Sprintf(`{containers: [{name: engine, image: %q, imagePullPolicy: Never,
      args: [--role=%s, "--listen=0.0.0.0:8000", --kv-events-port=5557, --replay-port=5558, %s],
      env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}], ports: [{containerPort: 8000}],
      readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1, timeoutSeconds: 30}}]}`, node.WorkerImage, role, args[role]), nil
		},
		counts: func(ctx context.Context, url string) (counts, error) {
			state, err := enginesim.Client{BaseURL: url}.State(ctx, false)
			c := counts{served: int(state.OK)}
			for _, r := range state.Ranks {
				c.cached += int(r.CachedTokens)
			}
			return c, err
		},
	}
}

// enginesImage has no files: all that the real engines need is the node's.
const enginesImage = "localhost/engines:node"

// vllm are real vLLM on the node's processors, installed by make real-tools. Prefill hands over
// by NIXL.
func vllm() (*engines, error) {
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	home := real.Home(root)
	free, err := real.FreeMemory()
	if err == nil && free < 5*real.StartBytes {
		err = fmt.Errorf("%d MiB of memory are free, four vLLM and the cluster want %d", free>>20, 5*real.StartBytes>>20)
	}
	if err := errors.Join(real.CanRun(), real.Installed(home), err); err != nil {
		return nil, err
	}
	python, err := filepath.EvalSymlinks(filepath.Join(home, "vllm", "bin", "python"))
	if err != nil {
		return nil, err
	}
	const model = "qwen3"
	return &engines{
		what: "real vLLM", model: model, answer: 300, ignoreEOS: true, start: 20 * time.Minute,
		images: func(ctx context.Context, n *node.Node) error { return n.Import(ctx, node.Image{Name: enginesImage}) },
		pod: func(role worker.Role) (string, error) {
			return vllmPod(&real.Options{Home: home, Model: model, Role: role}, filepath.Dir(filepath.Dir(python)))
		},
		counts: countVLLM,
	}, nil
}

// vllmPod returns a pod that runs an engine of the node's files: of o.Home, and of a Python.
func vllmPod(o *real.Options, python string) (string, error) {
	command := real.VLLM(o, &real.Place{
		Host: "0.0.0.0", Peers: "$(POD_IP)", Device: "eth0", Port: 8000, Events: 5557, Replay: 5558, Peer: 5600,
	})
	type object = map[string]any
	env := []object{{"name": "POD_IP", "valueFrom": object{"fieldRef": object{"fieldPath": "status.podIP"}}}, {"name": "HOME", "value": "/tmp"}}
	for _, e := range command.Env {
		name, value, _ := strings.Cut(e, "=")
		env = append(env, object{"name": name, "value": value})
	}
	paths := []string{"/bin", "/etc/ld.so.cache", "/lib", "/lib64", "/usr", o.Home}
	if !strings.HasPrefix(python, "/usr") {
		paths = append(paths, python)
	}
	// vLLM asks for more shared memory than a container has.
	volumes := []object{{"name": "shm", "emptyDir": object{"medium": "Memory", "sizeLimit": "1Gi"}}}
	mounts := []object{{"name": "shm", "mountPath": "/dev/shm"}}
	for i, path := range paths {
		if _, err := os.Stat(path); err != nil {
			continue // not all systems have a /lib64
		}
		name := "node-" + strconv.Itoa(i)
		volumes = append(volumes, object{"name": name, "hostPath": object{"path": path}})
		// Python keeps what it has compiled beside the sources.
		mounts = append(mounts, object{"name": name, "mountPath": path, "readOnly": path != o.Home && path != python})
	}
	spec, err := json.Marshal(object{
		"containers": []object{{
			"name": "engine", "image": enginesImage, "imagePullPolicy": "Never",
			"command": append([]string{command.Path}, command.Args...), "env": env, "volumeMounts": mounts,
			"ports":          []object{{"containerPort": 8000}},
			"readinessProbe": object{"httpGet": object{"path": "/health", "port": 8000}, "periodSeconds": 1, "timeoutSeconds": 30},
		}},
		"volumes": volumes,
	})
	return string(spec), err
}

// countVLLM reads vLLM's page of metrics.
func countVLLM(ctx context.Context, url string) (counts, error) {
	page, err := stack.Get(ctx, url+"/metrics")
	if err != nil {
		return counts{}, err
	}
	m := stack.Metrics(page)
	served, counted := m.Sum("vllm:request_success_total")
	cached, found := m.Sum("vllm:prefix_cache_hits_total")
	if !counted || !found {
		return counts{}, errors.New("the engine's metrics do not have its counts")
	}
	return counts{served: int(served), cached: int(cached)}, nil
}
