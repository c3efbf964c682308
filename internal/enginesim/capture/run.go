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
	Events, Replay string // zmq addresses, empty where it publishes none
	Host           string // of SGLang's bootstrap server
	Bootstrap      int
}

// patience is how long an answer, or a KV event, may be away.
const patience = 90 * time.Second

// runner says a system's cases to its engines.
type runner struct {
	targets   []Target
	listeners []*listener // as targets; nil where nothing is published
	handoff   string
	marker    func(seed int) []Request
	markers   int
}

// Run says the cases to the engines, first and second, and returns what it has written
// down. The engines are new: nothing else has asked them before.
func (s System) Run(ctx context.Context, targets ...Target) (File, error) {
	r := &runner{targets: targets, marker: s.Marker}
	defer r.close()
	for _, t := range targets {
		var l *listener
		if t.Events != "" {
			var err error
			if l, err = listen(ctx, t.Events); err != nil {
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

// join asks until every engine's events are heard: what it says before a subscription is
// in, nobody hears.
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

// mark asks for the next marker.
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

// step says requests together and returns their answers in the same order.
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

// remember keeps what a prefill handed over.
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
