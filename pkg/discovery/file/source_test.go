package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sinkTape is a sink that keeps the events as texts.
type sinkTape struct {
	events chan string
	refuse error
}

func (s *sinkTape) Send(ev discovery.Event) error {
	switch ev := ev.(type) {
	case discovery.List:
		var ids []string
		for _, e := range ev.Entries {
			ids = append(ids, e.Key)
		}
		s.events <- fmt.Sprintf("list %d: %s", ev.Revision, strings.Join(ids, " "))
	case discovery.Broken:
		s.events <- "broken: " + ev.Reason
	default:
		s.events <- fmt.Sprintf("%T", ev)
	}
	return s.refuse
}

func (s *sinkTape) all() []string {
	var out []string
	for {
		select {
		case e := <-s.events:
			out = append(out, e)
		default:
			return out
		}
	}
}

// next waits, in real time, for the next event.
func (s *sinkTape) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-s.events:
		return e
	case <-time.After(20 * time.Second):
		require.FailNow(t, "nothing came within 20 s")
		return ""
	}
}

func newTape() *sinkTape { return &sinkTape{events: make(chan string, 1000)} }

func workersFile(ids ...int) string {
	if len(ids) == 0 {
		return "workers: []\n"
	}
	var b strings.Builder
	b.WriteString("workers:\n")
	for _, id := range ids {
		fmt.Fprintf(&b, "- {id: %d, role: decode, engine: sglang, models: [m], endpoint: \"10.0.0.%d:1\", block_size: 16}\n", id, id)
	}
	return b.String()
}

func put(t *testing.T, path, text string) {
	t.Helper()
	tmp := path + ".tmp"
	require.NoError(t, os.WriteFile(tmp, []byte(text), 0o600))
	require.NoError(t, os.Rename(tmp, path))
}

// polled runs a source in a synctest bubble. Only the test sends notifications.
type polled struct {
	*sinkTape
	path   string
	events chan fsnotify.Event
	err    chan error
}

func startPolled(t *testing.T) *polled {
	t.Helper()
	p := &polled{sinkTape: newTape(), path: filepath.Join(t.TempDir(), "w.yaml"), events: make(chan fsnotify.Event), err: make(chan error, 1)}
	s, err := New(Config{Path: p.path})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.err <- s.loop(ctx, p, p.events, nil, func() {})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p
}

// after lets time pass, and returns the events that came meanwhile.
func (p *polled) after(d time.Duration) []string {
	<-time.After(d)
	synctest.Wait()
	return p.all()
}

const onePoll = 2*time.Second + 20*time.Millisecond

func TestPollingAloneSeesEveryKindOfChangeAndSaysEachOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPolled(t)
		missing := "broken: stat " + p.path + ": no such file or directory"
		require.Equal(t, []string{missing}, p.after(onePoll))
		require.Empty(t, p.after(10*onePoll), "the same reason is not sent again")

		put(t, p.path, workersFile(1, 2))
		require.Equal(t, []string{"list 1: 1 2"}, p.after(onePoll))
		require.Empty(t, p.after(10*onePoll), "the same file is not sent again")

		put(t, p.path, workersFile(1))
		require.Equal(t, []string{"list 2: 1"}, p.after(onePoll))

		put(t, p.path, "workers:\n- id: 1\n  rol: decode\n")
		require.Len(t, p.after(onePoll), 1)
		require.Empty(t, p.after(10*onePoll))

		put(t, p.path, workersFile(1))
		require.Equal(t, []string{"list 3: 1"}, p.after(onePoll), "the same set is fresh again")

		require.NoError(t, os.Remove(p.path))
		require.Equal(t, []string{missing}, p.after(onePoll), "a vanished file is not an empty one")

		put(t, p.path, workersFile(1))
		require.Equal(t, []string{"list 4: 1"}, p.after(onePoll))

		put(t, p.path, "")
		got := p.after(onePoll)
		require.Len(t, got, 1)
		require.Contains(t, got[0], "broken: "+p.path+":1: no workers in it", "nor is one with nothing in it")

		put(t, p.path, workersFile())
		require.Equal(t, []string{"list 5: "}, p.after(onePoll), "an empty list that is written is one")
	})
}

func TestABadFileIsReportedWithTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPolled(t)
		put(t, p.path, "workers:\n- id: 1\n  rol: decode\n  dp_size: x\n")
		got := p.after(onePoll)
		require.Len(t, got, 1)
		require.Contains(t, got[0], p.path+`:3: worker 1: rol: there is no such key`)
		require.Contains(t, got[0], "; "+p.path+`:4: worker 1: dp_size: "x": expected a decimal number`)
	})
}

func TestAFileIsNotReadWhileItIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPolled(t)
		put(t, p.path, workersFile(1, 2, 3))
		require.Equal(t, []string{"list 1: 1 2 3"}, p.after(onePoll))

		// A writer truncates the file and then writes on. The first part alone would be
		// valid, and worker 3 would be gone.
		whole := workersFile(1, 2, 4)
		half := strings.Index(whole, "- {id: 4")
		written := fsnotify.Event{Name: p.path, Op: fsnotify.Write}
		require.NoError(t, os.WriteFile(p.path, []byte(whole[:half]), 0o600))
		p.events <- written
		require.Empty(t, p.after(19*time.Millisecond))
		require.NoError(t, os.WriteFile(p.path, []byte(whole), 0o600))
		p.events <- written
		require.Empty(t, p.after(19*time.Millisecond))
		require.Equal(t, []string{"list 2: 1 2 4"}, p.after(time.Millisecond))
	})
}

func TestAWriterThatWasNotNoticedIsWaitedForToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPolled(t)
		put(t, p.path, workersFile(1, 2, 3))
		require.Equal(t, []string{"list 1: 1 2 3"}, p.after(time.Second))
		whole := workersFile(1, 2, 44)
		half := strings.Index(whole, "- {id: 44")
		require.NoError(t, os.WriteFile(p.path, []byte(whole[:half]), 0o600))
		require.Empty(t, p.after(time.Second+10*time.Millisecond)) // the last poll was 10 ms ago
		require.NoError(t, os.WriteFile(p.path, []byte(whole), 0o600))
		require.Equal(t, []string{"list 2: 1 2 44"}, p.after(30*time.Millisecond))
	})
}

func TestAFileThatNeverRestsIsReadAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPolled(t)
		put(t, p.path, workersFile(1))
		require.Equal(t, []string{"list 1: 1"}, p.after(time.Second))
		put(t, p.path, workersFile(1, 2))
		var got []string
		for range 300 {
			p.events <- fsnotify.Event{Name: p.path, Op: fsnotify.Write}
			got = append(got, p.after(10*time.Millisecond)...)
		}
		require.Equal(t, []string{"list 2: 1 2"}, got)
	})
}

func TestEventsOfOtherFilesAndOfModesAreIgnored(t *testing.T) {
	s := &Source{cfg: Config{Path: "/x/w.yaml"}}
	for e, want := range map[fsnotify.Event]bool{
		{Name: "/x/w.yaml", Op: fsnotify.Write}:       true,
		{Name: "/x/w.yaml", Op: fsnotify.Rename}:      true,
		{Name: "/x/w.yaml", Op: fsnotify.Chmod}:       false,
		{Name: "/x/other.yaml", Op: fsnotify.Write}:   false,
		{Name: "/x/..data", Op: fsnotify.Create}:      true,
		{Name: "/x/.w.yaml.swp", Op: fsnotify.Create}: false,
	} {
		require.Equal(t, want, s.concerns(e), "%s", e)
	}
}

func TestASecondRunSendsTheFullSetFirstAndCountsOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	put(t, path, workersFile(1))
	s, err := New(Config{Path: path})
	require.NoError(t, err)
	for _, want := range []string{"list 1: 1", "list 2: 1"} {
		tape := newTape()
		tape.refuse = errors.New("refused for the test")
		require.ErrorIs(t, s.Run(t.Context(), tape), tape.refuse)
		require.Equal(t, []string{want}, tape.all())
	}
}

