package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/internal/wholefile"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// resumeIndex passes the dump of an earlier process to the subscriber of KV events. If
// the dump is missing, damaged or of another version, that is logged, and the index
// begins empty.
func (p *plugin) resumeIndex() {
	path := p.cfg.Index.Dump
	if path == "" {
		return
	}
	resumePaces(p.server, path+pacesSuffix, p.log)
	removeTorn(path)
	removeTorn(path + pacesSuffix)
	d, err := ReadDump(path)
	if errors.Is(err, os.ErrNotExist) {
		p.log.Info("no dump of the index yet", logkey.Path, path)
		return
	}
	if err != nil {
		p.log.Warn("the index starts empty, since its dump cannot be used: check that index.dump can be written; the next dump then replaces this one", logkey.Path, path, logkey.Err, err)
		return
	}
	ranks, err := p.events.Resume(d)
	if err != nil {
		p.log.Warn("some ranks of the index's dump cannot be used and start empty: nothing has to be done", logkey.Path, path, logkey.Err, err)
	}
	p.log.Info("a dump of the index waits for its ranks' streams", logkey.Path, path, logkey.Ranks, ranks, logkey.Of, len(d.Ranks()),
		logkey.Blocks, d.Blocks())
}

// pacesSuffix is what the name of the file with learned paces has beside that of the dump.
const pacesSuffix = ".paces"

// resumePaces begins with what an earlier process has learned of ranks. If the file is missing or damaged,
// they are learned anew.
func resumePaces(srv *extproc.Server, path string, log *slog.Logger) {
	f, err := os.Open(path)
	if err == nil {
		defer f.Close() //nolint:errcheck // nothing was written to it
		err = srv.Paces.Read(f, time.Now())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("the learned speeds of workers cannot be used and are learned anew: nothing has to be done", logkey.Path, path, logkey.Err, err)
	}
}

// removeTorn removes the partial files of processes that were killed during a dump.
func removeTorn(path string) {
	entries, _ := os.ReadDir(filepath.Dir(path)) // the next dump reports a folder that does not exist
	for _, e := range entries {
		drawn, torn := strings.CutPrefix(e.Name(), "."+filepath.Base(path)+".")
		if torn && strings.Trim(drawn, "0123456789") == "" { // other names belong to another dump
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
	defer f.Close() //nolint:errcheck // nothing was written to it
	return kvindex.ReadDump(f)
}

// dumpRest sets the shortest pause after a dump, as a multiple of the time that the dump
// took.
const dumpRest = 9

// keepIndex writes the dump at intervals.
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

// saveIndex replaces the dump: a reader sees the old one or the new one. It returns how
// long the dump took, without the wait for another dump: that one may go to a client that
// reads slowly.
func (p *plugin) saveIndex() (took time.Duration) {
	path := p.cfg.Index.Dump
	if path == "" {
		return 0
	}
	p.dumping <- struct{}{}
	defer func() { <-p.dumping }()
	began := time.Now()
	err := wholefile.ReplaceWith(path, 0o600, p.writeIndex)
	if e := wholefile.ReplaceWith(path+pacesSuffix, 0o600, p.server.Paces.Write); err == nil {
		err = e
	}
	took = time.Since(began)
	if err != nil {
		p.told.Set(trouble.IndexDump, "", fmt.Sprintf("The index was not dumped to %s: %v", path, err), began)
		p.tele.Instruments.IndexDump("failed")
		p.log.Warn("the index could not be dumped, so a restart would use an older dump or none: check that this user may write to the folder of index.dump, and that its disk is not full", logkey.Path, path, logkey.Err, err)
		return took
	}
	p.told.Take(trouble.IndexDump, "")
	p.tele.Instruments.IndexDump("ok")
	p.log.Debug("the index was dumped", logkey.Path, path, logkey.Took, took)
	return took
}

// dumpIndex writes a dump to w. It first waits for any dump that is in progress.
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
