package main

import (
	"context"
	"io"
	"os"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/plugin"
)

func serveCommand(ctx context.Context, args []string, stderr io.Writer) error {
	fs := config.NewFlagSet("serve", "Runs the plugin until SIGTERM, then drains.", stderr)
	given := config.Flags(fs)
	if err := config.ParseFlags(fs, args, 0); err != nil {
		return err
	}
	c, err := given()
	if err != nil {
		return err
	}
	c.Discovery.In(plugin.Namespace(os.Getenv("NAMESPACE")))
	return plugin.Serve(ctx, c, nil, stderr)
}
