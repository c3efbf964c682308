package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Pace says how a [Source] asks its apiserver. A field that is 0 has its default.
type Pace struct {
	// Least and Most bound the pause before a question that has failed is asked again. It
	// doubles from one to the other; up to as much again is added at random, so that many
	// plugins do not ask at once. Defaults: 200 ms and 5 s. Higher values spare an apiserver
	// in trouble, and pods are known again later.
	Least, Most time.Duration
	// Answer is how long the apiserver may take to begin an answer; a list may take four
	// times that. Default 30 s. With a higher value an apiserver that hangs is left later.
	Answer time.Duration
	// Silence is how long a watch may tell nothing, not even a bookmark, which an
	// apiserver sends each minute. The watch is then begun again where it was. Default 3 min.
	// With a higher value pods that have left stay known for longer if a watch hangs.
	Silence time.Duration
	// Page is how many objects a page of a list has. Default 250.
	Page int64
}

func (p Pace) withDefaults() Pace {
	p.Least = cmp.Or(p.Least, 200*time.Millisecond)
	p.Most = cmp.Or(p.Most, 5*time.Second)
	p.Answer = cmp.Or(p.Answer, 30*time.Second)
	p.Silence = cmp.Or(p.Silence, 3*time.Minute)
	p.Page = cmp.Or(p.Page, 250)
	return p
}

// follower lists and watches one resource, and tells what comes of it. It is the reflector's
// view of the apiserver and the reflector's store at once.
//
// The reflector (client-go v0.36) asks for a watch that begins with all objects
// (sendInitialEvents); if that is refused, it lists. In both cases it calls Replace. It
// goes on with a watch that has ended where it was, and lists again when the apiserver
// says that the version has expired, or answers otherwise than expected. It tells none of
// this but the last: so the follower watches its questions.
type follower struct {
	resource dynamic.ResourceInterface
	of       resource
	by       query
	fields   string
	pace     Pace
	tell     func(input) // passes an input on, unless the run has ended

	initial bool // the last question that may be followed by Replace was a watch
}

var (
	_ cache.ListerWatcherWithContext = (*follower)(nil)
	_ cache.ReflectorStore           = (*follower)(nil)
)

// run follows the resource until ctx ends.
func (f *follower) run(ctx context.Context) {
	quiet := logr.Discard()
	r := cache.NewReflectorWithOptions(f, nil, f, cache.ReflectorOptions{
		Name: f.of.String(), Logger: &quiet,
		Backoff: &wait.Backoff{Duration: f.pace.Least, Factor: 2, Jitter: 1, Steps: 16, Cap: f.pace.Most},
	})
	r.WatchListPageSize = f.pace.Page
	r.RunWithContext(klog.NewContext(ctx, quiet))
}

// List implements cache.Lister, which the reflector does not call.
func (f *follower) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch implements cache.Watcher, which the reflector does not call.
func (f *follower) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

func (f *follower) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	f.initial = false
	o.LabelSelector, o.FieldSelector = f.by.selector, f.fields
	ctx, cancel := context.WithTimeoutCause(ctx, 4*f.pace.Answer, fmt.Errorf("no answer within %s", 4*f.pace.Answer))
	defer cancel()
	list, err := f.resource.List(ctx, o)
	if err != nil {
		cause := context.Cause(ctx)
		if cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) { // the reflector lists the newest version then
			f.failed(verbList, err)
		}
		return nil, err
	}
	for i := range list.Items {
		trim(list.Items[i].Object)
	}
	return list, nil
}

func (f *follower) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	if initial {
		f.initial = true
	}
	o.LabelSelector, o.FieldSelector = f.by.selector, f.fields
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(f.pace.Answer, func() { cancel(fmt.Errorf("no answer within %s", f.pace.Answer)) })
	w, err := f.resource.Watch(ctx, o)
	if !late.Stop() && err == nil {
		w.Stop()
		err = context.Cause(ctx)
	}
	if err != nil {
		cause := context.Cause(ctx)
		if cause != nil {
			err = cause
		}
		cancel(nil)
		// An apiserver that does not know the question is asked for a list instead.
		if !initial || !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			f.failed(verbWatch, err)
		}
		return nil, err
	}
	t := newTap(f, w, initial, func() { cancel(nil) })
	go t.run()
	return t, nil
}

// failed tells that a question was not answered, unless the run has ended.
func (f *follower) failed(verb string, err error) {
	if !errors.Is(err, context.Canceled) {
		f.tell(broken{of: f.of, verb: verb, why: f.reason(err)})
	}
}

// reason says why a question was not answered, in words that stay the same as long as the
// reason does: no port of this machine's is in them.
func (f *follower) reason(err error) string {
	var op *net.OpError
	var asked *url.Error
	switch {
	case apierrors.IsNotFound(err) && f.of == pools:
		return "the cluster has no such resource: expected the CustomResourceDefinition of InferencePool (" + cut(err.Error()) + ")"
	case errors.As(err, &op) && op.Op == "dial" && op.Addr != nil:
		return "the apiserver at " + op.Addr.String() + ": " + last(op.Err)
	case errors.As(err, &op):
		return "the apiserver: " + last(op.Err)
	case errors.As(err, &asked):
		return "the apiserver: " + cut(asked.Err.Error())
	}
	return cut(err.Error())
}

