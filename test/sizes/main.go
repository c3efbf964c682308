package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/seed-60ae5743/baton/test/stack"
)

const (
	module = "github.com/seed-60ae5743/baton"
	golden = "test/sizes/sizes.txt"
)

func main() {
	root, err := stack.Root()
	if err == nil {
		err = write(context.Background(), root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sizes:", err)
		os.Exit(1)
	}
}

// write weighs the module in a folder, writes the table and prints what has changed in it.
func write(ctx context.Context, root string) error {
	now, err := weigh(ctx, root)
	if err != nil {
		return err
	}
	was, err := read(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		fmt.Fprintf(os.Stderr, "sizes: %s is written anew: %v\n", golden, err)
	}
	for _, c := range was.changes(now, exactly) {
		fmt.Println(c)
	}
	for _, kind := range kinds {
		fmt.Printf("%s  %s: %d lines, it had %d\n", kind, total, now.sum(kind), was.sum(kind))
	}
	return os.WriteFile(filepath.Join(root, golden), []byte(now.String()), 0o644)
}

// read returns the table as it is written; of a damaged one, what can be read.
func read(root string) (table, error) {
	text, err := os.ReadFile(filepath.Join(root, golden))
	if err != nil {
		return table{}, err
	}
	return parse(string(text))
}

// weigh returns the table as it should be.
func weigh(ctx context.Context, root string) (table, error) {
	linked, err := linkedIn(ctx, root)
	if err != nil {
		return nil, err
	}
	files, err := count(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	return tabulate(files, linked), nil
}

// oracle is a package of pkg for tests alone: no product may import it (test/archtest).
const oracle = "pkg/kvindex/oracle"

// linkedIn returns the packages of the product, by folder. What is linked is the same on
// every machine that asks: it is asked for the system that Baton is made for.
func linkedIn(ctx context.Context, root string) (map[string]bool, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", "./cmd/extproc", "./pkg/...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	linked := map[string]bool{}
	for _, p := range strings.Fields(string(out)) {
		if p == module {
			linked["."] = true
			continue
		}
		linked[strings.TrimPrefix(p, module+"/")] = true
	}
	delete(linked, oracle)
	return linked, nil
}
