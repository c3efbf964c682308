package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Pages gets the pages of one engine.
type Pages interface {
	// Get gets a page. An answer other than 200 is a *[StatusError].
	Get(ctx context.Context, path string) ([]byte, error)
	// GetAt gets a page of a server at another port of the engine's host.
	GetAt(ctx context.Context, port uint16, path string) (page []byte, at string, err error)
	// Named is the engine that an operator has named; "": none was.
	Named() worker.Engine
	// BootstrapPort is the port of the engine's bootstrap server, where that is to be asked; else 0.
	BootstrapPort() uint16
}

// Reader is how an engine is asked.
type Reader struct {
	Title string // the engine's name in texts
	Facts func(ctx context.Context, p Pages) (Facts, error)
	// Count counts the requests that the engine has. The error is [ErrNotCounted] if it tells no
	// count.
	Count func(ctx context.Context, p Pages) (int, error)
	// Gauges are the metrics whose sum Count may return. An engine that nobody has named is asked
	// for all of these.
	Gauges  []string
	Running *RunningPage // nil: no page says what the engine runs
}

// LossCounter is a counter on a page of metrics, by its name there.
type LossCounter struct {
	Name string
	Of   Loss
}

// Loss is what went wrong with a hand-off, as its engine counts it. The names are metric labels.
type Loss string

// The losses.
const (
	Expired  Loss = "expired"   // prefill has freed KV that no decode had fetched in its lease
	ReadLate Loss = "read_late" // a decode came for KV after that, and may have read another prompt's
	Failed   Loss = "failed"    // a transfer failed
)

// Lost returns how often each loss has been counted. One that the page does not have is left out.
func (p *RunningPage) Lost(page []byte) map[Loss]float64 {
	var out map[Loss]float64
	for _, c := range p.Losses {
		n, there := total(page, c.Name)
		if there && out == nil {
			out = make(map[Loss]float64)
		}
		if there {
			out[c.Of] += n
		}
	}
	return out
}

// RunningPage is a page that says what an engine runs.
type RunningPage struct {
	Path string
	// Read reads the page. blockSize and capacity are known facts of a rank; a capacity on the page
	// is used instead. Ranks without the numbers on the page are left out. The error wraps
	// [ErrNotTold] if no rank is left.
	Read func(page []byte, blockSize uint32, capacity uint64) ([]Running, error)
	// Losses are the counters on it of hand-offs that went wrong.
	Losses []LossCounter
}

// Running says what one rank of an engine runs.
type Running struct {
	Rank   int
	Blocks int64 // KV blocks that running requests hold
	// Requests are the requests that hold blocks: they run, or wait for KV to come.
	Requests int64
	// Waiting are the requests whose prompts are not begun yet.
	Waiting int64
	// Asleep says that the rank has given up its KV cache.
	Asleep bool
}

// ErrNotTold means that an engine's page does not say what the engine runs.
var ErrNotTold = errors.New("does not tell what it runs")