// last is the innermost text of an error of the system.
func last(err error) string {
	text := err.Error()
	return cut(text[strings.LastIndex(text, ": ")+1:])
}

func cut(s string) string {
	const most = 300
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// trim removes what is not read of an object: a pod's object is large, and thousands of
// them are held while they are listed.
func trim(object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	delete(metadata, "managedFields")
	delete(metadata, "ownerReferences")
	if object["kind"] != "Pod" {
		return
	}
	spec, _ := object["spec"].(map[string]any)
	kept := map[string]any{"readinessGates": spec["readinessGates"]}
	for _, field := range []string{"containers", "initContainers"} {
		containers, _ := spec[field].([]any)
		for i, c := range containers {
			one, _ := c.(map[string]any)
			containers[i] = map[string]any{"ports": one["ports"], "restartPolicy": one["restartPolicy"]}
		}
		kept[field] = containers
	}
	object["spec"] = kept
	status, _ := object["status"].(map[string]any)
	for field := range status {
		if field != "podIP" && field != "phase" && field != "conditions" {
			delete(status, field)
		}
	}
}

// tap passes the events of a watch on, trimmed, and tells what the reflector does not.
type tap struct {
	f       *follower
	from    watch.Interface
	out     chan watch.Event
	done    chan struct{}
	stop    func()
	initial bool
}

func newTap(f *follower, from watch.Interface, initial bool, cancel func()) *tap {
	t := &tap{f: f, from: from, out: make(chan watch.Event), done: make(chan struct{}), initial: initial}
	t.stop = sync.OnceFunc(func() {
		close(t.done)
		cancel()
	})
	return t
}

// Stop ends the watch; it may be called more than once.
func (t *tap) Stop() { t.stop() }

// ResultChan returns the events. It is closed when the watch has ended.
func (t *tap) ResultChan() <-chan watch.Event { return t.out }

// run passes events on until the watch ends.
func (t *tap) run() {
	defer close(t.out)
	defer t.stop()
	defer t.from.Stop()
	// The client answers with a closed watch if the connection has broken before the
	// answer.
	select {
	case ev, ok := <-t.from.ResultChan():
		if !ok {
			t.f.failed(verbWatch, errClosed)
			return
		}
		t.resumed()
		if !t.pass(ev) {
			return
		}
	default:
		t.resumed()
	}
	silence := time.NewTimer(t.f.pace.Silence)
	defer silence.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-silence.C:
			return
		case ev, ok := <-t.from.ResultChan():
			if !ok || !t.pass(ev) {
				return
			}
			silence.Reset(t.f.pace.Silence)
		}
	}
}

var errClosed = errors.New("the connection was closed before the answer")

// resumed tells that the watch goes on where it was. One that begins with all objects is
// told by Replace.
func (t *tap) resumed() {
	if !t.initial {
		t.f.tell(resumed{t.f.of})
	}
}

// pass passes one event on. It returns false if the watch is to end.
func (t *tap) pass(ev watch.Event) bool {
	switch o := ev.Object.(type) {
	case *unstructured.Unstructured:
		if ev.Type != watch.Bookmark {
			trim(o.Object)
		}
	default:
		if ev.Type == watch.Error {
			err := apierrors.FromObject(ev.Object)
			t.f.tell(broken{of: t.f.of, verb: verbWatch, place: !apierrors.IsTooManyRequests(err), why: cut(err.Error())})
		}
	}
	select {
	case t.out <- ev:
		return true
	case <-t.done:
		return false
	}
}

// Add implements cache.ReflectorStore.
func (f *follower) Add(o any) error { return f.put(o) }

// Update implements cache.ReflectorStore.
func (f *follower) Update(o any) error { return f.put(o) }

func (f *follower) put(o any) error {
	object, err := objectOf(o)
	if err != nil {
		return err
	}
	if f.of == pools {
		f.tell(poolPut{readPool(object)})
	} else {
		f.tell(podPut{f.of, f.by, podOf(object)})
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *follower) Delete(o any) error {
	object, err := objectOf(o)
	if err != nil {
		return err
	}
	if f.of == pools {
		f.tell(poolGone{})
	} else {
		f.tell(podGone{f.of, f.by, podOf(object)})
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *follower) Replace(items []any, _ string) error {
	ps, listed := poolsListed{watch: f.initial}, podsListed{of: f.of, by: f.by, watch: f.initial}
	for _, o := range items {
		object, err := objectOf(o)
		if err != nil {
			return err
		}
		if f.of == pools {
			ps.pools = append(ps.pools, readPool(object))
		} else {
			listed.pods = append(listed.pods, podOf(object))
		}
	}
	if f.of == pools {
		f.tell(ps)
	} else {
		f.tell(listed)
	}
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (f *follower) Resync() error { return nil }

func objectOf(o any) (map[string]any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("kubernetes: an object of type %T: expected one of the dynamic client's", o)
	}
	return u.Object, nil
}

func readPool(o map[string]any) object[*Pool] {
	p, err := poolOf(o)
	if err != nil {
		return object[*Pool]{p, strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	return object[*Pool]{p, ""}
}
