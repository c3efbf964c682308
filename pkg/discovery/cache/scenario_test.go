package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/internal/wholefile"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/source. Time is the time of the synctest bubble. Each verb prints
// what the sink has received meanwhile, what it refused, and what was logged.
//
//	new file=<none|good|damaged|empty|folder> [patience=<d>] [age=<d>] [identity=<text>] [owner=<text>]   good: workers 1 and 2
//	run                    runs the source; also again after it has ended
//	list revision=<n> [epoch=<e>] [workers=(id,…)]   the inner source sends a listing
//	batch revision=<n> [put=(id,…)] [del=(id,…)]     … a batch
//	begin                                            … a Begin
//	broken <reason>                                  … a Broken
//	end [<error>]          the inner source returns
//	sleep <d>              time passes
//	stop                   the context ends
//	clear                  removes what is at the file's path
//	file                   the workers in the file
//
// A worker's endpoint is computed from its id modulo 100: worker 103 is worker 3 after
// it came back.
func TestSourceScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/source", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			var s scenario
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.do(t, d) })
			if s.cancel != nil {
				s.cancel()
			}
		})
	})
}

// temporary matches the name of a file that is being written.
var temporary = regexp.MustCompile(`[^ ]*/made/\.workers\.yaml\.\d+`)

type scenario struct {
	path   string
	src    *Source
	inner  *script
	cancel context.CancelFunc
	ended  chan error
	out    syncbuf.Buffer // what the verb prints
	log    syncbuf.Buffer
	set    discovery.Reducer // the set of the sink
}

func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	switch d.Cmd {
	case "new":
		s.create(t, d)
	case "run":
		s.run(t)
	case "list":
		l := discovery.List{Epoch: "e1", Revision: number(t, d, "revision")}
		d.MaybeScanArgs(t, "epoch", &l.Epoch)
		for _, id := range ids(t, d, "workers") {
			l.Entries = append(l.Entries, entry(id))
		}
		s.send(l)
	case "batch":
		b := discovery.Batch{Revision: number(t, d, "revision")}
		for _, id := range ids(t, d, "put") {
			b.Ops = append(b.Ops, discovery.Put(entry(id)))
		}
		for _, id := range ids(t, d, "del") {
			b.Ops = append(b.Ops, discovery.Delete(key(id), 0))
		}
		s.send(b)
	case "begin":
		s.send(discovery.Begin{})
	case "broken":
		s.send(discovery.Broken{Reason: words(d)})
	case "end":
		var err error
		if text := words(d); text != "" {
			err = errors.New(text)
		}
		s.inner.do <- func(discovery.Sink) (bool, error) { return false, err }
	case "sleep":
		wait, err := time.ParseDuration(words(d))
		require.NoError(t, err)
		<-time.After(wait)
	case "stop":
		s.cancel()
	case "clear":
		require.NoError(t, os.Remove(s.path))
	case "file":
		return s.file()
	default:
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	synctest.Wait()
	select {
	case err := <-s.ended:
		fmt.Fprintf(&s.out, "run ended: %v\n", err)
		s.cancel()
		s.ended = nil
	default:
	}
	_, _ = io.WriteString(&s.out, temporary.ReplaceAllString(strings.ReplaceAll(s.log.String(), s.path, "FILE"), "TEMPORARY"))
	s.log.Reset()
	if s.out.String() == "" {
		return "ok\n"
	}
	return s.out.String()
}

func (s *scenario) create(t *testing.T, d *datadriven.TestData) {
	s.path = filepath.Join(t.TempDir(), "made", "workers.yaml")
	var have, patience, age, identity, owner string
	d.MaybeScanArgs(t, "identity", &identity)
	d.MaybeScanArgs(t, "owner", &owner)
	d.ScanArgs(t, "file", &have)
	d.MaybeScanArgs(t, "patience", &patience)
	d.MaybeScanArgs(t, "age", &age)
	if have != "none" {
		require.NoError(t, os.MkdirAll(filepath.Dir(s.path), 0o755))
	}
	switch have {
	case "none":
	case "good":
		data, err := written(owner, []discovery.Entry{entry(1), entry(2)})
		require.NoError(t, err)
		require.NoError(t, wholefile.Replace(s.path, data))
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // later than the time of the bubble
		if age != "" {
			old, err := time.ParseDuration(age)
			require.NoError(t, err)
			at = time.Now().Add(-old)
		}
		require.NoError(t, os.Chtimes(s.path, at, at))
	case "damaged":
		require.NoError(t, os.WriteFile(s.path, []byte("workers:\n  - {id: 1, ro"), 0o644))
	case "empty":
		require.NoError(t, file.Write(s.path, nil))
	case "folder":
		require.NoError(t, os.Mkdir(s.path, 0o755))
	default:
		d.Fatalf(t, "unknown file %q", have)
	}
	cfg := Config{Path: s.path, Identity: identity, Logger: logger(&s.log)}
	if patience != "" {
		var err error
		cfg.Patience, err = time.ParseDuration(patience)
		require.NoError(t, err)
	}
	s.inner = newScript()
	cfg.Inner = s.inner
	var err error
	s.src, err = New(cfg)
	require.NoError(t, err)
	s.set = discovery.Reducer{}
}

