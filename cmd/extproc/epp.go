package main

import (
	"context"
	"io"

	"github.com/seed-60ae5743/baton/internal/config"
)

const eppSummary = `Runs the plugin as an endpoint picker of the Gateway API, with the flags of a
reference picker. Beside them stand those of extproc serve; its --config is
--baton-config here. What is given beats the file, and the file these defaults.`

func eppCommand(ctx context.Context, args []string, stderr io.Writer) error {
	fs := config.NewFlagSet("epp", eppSummary, stderr)
	c, notes, err := config.EPP(fs, args)
	if err != nil {
		return err
	}
	return serve(ctx, c, notes, stderr)
}
