package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/ownenvoy"
	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func checkCommand(args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("check", "Validates the configuration, prints the effective one, and says for each model in the workers' file whether and how it can be served.", stderr)
	envoyAt := fs.String("envoy", "", "check this instead: Envoy's bootstrap `file`, or the address of a running Envoy's admin (host:port, or a socket's path)")
	given := config.FlagsWithoutWorkers(fs, func() bool { return *envoyAt != "" })
	if err := config.ParseFlags(fs, args, 0); err != nil {
		return err
	}
	c, err := given()
	if err == nil && *envoyAt != "" {
		return ownenvoy.Check(&c, *envoyAt, stdout)
	}
	c.In(plugin.Namespace(os.Getenv("NAMESPACE")))
	if err == nil {
		err = plugin.Check(c)
	}
	if err != nil { // both files' faults at once, so that a user can mend them together
		_, workers := checkWorkers(c.Discovery.File, io.Discard)
		return config.Usage(errors.Join(err, workers))
	}
	for _, w := range []string{c.Warning(), c.KeyWarning(), c.GoneWarning()} {
		if w != "" {
			fmt.Fprintf(stderr, "extproc: note: %s\n", w)
		}
	}
	text, err := plugin.Sized(c).Effective()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	plugin.CheckRunning(context.Background(), &c, stdout)
	return checkModels(c, stdout, stderr)
}

// errNothingServed means that the listed workers can serve no model.
var errNothingServed = errors.New("the listed workers can serve no model: the lines above say why")

// checkModels reads the workers as serve would, and prints for each model whether and how
// it can be served. The lines are comments in the printed configuration. A missing file
// is no fault: serve waits for it.
func checkModels(c config.Config, stdout, stderr io.Writer) error {
	elsewhere := c.Discovery.Elsewhere()
	found, err := checkWorkers(c.Discovery.File, stderr)
	if err != nil {
		return config.Usage(err)
	}
	served := false
	if found == nil && c.Discovery.File != "" {
		fmt.Fprintf(stdout, "# %s is not there yet: which models can be served is not known.\n", c.Discovery.File)
	}
	if found != nil {
		refused, err := found.refuse(&c)
		if err != nil {
			return config.Usage(err)
		}
		world, err := activation.WorldOf(found.workers)
		if err != nil {
			return config.Usage(fmt.Errorf("discovery.file %s: %w", c.Discovery.File, err))
		}
		fmt.Fprintf(stdout, "# Models of %s:\n", c.Discovery.File)
		served = printModels(&c, world, stdout)
		served = found.asked(c.Discovery.File, stdout) || served
		if len(world.Keys()) == 0 {
			fmt.Fprintln(stdout, "# - none: it lists no workers")
		}
		found.unusable(c.Discovery.File, stdout)
		for _, line := range refused {
			fmt.Fprintln(stdout, "# - "+line)
		}
	}
	switch {
	case len(elsewhere) > 0:
		fmt.Fprintf(stdout, "# Workers come from %s: which models they can serve is not known here. A running plugin tells: its status page, or /readyz?model=NAME, at %s.\n", strings.Join(elsewhere, ", "), c.Admin.Listen)
	case found != nil && !served:
		return errNothingServed
	}
	return nil
}

// printModels prints a line for each model, and reports whether one can be served.
func printModels(c *config.Config, world *activation.World, out io.Writer) (served bool) {
	policy := c.Policy()
	for _, k := range world.Keys() {
		if k.Model == worker.NoModel {
			continue // listed.asked has its workers
		}
		o := policy.Outlook(world, k)
		fmt.Fprintln(out, "# - "+o.Line(k, world.Pool(k)))
		if o.Way == activation.Refused {
			continue
		}
		served = true
		for _, why := range append(activation.Mixed(world.Pool(k)), activation.Unpaired(world.Pool(k))...) {
			fmt.Fprintf(out, "#   %s\n", why)
		}
	}
	return served
}

// listed holds the workers of a file, and the line on which each begins.
type listed struct {
	workers []*worker.Worker
	lines   map[worker.ID]int
}

// unusable prints why a worker cannot be picked, for each such worker, as serve does when
// it reads the file: the model may be served without that worker.
func (l *listed) unusable(name string, out io.Writer) {
	for _, w := range l.workers {
		if why := discovery.Ineligible(w); why != "" && !isAsked(w) {
			fmt.Fprintf(out, "# - %s:%d: worker %d gets no requests: %s\n", name, l.lines[w.ID], w.ID, why)
		}
	}
}

// refuse takes out the workers at addresses where none may be, as serve does, and says why
// of each.
func (l *listed) refuse(c *config.Config) (lines []string, err error) {
	allowed, err := plugin.Allowed(c)
	if err != nil {
		return nil, err
	}
	l.workers = slices.DeleteFunc(l.workers, func(w *worker.Worker) bool {
		why := allowed.Refuse(w, true)
		if why != "" {
			lines = append(lines, fmt.Sprintf("%s:%d: worker %d is refused: %s", c.Discovery.File, l.lines[w.ID], w.ID, why))
		}
		return why != ""
	})
	return lines, nil
}

// asked prints which workers' engines serve asks for what the file leaves out, and reports
// whether there are any.
func (l *listed) asked(name string, out io.Writer) (any bool) {
	for _, w := range l.workers {
		if isAsked(w) {
			any = true
			fmt.Fprintf(out, "# - %s:%d: worker %d: what the file leaves out is asked of its engine at %s, and not known here\n", name, l.lines[w.ID], w.ID, w.Endpoint)
		}
	}
	return any
}

// isAsked reports whether the worker's engine is asked for its facts.
func isAsked(w *worker.Worker) bool { return w.Fixed != 0 || w.FactsUnknown }

// checkWorkers reads the workers file. It returns nil without a file, or if the file is
// not there yet.
func checkWorkers(name string, stderr io.Writer) (*listed, error) {
	if name == "" {
		return nil, nil
	}
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(stderr, "extproc: note: %s is not there yet; serve would wait for it\n", name)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discovery.file: %w", err)
	}
	ws, lines, err := record.ParseLines(name, data)
	return &listed{ws, lines}, err
}
