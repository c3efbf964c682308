package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// resumeIndex gives what an earlier process has dumped to what follows events.
// That it is missing, damaged or of another version is told, and changes nothing
// else: the index begins empty then.
func (p *plugin) resumeIndex() {
	path := p.cfg.Index.Dump
	if path == "" {
		return
	}
	removeTorn(path)
	d, err := readDump(path)
	if errors.Is(err, os.ErrNotExist) {
		p.log.Info("no dump of the index yet", "path", path)
		return
	}
	if err != nil {
		p.log.Warn("the index begins empty: its dump cannot be used", "path", path, "err", err)
		return
	}
	ranks, err := p.events.Resume(d)
	if err != nil {
		p.log.Warn("some ranks of the dump cannot be used", "path", path, "err", err)
	}
	p.log.Info("a dump of the index waits for its ranks' streams", "path", path, "ranks", ranks, "of", len(d.Ranks()),
		"blocks", d.Blocks())
}

// removeTorn removes what processes that were killed while they dumped have left.
func removeTorn(path string) {
	entries, _ := os.ReadDir(filepath.Dir(path)) // a folder that is not there is told when it is written to
	for _, e := range entries {
		drawn, torn := strings.CutPrefix(e.Name(), "."+filepath.Base(path)+".")
		if torn && strings.Trim(drawn, "0123456789") == "" { // else it is of a dump whose name begins alike
			_ = os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

func readDump(path string) (*kvindex.Dump, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was read
	return kvindex.ReadDump(f)
}

// dumpRest is how many times its own length the pause after a dump lasts, if
// that is more than the interval.
const dumpRest = 9

// keepIndex writes the dump every so often.
func (p *plugin) keepIndex(ctx context.Context) error {
	c := p.cfg.Index
	if c.Dump == "" || c.DumpInterval == 0 {
		return nil
	}
	pause := time.NewTimer(c.DumpInterval)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
			pause.Reset(max(c.DumpInterval, dumpRest*p.saveIndex()))
		}
	}
}

// saveIndex replaces the dump: whoever reads it sees the old one or the new one.
// It returns how long that took, which the wait for another dump is no part of:
// that one may go to somebody who reads it slowly.
func (p *plugin) saveIndex() (took time.Duration) {
	path := p.cfg.Index.Dump
	if path == "" {
		return 0
	}
	p.dumping <- struct{}{}
	defer func() { <-p.dumping }()
	began := time.Now()
	err := file.ReplaceWith(path, 0o600, p.writeIndex)
	took = time.Since(began)
	if err != nil {
		p.tele.Instruments.IndexDump("failed")
		p.log.Warn("the index was not dumped", "path", path, "err", err)
		return took
	}
	p.tele.Instruments.IndexDump("ok")
	p.log.Debug("the index was dumped", "path", path, "took", took)
	return took
}

// dumpIndex writes a dump, after the one that may be in progress.
func (p *plugin) dumpIndex(w io.Writer) error {
	p.dumping <- struct{}{}
	defer func() { <-p.dumping }()
	return p.writeIndex(w)
}

func (p *plugin) writeIndex(w io.Writer) error {
	d := kvindex.NewDumpWriter(w)
	if err := p.events.Dump(d); err != nil {
		return err
	}
	return d.Close()
}

func indexCommand(args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("index", "Tells what a dump of the index has: of each rank its blocks, their age, and how far its events were followed.\n"+
		"Expects the file of index.dump, or what GET /debug/index/dump gave: extproc index FILE", stderr)
	if err := config.ParseFlags(fs, args, 1); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return config.Usage(errors.New("index: expected the file of a dump"))
	}
	d, err := readDump(fs.Arg(0))
	if err != nil {
		return err
	}
	return showDump(stdout, d, time.Now())
}

// showDump prints a row for each rank, those with most blocks first.
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
			if at = fmt.Sprint(pos.Last); pos.Degraded {
				at += ", degraded"
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", x.Rank, x.Blocks, x.TierBlocks[kvindex.Device], x.TierBlocks[kvindex.Host],
			x.TierBlocks[kvindex.Disk], x.TierBlocks[kvindex.External], now.Sub(x.At).Round(time.Second), at)
	}
	return t.Flush()
}
