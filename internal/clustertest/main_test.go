//go:build kube

package clustertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed-60ae5743/baton/internal/kubeparts"
	"github.com/seed-60ae5743/baton/internal/node"
	"github.com/seed-60ae5743/baton/internal/stack"
)

var page = flag.Bool("page", false, "write the suite's report to docs/conformance")

// cluster is what all tests share.
var cluster *node.Node

// The images that are made here. Nobody else has their names.
const (
	batonImage   = "localhost/baton:node"
	workerImage  = "localhost/enginesim:node"
	sidecarImage = "localhost/pd-sidecar:node"
)

// dist is where what people install is written, from the repository's root.
var dist = filepath.Join(".run", "dist")

// soon bounds each step.
const soon = 2 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(node.Apart(func() int {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if err := start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "clustertest:", err)
			if cluster != nil {
				fmt.Fprintln(os.Stderr, cluster.Logs())
				cluster.Close()
			}
			return 1
		}
		defer cluster.Close()
		return m.Run()
	}))
}

func start(ctx context.Context) (err error) {
	began := time.Now()
	say := func(s string) { fmt.Printf("%4.0fs %s\n", time.Since(began).Seconds(), s) }
	envoy, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return err
	}
	suite, err := kubeparts.Conformance()
	if err != nil {
		return err
	}
	if cluster, err = node.Start(ctx, say); err != nil {
		return err
	}
	if err := cluster.Istio(ctx, envoy, say); err != nil {
		return err
	}
	say("making the images of Baton and of the workers")
	if err := importBaton(ctx); err != nil {
		return err
	}
	if err := importWorkers(ctx); err != nil {
		return err
	}
	if err := importSuite(ctx, suite); err != nil {
		return err
	}
	say("ready")
	return nil
}

// importSuite makes the images that the conformance suite names. In place of its picker is
// Baton, told to obey the suite's header, by which clients choose endpoints.
func importSuite(ctx context.Context, suite string) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	config := filepath.Join(node.Folder(), "conformance.yaml")
	if err := os.WriteFile(config, []byte("gateway: {selection_header: true}\n"), 0o644); err != nil {
		return err
	}
	images, err := imagesOf(filepath.Join(suite, "base.yaml"))
	if err != nil {
		return err
	}
	for _, name := range images {
		image := node.Image{Names: []string{name}, User: "65532:65532"}
		if strings.Contains(name, "lwepp") { // the suite's own picker
			image.Entrypoint = []string{"/extproc", "epp", "--baton-config=/conformance.yaml"}
			image.Files = map[string]string{"/extproc": filepath.Join(root, dist, "extproc-linux-"+runtime.GOARCH), "/conformance.yaml": config}
		} else {
			image.Entrypoint = []string{"/echo-basic"}
			image.Files = map[string]string{"/echo-basic": filepath.Join(suite, "echo-basic")}
		}
		if err := cluster.Import(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

// importWorkers makes the images of the simulated workers, and of llm-d's sidecar.
func importWorkers(ctx context.Context) error {
	if err := cluster.Build(ctx, "invariants", "./cmd/enginesim"); err != nil {
		return err
	}
	sidecar, err := kubeparts.Sidecar()
	if err != nil {
		return err
	}
	for name, program := range map[string]string{workerImage: cluster.Built("enginesim"), sidecarImage: sidecar} {
		if err := cluster.Import(ctx, node.Image{
			Names: []string{name}, Entrypoint: []string{"/main"}, User: "65532:65532", Files: map[string]string{"/main": program},
		}); err != nil {
			return err
		}
	}
	return nil
}

// importBaton brings the image that people install to the node, as docs/install.md says.
func importBaton(ctx context.Context) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	out := dist
	cmd := exec.CommandContext(ctx, "go", "run", "./internal/dist", "-out", out)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	archive := filepath.Join(node.Folder(), "baton.tar")
	if said, err := exec.CommandContext(ctx, "tar", "-C", filepath.Join(root, out, "image"), "-cf", archive, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	if err := cluster.ImportFile(ctx, archive); err != nil {
		return err
	}
	name, err := cluster.ImageNamed(ctx, "localhost/baton:")
	if err != nil {
		return err
	}
	return cluster.Tag(ctx, name, batonImage)
}

// imagesOf returns the images that the objects of a file name.
func imagesOf(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var out []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok && !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out, nil
}