func TestNotificationsAreSeenLongBeforeThePoll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	put(t, path, workersFile(1))
	tape := startReal(t, path)
	require.Equal(t, "list 1: 1", tape.next(t))

	put(t, path, workersFile(1, 2)) // an atomic rename
	require.Equal(t, "list 2: 1 2", tape.next(t))

	require.NoError(t, os.WriteFile(path, []byte(workersFile(3)), 0o600)) // written in place
	require.Equal(t, "list 3: 3", tape.next(t))

	require.NoError(t, os.Remove(path))
	require.Contains(t, tape.next(t), "no such file")

	put(t, path, workersFile(3))
	require.Equal(t, "list 4: 3", tape.next(t))

	w := &worker.Worker{
		ID: 9, Role: worker.Decode, Engine: worker.SGLang, Endpoint: mustEndpoint(t, "10.0.0.9:1"),
		Models: []string{"m"}, DPSize: 1, BlockSize: 1,
	}
	require.NoError(t, Write(path, []*worker.Worker{w}))
	require.Equal(t, "list 5: 9", tape.next(t))
}

// Kubernetes mounts a ConfigMap as links: w.yaml → ..data/w.yaml, and ..data → a folder
// named by date. It changes the ConfigMap by renaming a new link to ..data. No event
// names w.yaml.
func TestAConfigMapsLinksAreSeenToSwap(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	mount := func(version string, ids ...int) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, version, "w.yaml"), []byte(workersFile(ids...)), 0o600))
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	mount("..2026_01_01", 1)
	require.NoError(t, os.Symlink("..data/w.yaml", path))
	tape := startReal(t, path)
	require.Equal(t, "list 1: 1", tape.next(t))
	mount("..2026_01_02", 1, 2)
	require.Equal(t, "list 2: 1 2", tape.next(t))
}

// startReal runs a source with real notifications. It polls so seldom that only a
// notification can show a change.
func startReal(t *testing.T, path string) *sinkTape {
	t.Helper()
	s, err := New(Config{Path: path, Poll: time.Hour})
	require.NoError(t, err)
	tape := newTape()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, tape) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return tape
}

func TestAFolderThatComesLaterIsWatchedFromThenOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(dir, "w.yaml")
	s, err := New(Config{Path: path, Poll: 50 * time.Millisecond})
	require.NoError(t, err)
	tape := newTape()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, tape) }()
	require.Contains(t, tape.next(t), "no such file")
	require.NoError(t, os.Mkdir(dir, 0o700))
	put(t, path, workersFile(1))
	require.Equal(t, "list 1: 1", tape.next(t))
	cancel()
	require.NoError(t, <-done)
}

func TestAPathThatIsNoFileIsRefusedWithoutOpeningIt(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Config{Path: dir})
	require.NoError(t, err)
	_, _, err = s.read()
	require.ErrorContains(t, err, dir+": expected a file, found d")
}

func TestConfigFaultsAreNamed(t *testing.T) {
	_, err := New(Config{Poll: -1})
	require.ErrorContains(t, err, "path: expected the workers file")
	require.ErrorContains(t, err, "poll -1ns")
}

// The whole way: a file, the view, and what a request reads.
func TestAViewOverAFileServesTheLastGoodSetMarkedStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	put(t, path, workersFile(1, 2))
	src, err := New(Config{Path: path})
	require.NoError(t, err)
	v, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "file", Source: src}}})
	require.NoError(t, err)
	heard := make(chan discovery.Change, 100)
	v.Subscribe(func(_, _ *worker.Snapshot, c discovery.Change) { heard <- c })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	require.NoError(t, v.WaitReady(ctx))
	require.Equal(t, []worker.ID{1, 2}, (<-heard).Joined)
	require.False(t, v.Load().Stale())

	put(t, path, "workers: [")
	require.True(t, (<-heard).IsZero())
	require.True(t, v.Load().Stale())
	require.NotNil(t, v.Load().Worker(2))
	require.Contains(t, v.Status().Sources[0].LastError, path+":1: ")

	put(t, path, workersFile(1, 3))
	c := <-heard
	require.Equal(t, discovery.Change{Joined: []worker.ID{3}, Left: []worker.ID{2}}, c)
	require.False(t, v.Load().Stale())
	cancel()
	require.NoError(t, <-done)
}
