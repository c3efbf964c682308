//go:build kube

package clustertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/stack"
)

var page = flag.Bool("page", false, "write the suite's report to docs/conformance")

// cluster is what all tests share.
var cluster *node.Node

// The images of what others have written: llm-d's routing sidecar, and the inference
// extension's picker.
const (
	sidecarImage = "localhost/pd-sidecar:node"
	eppImage     = "localhost/epp:node"
)

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
	program, err := cluster.ImportBaton(ctx)
	if err != nil {
		return err
	}
	if err := cluster.ImportWorkers(ctx); err != nil {
		return err
	}
	for name, part := range map[string]func() (string, error){sidecarImage: kubeparts.Sidecar, eppImage: kubeparts.EPP} {
		program, err := part()
		if err != nil {
			return err
		}
		if err := cluster.ImportProgram(ctx, name, program); err != nil {
			return err
		}
	}
	if err := importSuite(ctx, suite, program); err != nil {
		return err
	}
	say("ready")
	return nil
}

// importSuite makes the images that the conformance suite names. In place of its picker is
// Baton, told to obey the suite's header, by which clients choose endpoints.
func importSuite(ctx context.Context, suite, program string) error {
	config := filepath.Join(node.Folder(), "conformance.yaml")
	if err := os.WriteFile(config, []byte("gateway: {selection_header: true}\n"), 0o644); err != nil {
		return err
	}
	images, err := imagesOf(filepath.Join(suite, "base.yaml"))
	if err != nil {
		return err
	}
	for _, name := range images {
		if strings.Contains(name, "lwepp") { // the suite's own picker
			err = cluster.Import(ctx, node.Image{
				Name: name, User: "65532:65532", Entrypoint: []string{"/extproc", "epp", "--baton-config=/conformance.yaml"},
				Files: map[string]string{"/extproc": program, "/conformance.yaml": config},
			})
		} else {
			err = cluster.ImportProgram(ctx, name, filepath.Join(suite, "echo-basic"))
		}
		if err != nil {
			return err
		}
	}
	return nil
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
