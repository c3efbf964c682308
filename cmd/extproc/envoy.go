package main

import (
	"errors"
	"io"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/ownenvoy"
)

// envoyCommand writes the configuration of one's own Envoy: merged into a file of the user's, as parts, or whole.
func envoyCommand(args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("envoy", ownenvoy.Summary, stderr)
	given := config.FlagsWithoutWorkers(fs, func() bool { return true })
	asked := ownenvoy.Flags(fs)
	if err := config.ParseFlags(fs, args, 1); err != nil {
		return err
	}
	c, err := given()
	o, wrong := asked(fs.Arg(0))
	if err := errors.Join(err, wrong); err != nil {
		return config.Usage(err)
	}
	return ownenvoy.Write(&c, o, stdout, stderr)
}
