// Command gen writes the files of test/oncall: rules, dashboards and the runbook.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/test/oncall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	files, err := oncall.Files()
	if err != nil {
		return err
	}
	for name, body := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return fmt.Errorf("gen: %w", err)
		}
		if err := os.WriteFile(name, body, 0o644); err != nil {
			return fmt.Errorf("gen: %w", err)
		}
	}
	return nil
}
