package capture

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Target is one engine of a system.
type Target struct {
	URL            string // without a path
	Events, Replay string // zmq addresses, empty if it publishes no events
	Host           string // address of SGLang's bootstrap server
	Bootstrap      int
}

// patience is how long to wait for an answer or a KV event.
const patience = 90 * time.Second

// runner sends a system's cases to its engines.
type runner struct {
	targets   []Target
	listeners []*listener // parallel to targets; nil for an engine without events
	handoff   string
	marker    func(seed int) []Request
	markers   int
}

// Run sends the cases to the engines and returns what was written down. The targets are
// the first engine and the second. They must be new, without earlier requests.
func (s System) Run(ctx context.Context, targets ...Target) (File, error) {
	r := &runner{targets: targets, marker: s.Marker}
	defer r.close()
	for _, t := range targets {
		var l *listener
		if t.Events != "" {
			var err error
			l, err = listen(ctx, t.Events)
			if err != nil {
				return nil, err
			}
		}
		r.listeners = append(r.listeners, l)
	}
	if err := r.join(ctx); err != nil {
		return nil, err
	}
	var f File
	for _, c := range s.Cases {
		sec, err := r.run(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("capture: %s: %s: %w", s.Name, c.Name, err)
		}
		f = append(f, sec)
	}
	for i, t := range targets {
		if t.Replay == "" || r.listeners[i] == nil {
			continue
		}
		lines, err := r.listeners[i].replayed(ctx, t.Replay)
		if err != nil {
			return nil, err
		}
		f = append(f, Section{Name: fmt.Sprintf("replay of the %s", Leg(i)), Lines: lines})
	}
	return f, nil
}

func (r *runner) close() {
	for _, l := range r.listeners {
		if l != nil {
			l.close()
		}
	}
}

// join sends markers until the events of every engine are heard. Events that an engine
// publishes before the subscription is in are lost.
func (r *runner) join(ctx context.Context) error {
	for range 50 {
		seed, err := r.mark(ctx)
		if err != nil {
			return err
		}
		heard := true
		for _, l := range r.listeners {
			if l != nil {
				_, err := l.until(ctx, seed, 2*time.Second)
				heard = heard && err == nil
			}
		}
		if heard {
			return nil
		}
	}
	return fmt.Errorf("capture: no KV event is heard")
}

// mark sends the next marker and returns its seed.
func (r *runner) mark(ctx context.Context) (seed int, err error) {
	seed = markerSeed + r.markers
	r.markers++
	answers, err := r.step(ctx, r.marker(seed))
	for _, a := range answers {
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("a marker: status %d: %s", a.status, a.body)
		}
	}
	return seed, err
}

func (r *runner) run(ctx context.Context, c Case) (Section, error) {
	sec := Section{Name: c.Name}
	put := func(lines ...string) { sec.Lines = append(sec.Lines, lines...) }
	for _, step := range c.Steps {
		answers, err := r.step(ctx, step)
		if err != nil {
			return sec, err
		}
		for i, a := range answers {
			put(strings.Split(step[i].String(), "\n")...)
			put(c.Answer(a.status, a.header, a.body)...)
		}
	}
	seed, err := r.mark(ctx)
	if err != nil {
		return sec, err
	}
	for i, l := range r.listeners {
		if l == nil {
			continue
		}
		lines, err := l.until(ctx, seed, patience)
		if err != nil {
			return sec, err
		}
		if c.Uneven {
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "batch ") })
		}
		if len(lines) > 0 && !c.Loose {
			put(fmt.Sprintf("events of the %s", Leg(i)))
			put(lines...)
		}
	}
	return sec, nil
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// step sends requests at the same time and returns their answers, in the order of the
// requests.
func (r *runner) step(ctx context.Context, rs []Request) ([]answer, error) {
	v := values{handoff: r.handoff, room: newRoom(), host: r.targets[0].Host, port: r.targets[0].Bootstrap}
	out, errs := make([]answer, len(rs)), make([]error, len(rs))
	var wg sync.WaitGroup
	for i, q := range rs {
		wg.Go(func() { out[i], errs[i] = r.ask(ctx, q, v) })
	}
	wg.Wait()
	for i, q := range rs {
		if errs[i] != nil {
			return nil, fmt.Errorf("%s: %w", q.Path, errs[i])
		}
		if q.To == First {
			r.remember(out[i].body)
		}
	}
	return out, nil
}

// remember keeps a prefill's hand-off.
func (r *runner) remember(body []byte) {
	var b struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if json.Unmarshal(body, &b) == nil && len(b.Params) > 0 {
		r.handoff = string(b.Params)
	}
}

func (r *runner) ask(ctx context.Context, q Request, v values) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method(), r.targets[q.To].URL+q.Path, strings.NewReader(v.fill(q.Body)))
	if err != nil {
		return a, err
	}
	if q.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range q.Headers {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	a = answer{status: resp.StatusCode, header: resp.Header}
	a.body, err = io.ReadAll(resp.Body)
	return a, err
}
