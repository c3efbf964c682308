//go:build kube

// Command demo tells what Baton does on a real Kubernetes cluster of one node: the chart, a
// gateway of Istio, simulated engines as pods, or with -vllm real ones, a conversation, a killed
// prefill pod, a killed picker.
//
// It checks what it tells: what served a request is what the pods say of themselves. It ends
// with exit code 1 when the story is not true. With -up the cluster stays until Ctrl-C, with
// a line that shows how to reach it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/test/node"
	"github.com/seed-60ae5743/baton/test/stack"
)

// soon bounds the whole story but the start of the pods.
const soon = 10 * time.Minute

func main() {
	up := flag.Bool("up", false, "leave the cluster running until Ctrl-C")
	isReal := flag.Bool("vllm", false, "the pods run real vLLM on the processors, of make real-tools; 15 GiB of memory, some minutes")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "demo runs Baton on a Kubernetes cluster of one node and tells what happens. It needs root.")
		flag.PrintDefaults()
	}
	flag.Parse()
	os.Exit(node.Apart(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := run(ctx, *up, *isReal); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return 1
		}
		return 0
	}))
}

func run(ctx context.Context, up, isReal bool) error {
	began := time.Now()
	say := func(text string) { fmt.Printf("%4.0f s  %s\n", time.Since(began).Seconds(), text) }
	pods := simulated()
	if isReal {
		var err error
		pods, err = vllm()
		if err != nil {
			return err
		}
	}
	short, cancel := context.WithTimeout(ctx, soon+pods.start)
	defer cancel()
	envoy, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return err
	}
	n, err := node.Start(short, say)
	if err != nil {
		return err
	}
	defer n.Close()
	if err := n.Istio(short, envoy, say); err != nil {
		return err
	}
	say("making the images")
	if _, err := n.ImportBaton(short); err != nil {
		return err
	}
	if err := pods.images(short, n); err != nil {
		return err
	}
	s := &story{n: n, engines: pods, say: say}
	if err := s.tell(short); err != nil {
		return err
	}
	if !up {
		return nil
	}
	first, err := node.Outside()
	if err != nil {
		return err
	}
	fmt.Printf("\nThe cluster runs until Ctrl-C. From another shell, as root:\n  nsenter --target %s --net curl -s %s/v1/models\n", first, s.gateway)
	<-ctx.Done()
	return nil
}
