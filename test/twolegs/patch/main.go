// Command patch writes an Envoy configuration with patches applied in order:
//
//	patch config.yaml patch.yaml… > envoy.json
//
// A patch is a list of RFC 6902 operations in YAML. One that does not fit is an
// error, and nothing is written.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/seed-60ae5743/baton/test/twolegs"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "patch:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	if len(names) == 0 {
		return errors.New("expected a configuration, then patches")
	}
	config, err := os.ReadFile(names[0])
	if err != nil {
		return err
	}
	for _, name := range names[1:] {
		patch, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		config, err = twolegs.Patch(config, patch)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err = os.Stdout.Write(config)
	return err
}
