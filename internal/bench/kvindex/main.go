// Command kvindex measures the index on the traces of ../shared/peers/kvindex.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

func main() {
	if err := one(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func indexes() map[string]func() (kvindex.Index, error) {
	return map[string]func() (kvindex.Index, error){
		"map":  func() (kvindex.Index, error) { return kvindex.NewMap(kvindex.NewSlots()), nil },
		"tree": func() (kvindex.Index, error) { return kvindex.NewTree(kvindex.TreeConfig{}, kvindex.NewSlots()) },
	}
}

// one runs `INDEX MODE TRACE` and prints a line of JSON.
func one(args []string) error {
	if len(args) != 3 || indexes()[args[0]] == nil {
		return fmt.Errorf("expected map or tree, then replay, writes, reads, both or churn, then a trace: got %q", args)
	}
	t, err := openTrace(args[2])
	if err != nil {
		return err
	}
	r, err := newRunner(t, indexes()[args[0]])
	if err != nil {
		return err
	}
	if f := os.Getenv("PROF"); f != "" {
		g, _ := os.Create(f)
		pprof.StartCPUProfile(g)
		defer pprof.StopCPUProfile()
	}
	switch args[1] {
	case "replay":
		r.replay()
	case "writes":
		n, took := r.bulk(0, len(t.ops))
		r.rate("write_blocks_per_s", n, took)
	case "reads":
		r.reads()
	case "debug":
		r.bulk(0, len(t.ops))
		tr := r.index.(*kvindex.Tree)
		fmt.Println(tr.DebugStats(), tr.DebugNames())
		var o op
		hist := map[int]int{}
		k := 0
		for i := range t.ops {
			if t.read(i, &o); o.kind == opQuery && i > len(t.ops)*4/5 {
				n, l := tr.DebugWalk(o.chain)
				hist[n]++
				if k++; k%500 == 0 {
					fmt.Println(len(o.chain), n, l)
				}
			}
		}
		fmt.Println(hist)
	case "both":
		r.both()
	default:
		return fmt.Errorf("mode %q: expected replay, writes, reads or both", args[1])
	}
	r.out["peer"], r.out["mode"], r.out["trace"] = "baton-"+args[0], args[1], strings.TrimSuffix(filepath.Base(args[2]), ".kvt")
	return json.NewEncoder(os.Stdout).Encode(r.out)
}
