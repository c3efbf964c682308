package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/internal/telemetry"
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
	return serve(ctx, c, nil, stderr)
}

// serve runs the plugin, as serve and epp do.
func serve(ctx context.Context, c config.Config, notes []config.Note, stderr io.Writer) error {
	c.In(plugin.Namespace(os.Getenv("NAMESPACE")))
	log, err := telemetry.NewLogger(stderr, c.Log.Level, c.Log.Format)
	if err == nil { // else plugin.Serve says what is wrong, with all other faults
		defer ignoreHangup(log)()
	}
	given, err := activation.Listeners()
	if err != nil {
		return fmt.Errorf("the sockets that systemd passes on: %w", err)
	}
	return plugin.Serve(ctx, c, notes, given, stderr)
}