func (s *scenario) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	ended := make(chan error, 1)
	s.ended = ended
	require.NoError(t, s.set.Apply(discovery.Begin{})) // as a view does
	go func() { ended <- s.src.Run(ctx, s) }()
}

// Send implements the sink.
func (s *scenario) Send(ev discovery.Event) error {
	fmt.Fprintf(&s.out, "sink: %s\n", text(ev))
	err := s.set.Apply(ev)
	if err != nil {
		fmt.Fprintf(&s.out, "  %v\n", err)
	}
	return err
}

// send makes the inner source send an event. It prints the answer to the inner source
// if that is not the sink's.
func (s *scenario) send(ev discovery.Event) {
	answered := make(chan error, 1)
	s.inner.do <- func(sink discovery.Sink) (bool, error) {
		answered <- sink.Send(ev)
		return true, nil
	}
	if err := <-answered; (err != nil) != strings.Contains(s.out.String(), "\n  ") {
		fmt.Fprintf(&s.out, "the inner source was answered: %v\n", err)
	}
}

func (s *scenario) file() string {
	info, err := os.Stat(s.path)
	if err != nil {
		return "none\n"
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return "not a file\n"
	}
	ws, err := record.ParseList("FILE", data)
	if err != nil {
		return err.Error() + "\n"
	}
	list := make([]string, len(ws))
	for i, w := range ws {
		list[i] = w.ID.String()
	}
	of := ""
	if first, _, _ := strings.Cut(string(data), "\n"); strings.HasPrefix(first, mark) {
		of = " of " + strings.TrimPrefix(first, mark)
	}
	return fmt.Sprintf("%s workers %s%s\n", info.Mode(), strings.Join(list, " "), of)
}

// script is an inner source that does what the test tells it.
type script struct {
	do chan func(discovery.Sink) (goOn bool, err error)
}

func newScript() *script {
	return &script{do: make(chan func(discovery.Sink) (bool, error))}
}

func (s *script) Run(ctx context.Context, sink discovery.Sink) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-s.do:
			if goOn, err := f(sink); !goOn {
				return err
			}
		}
	}
}

func text(ev discovery.Event) string {
	switch ev := ev.(type) {
	case discovery.Begin:
		return "begin"
	case discovery.List:
		var keys []string
		for _, e := range ev.Entries {
			keys = append(keys, e.Key)
		}
		return fmt.Sprintf("list epoch %s revision %d: %s", ev.Epoch, ev.Revision, strings.Join(keys, " "))
	case discovery.Batch:
		var ops []string
		for _, op := range ev.Ops {
			ops = append(ops, map[bool]string{true: "-", false: "+"}[op.Gone]+op.Key)
		}
		return fmt.Sprintf("batch revision %d: %s", ev.Revision, strings.Join(ops, " "))
	case discovery.Broken:
		return "broken: " + ev.Reason
	default:
		return fmt.Sprintf("%T", ev)
	}
}

func logger(b io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func key(id uint64) string { return fmt.Sprintf("k/%d", id) }

func entry(id uint64) discovery.Entry { return discovery.Entry{Key: key(id), Worker: made(id)} }

func made(id uint64) *worker.Worker {
	e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:30000", id%100))
	if err != nil {
		panic(err)
	}
	return &worker.Worker{
		ID: worker.ID(id), Role: worker.Decode, Engine: worker.SGLang, Endpoint: e,
		Models: []string{"m"}, DPSize: 1, BlockSize: 16,
	}
}

func number(t *testing.T, d *datadriven.TestData, arg string) (n uint64) {
	d.ScanArgs(t, arg, &n)
	return n
}

func ids(t *testing.T, d *datadriven.TestData, arg string) []uint64 {
	i := slices.IndexFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == arg })
	if i < 0 {
		return nil
	}
	out := make([]uint64, len(d.CmdArgs[i].Vals))
	for j := range out {
		d.CmdArgs[i].Scan(t, j, &out[j])
	}
	return out
}

// words returns the arguments of a verb as they are written.
func words(d *datadriven.TestData) string {
	var out []string
	for _, a := range d.CmdArgs {
		out = append(out, a.Key)
	}
	return strings.Join(out, " ")
}
