package etcd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// script is a store that answers as the test says, and a sink that shows the events it
// received.
type script struct {
	mu        sync.Mutex
	cluster   uint64
	revision  int64
	kvs       []*mvccpb.KeyValue // sorted by key
	past      []snapshot         // of the present history, the oldest first
	away      bool               // the store does not answer
	compacted bool               // everything before the newest revision is compacted
	responses chan clientv3.WatchResponse
	answering bool // requested progress is sent
	asked     []string
	reducer   discovery.Reducer
	log       []string
}

// snapshot is what the store had from a revision on.
type snapshot struct {
	revision int64
	kvs      []*mvccpb.KeyValue
}

// keep records what the store has now, in the same history or another.
func (s *script) keep(another bool) {
	if another {
		s.past = nil
	}
	s.past = append(s.past, snapshot{s.revision, slices.Clone(s.kvs)})
}

// held returns what the store had at a revision. Before the first snapshot that is
// those of its keys that were written until then: no test says more about that time.
func (s *script) held(at int64) []*mvccpb.KeyValue {
	kvs := s.kvs
	if at != 0 && len(s.past) > 0 {
		kvs = s.past[0].kvs
		for _, p := range s.past {
			if p.revision <= at {
				kvs = p.kvs
			}
		}
	}
	return kvs
}

func (s *script) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	op := clientv3.OpGet(key, opts...)
	res := &clientv3.GetResponse{Header: &pb.ResponseHeader{ClusterId: s.cluster, Revision: s.revision}}
	switch {
	case op.Rev() > s.revision:
		return nil, rpctypes.ErrFutureRev
	case op.Rev() != 0 && s.compacted && (op.Rev() < s.revision || len(s.past) < 2):
		return nil, rpctypes.ErrCompacted
	}
	for _, kv := range s.held(op.Rev()) {
		k := string(kv.Key)
		if k == key || k > key && k < string(op.RangeBytes()) {
			if op.Rev() == 0 || kv.ModRevision <= op.Rev() {
				res.Kvs = append(res.Kvs, kv)
			}
		}
	}
	res.Count = int64(len(res.Kvs))
	if op.IsSortSet() {
		slices.SortFunc(res.Kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.ModRevision, a.ModRevision) })
	}
	if op.Limit() != 0 && res.Count > op.Limit() {
		res.Kvs, res.More = res.Kvs[:op.Limit()], true
	}
	if !op.IsKeysOnly() {
		s.asked = append(s.asked, fmt.Sprintf("%s at %d: %d of %d", strings.ReplaceAll(key, "\x00", "+"), op.Rev(), len(res.Kvs), len(s.kvs)))
	}
	return res, nil
}

func (s *script) Explain(_ context.Context, err error) error { return err }

func (s *script) NewWatcher() watcher { return s }

func (s *script) Watch(ctx context.Context, _ string, opts ...clientv3.OpOption) clientv3.WatchChan {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := clientv3.OpGet("x", opts...)
	asks := ""
	for name, is := range map[string]bool{"previous values": op.IsPrevKV(), "progress": op.IsProgressNotify(), "fragments": op.IsFragment()} {
		if !is {
			asks += ", without " + name
		}
	}
	s.log = append(s.log, fmt.Sprintf("watch from %d%s", op.Rev(), asks))
	in, out := make(chan clientv3.WatchResponse), make(chan clientv3.WatchResponse)
	s.responses = in
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case res, ok := <-in:
				if !ok {
					return
				}
				select {
				case out <- res:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (s *script) RequestProgress(context.Context) error {
	s.mu.Lock()
	in, answer, res := s.responses, s.answering, s.note(s.revision)
	s.mu.Unlock()
	if answer {
		in <- res
	}
	return nil
}

func (s *script) Close() error { return nil }

func (s *script) note(revision int64) clientv3.WatchResponse {
	return clientv3.WatchResponse{Header: &pb.ResponseHeader{ClusterId: s.cluster, Revision: revision}}
}

func (s *script) Send(ev discovery.Event) error {
	if several, ok := ev.(discovery.Batches); ok {
		for _, b := range several {
			if err := s.Send(b); err != nil {
				return err
			}
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.reducer.Apply(ev)
	switch ev := ev.(type) {
	case discovery.List:
		s.log = append(s.log, fmt.Sprintf("list epoch %s revision %d, %d entries", ev.Epoch, ev.Revision, len(ev.Entries)))
	case discovery.Batch:
		s.log = append(s.log, fmt.Sprintf("batch revision %d, %d ops", ev.Revision, len(ev.Ops)))
	case discovery.Broken:
		s.log = append(s.log, "broken: "+ev.Reason)
	default:
	}
	return err
}

// hold applies an event to what the store has.
func (s *script) hold(ev *clientv3.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = max(s.revision, ev.Kv.ModRevision)
	s.kvs = slices.DeleteFunc(s.kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == string(ev.Kv.Key) })
	if ev.Type != clientv3.EventTypeDelete {
		s.kvs = append(s.kvs, ev.Kv)
	}
	s.keep(false)
}

// flush returns the log and the reducer.
func (s *script) flush() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(append(s.log, ""), "\n") + s.reducer.String()
	s.log = nil
	return text
}

// kv reads "KEY mod=N version=N" and either "id=N [port=N]" or "value=TEXT".
func scriptKV(t *testing.T, words []string) *mvccpb.KeyValue {
	t.Helper()
	kv := &mvccpb.KeyValue{Key: []byte(folder(DefaultPrefix) + words[0])}
	var id worker.ID
	port := uint64(0)
	for _, word := range words[1:] {
		key, val, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseUint(val, 10, 64)
		switch key {
		case "mod":
			kv.ModRevision = int64(n)
		case "version":
			kv.Version = int64(n)
		case "id":
			id = worker.ID(n)
		case "port":
			port = n
		case "value":
			kv.Value = []byte(val)
		case "size":
			kv.Value = []byte(strings.Repeat(" ", int(n)))
		default:
			require.FailNow(t, "unknown word", word)
		}
	}
	if id != 0 {
		if port == 0 {
			port = 8000 + uint64(id)
		}
		rec := workerAt(t, worker.Decode, fmt.Sprintf("10.0.0.1:%d", port))
		rec.ID = id
		line, err := record.Marshal(&rec)
		require.NoError(t, err)
		kv.Value = line
	}
	return kv
}

func workerAt(t *testing.T, role worker.Role, addr string) worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint(addr)
	require.NoError(t, err)
	return worker.Worker{
		Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
		Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998},
	}
}

