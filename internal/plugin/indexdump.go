package plugin

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
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
	d, err := ReadDump(path)
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

// ReadDump reads a dump of the index from its file.
func ReadDump(path string) (*kvindex.Dump, error) {
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
