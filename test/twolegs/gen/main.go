// Command gen writes the committed Envoy configurations beside their templates, and that of
// the Helm chart.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/test/twolegs"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	files, err := twolegs.Committed()
	if err != nil {
		return err
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join("envoy", name), body, 0o644); err != nil {
			return fmt.Errorf("gen: %w", err)
		}
	}
	chart, err := twolegs.IstioForChart()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join("charts", "baton", "files", "istio-two-legs.yaml"), chart, 0o644); err != nil {
		return fmt.Errorf("gen: %w", err)
	}
	return nil
}