// Verbs of testdata/source. Each prints the events that the sink received, and its
// reducer. The follower has its default times, and pages of two keys.
//
//	new                          a new source and an empty reducer
//	store [cluster=N] rev=N [wiped]  what etcd has; another history if wiped or if the revision is lower; a line is "KEY mod=N version=N" and "id=N [port=N]", "value=TEXT" or "size=N"
//	run                          run the source, also again after it has returned
//	respond                      one watch response; a line is "put KEY …" as above, or "delete KEY mod=N [version=N]"
//	note rev=N                   a progress note
//	cancel [compacted=N] [reason=TEXT]  the watch is cancelled
//	close                        the watch's channel is closed
//	away, back                   etcd does not answer; etcd answers again
//	answering                    requested progress is sent from now on
//	pages                        prints what was requested since the last pages
//	compacted                    only the newest revision can be read from now on
//	pass D                       time passes
func TestSourceScenarios(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *script
		var src *Source
		stop := func() {}
		datadriven.RunTest(t, "testdata/source", func(t *testing.T, d *datadriven.TestData) string {
			text := ""
			send := func(res clientv3.WatchResponse) {
				synctest.Wait()
				select {
				case s.responses <- res:
				case <-time.After(time.Minute):
					text = "nobody listens\n"
				}
			}
			switch d.Cmd {
			case "new":
				stop()
				s = &script{}
				src = newSource(s, 1, Config{PageSize: 2}.withDefaults())
				return ""
			case "store":
				s.mu.Lock()
				before := s.revision
				s.cluster, s.revision = 10, 0
				d.MaybeScanArgs(t, "cluster", &s.cluster)
				d.ScanArgs(t, "rev", &s.revision)
				s.kvs = nil
				for line := range strings.Lines(d.Input) {
					s.kvs = append(s.kvs, scriptKV(t, strings.Fields(line)))
				}
				slices.SortFunc(s.kvs, func(a, b *mvccpb.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
				s.keep(d.HasArg("wiped") || s.revision < before)
				s.mu.Unlock()
				return ""
			case "run":
				stop()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				stop = func() { cancel(); <-done }
				_ = s.Send(discovery.Begin{})
				go func() {
					defer close(done)
					err := src.Run(ctx, s)
					s.mu.Lock()
					s.log = append(s.log, fmt.Sprintf("returned: %v", err))
					s.mu.Unlock()
				}()
			case "respond":
				res := s.note(s.revision)
				for line := range strings.Lines(d.Input) {
					words := strings.Fields(line)
					kv := scriptKV(t, words[1:])
					ev := &clientv3.Event{Kv: kv}
					if words[0] == "delete" {
						ev.Type = clientv3.EventTypeDelete
						if kv.Version != 0 {
							ev.PrevKv = &mvccpb.KeyValue{Key: kv.Key, Version: kv.Version}
						}
					}
					res.Events = append(res.Events, ev)
					s.hold(ev)
				}
				send(res)
			case "note":
				res := s.note(0)
				d.ScanArgs(t, "rev", &res.Header.Revision)
				send(res)
			case "cancel":
				res := s.note(0)
				res.Canceled = true
				d.MaybeScanArgs(t, "compacted", &res.CompactRevision)
				res.CancelReason = strings.TrimSpace(d.Input)
				send(res)
			case "close":
				synctest.Wait()
				close(s.responses)
			case "away", "back":
				s.mu.Lock()
				s.away = d.Cmd == "away"
				s.mu.Unlock()
				return ""
			case "answering":
				s.mu.Lock()
				s.answering = true
				s.mu.Unlock()
				return ""
			case "pages":
				s.mu.Lock()
				defer s.mu.Unlock()
				text = strings.Join(append(s.asked, ""), "\n")
				s.asked = nil
				return text
			case "compacted":
				s.mu.Lock()
				s.compacted = true
				s.mu.Unlock()
				return ""
			case "pass":
				by, err := time.ParseDuration(d.CmdArgs[0].Key)
				require.NoError(t, err)
				<-time.After(by)
			default:
				d.Fatalf(t, "verb %q is unknown", d.Cmd)
			}
			return text + s.flush()
		})
		stop()
	})
}
