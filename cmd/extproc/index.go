package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

func indexCommand(args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("index", "Prints what a dump of the index holds: for each rank its blocks, their age, and how far its events were followed.\n"+
		"Expects the file of index.dump, or the answer of GET /debug/index/dump: extproc index FILE", stderr)
	if err := config.ParseFlags(fs, args, 1); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return config.Usage(errors.New("index: expected the file of a dump: extproc index FILE"))
	}
	d, err := plugin.ReadDump(fs.Arg(0))
	if err != nil {
		return err
	}
	return showDump(stdout, d, time.Now())
}

// showDump prints a row for each rank, with those that have most blocks first.
func showDump(out io.Writer, d *kvindex.Dump, now time.Time) error {
	ranks := d.Ranks()
	slices.SortStableFunc(ranks, func(a, b kvindex.DumpedRank) int { return cmp.Compare(b.Blocks, a.Blocks) })
	fmt.Fprintf(out, "%d ranks, %d different blocks in %d runs\n", len(ranks), d.Blocks(), d.Runs())
	if len(ranks) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "rank\tblocks\tdevice\thost\tdisk\texternal\tage\tevents followed to")
	for _, x := range ranks {
		at := "unknown"
		if pos, err := kvevents.ReadPosition(x.Note); err == nil {
			at = fmt.Sprint(pos.Last)
			if pos.Degraded {
				at += ", degraded"
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", x.Rank, x.Blocks, x.TierBlocks[kvindex.Device], x.TierBlocks[kvindex.Host],
			x.TierBlocks[kvindex.Disk], x.TierBlocks[kvindex.External], now.Sub(x.At).Round(time.Second), at)
	}
	return t.Flush()
}