// StatusError is an answer whose status is not 200.
type StatusError struct {
	Path   string
	Status int
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: status %d", e.Path, e.Status) }

// IsStatus reports whether the engine has answered with one of the statuses, or, if none
// are given, with any status of failure.
func IsStatus(err error, statuses ...int) bool {
	var se *StatusError
	return errors.As(err, &se) && (len(statuses) == 0 || slices.Contains(statuses, se.Status))
}

// IfThere gets a page, nil without an error if the engine has no such page.
func IfThere(ctx context.Context, p Pages, path string) ([]byte, error) {
	body, err := p.Get(ctx, path)
	if Missing(err) {
		return nil, nil
	}
	return body, err
}

// Missing reports whether the engine answered that it has no such page.
func Missing(err error) bool {
	return IsStatus(err, http.StatusNotFound, http.StatusMethodNotAllowed)
}

// Sum adds up the gauges with these names on the page of metrics. The error is ErrNotCounted if the
// engine was reached and has none.
func Sum(ctx context.Context, p Pages, names []string) (int, error) {
	page, err := p.Get(ctx, "/metrics")
	if IsStatus(err) {
		return 0, fmt.Errorf("%w: %w", ErrNotCounted, err)
	}
	if err != nil {
		return 0, err
	}
	sum, seen := 0.0, false
	Samples(page, func(name string) bool { return slices.Contains(names, name) }, func(s Sample) {
		seen = true
		sum += s.Value
	})
	if !seen {
		return 0, fmt.Errorf("%w: /metrics has no %s", ErrNotCounted, names[0])
	}
	if math.IsNaN(sum) || sum < 0 || sum > 1<<31 {
		return 0, fmt.Errorf("/metrics: requests add up to %v: expected a count", sum)
	}
	return int(math.Ceil(sum)), nil
}

// WrongJSON names the field that has the wrong type, if that is the error.
func WrongJSON(err error) error {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) && te.Field != "" {
		return fmt.Errorf("%s is a %s: expected a %s", te.Field, te.Value, te.Type)
	}
	return fmt.Errorf("expected a JSON object: %w", err)
}

// Or0 returns what p points to, or zero.
func Or0[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// Bound returns the host of a socket to which others connect: "" if the socket is bound
// to every address of the machine.
func Bound(host string) string {
	host = strings.Trim(host, "[]")
	if a, err := netip.ParseAddr(host); host == "*" || err == nil && a.IsUnspecified() {
		return ""
	}
	return host
}

// Telling returns the host on which an engine listens if it says where the engine is: ""
// for a loopback address, which means nothing on another machine.
func Telling(host string) string {
	host = Bound(host)
	if a, err := netip.ParseAddr(host); host == "localhost" || err == nil && a.IsLoopback() {
		return ""
	}
	return host
}

// List is what an answer of /v1/models lists.
type List struct {
	Names    []string
	Adapters []string // those with a parent: LoRA adapters, in vLLM and SGLang alike
	Length   uint32   // the greatest max_model_len; 0: there is none
	Root     string   // the path that the first model that is no adapter was loaded from; "": not said
	Owners   []string // of the models
}

// Models reads an answer of /v1/models.
func Models(body []byte) (l List, err error) {
	var list struct {
		Data []struct {
			ID      string  `json:"id"`
			Root    string  `json:"root"`
			Parent  *string `json:"parent"`
			Length  *uint32 `json:"max_model_len"`
			OwnedBy string  `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return l, fmt.Errorf("expected a JSON list of models: %w", err)
	}
	for _, m := range list.Data {
		l.Owners = append(l.Owners, m.OwnedBy)
		if m.Parent == nil {
			l.Root = cmp.Or(l.Root, m.Root)
		}
		if m.ID == "" || slices.Contains(l.Names, m.ID) {
			continue
		}
		l.Names, l.Length = append(l.Names, m.ID), max(l.Length, Or0(m.Length))
		if Or0(m.Parent) != "" {
			l.Adapters = append(l.Adapters, m.ID)
		}
	}
	return l, nil
}

// StartTime returns process_start_time_seconds as it is written, or "".
func StartTime(page []byte) string {
	out := ""
	Samples(page, func(name string) bool { return name == "process_start_time_seconds" }, func(s Sample) { out = s.Text })
	return out
}

// Version reads the page /version, which several engines have in one form.
func Version(ctx context.Context, p Pages) (string, error) {
	body, err := p.Get(ctx, "/version")
	if err != nil {
		return "", err
	}
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil || v.Version == "" {
		return "", errors.New(`/version: expected a JSON object with "version"`)
	}
	return v.Version, nil
}

// TCPEndpoint splits a ZMQ endpoint that can be reached over TCP. The port is 0 for all
// others.
func TCPEndpoint(endpoint string) (host string, port uint16) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", 0
	}
	host, text, err := net.SplitHostPort(rest)
	if err != nil {
		return "", 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0
	}
	return host, uint16(n)
}
