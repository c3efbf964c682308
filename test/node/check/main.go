// Command check says what this machine lacks of what a cluster of test/node needs, and how to get it,
// before anything is built for it. It ends with exit code 1 if something is lacking.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/seed-60ae5743/baton/test/kubeparts"
	"github.com/seed-60ae5743/baton/test/node"
)

func main() {
	memory := flag.Uint64("memory", 5<<10, "`MiB` that the cluster takes: with 19 pods of simulated engines it took 3.2 GiB")
	flag.Parse()
	need := node.Need{Disk: 2 << 10, Memory: *memory}
	if !built() {
		need.Build, need.Disk = true, 12<<10 // modules, objects and programs
	}
	here := node.Here()
	if lacks := here.Lacks(need); len(lacks) > 0 {
		fmt.Fprint(os.Stderr, "check: ", node.Told(lacks))
		os.Exit(1)
	}
	fmt.Printf("check: this machine has what a cluster needs (parts are to be built: %t, disk %d MiB, memory %d MiB)\n", need.Build, here.Disk, here.Memory)
}

// built reports whether the parts that every cluster runs are there.
func built() bool {
	for _, part := range []func() (string, error){kubeparts.Kube, kubeparts.Helm, kubeparts.Definitions, kubeparts.Node, kubeparts.Istio} {
		if _, err := part(); err != nil {
			return false
		}
	}
	return true
}
