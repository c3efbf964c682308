package picker

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Constraints say, by taints of workers, to which workers a request may go and which it
// prefers. nil and the zero value constrain nothing.
type Constraints struct {
	Required  []string // a worker that lacks one of them may not be picked
	Preferred []Preference
}

// Preference changes the cost of workers that carry the taint. The cost of a worker is
// multiplied by exp(-tanh(w)), where w is the sum of the weights of all preferred
// taints that it carries: a positive weight makes the worker cheaper, a negative one
// dearer.
type Preference struct {
	Taint  string
	Weight float64
}

// Bounds of the constraints of one request.
const (
	MaxConstraints   = 8 // of required taints, and of preferred ones
	maxTaintWeight   = 100
	maxConstraintsIn = 8 << 10 // bytes of JSON
)

// ParseConstraints reads the JSON object of a request's constraints. As in NVIDIA
// Dynamo it has required_taints, a list, and preferred_taints, an object of weights.
// Unknown members are ignored, and null is no constraint. An error names the member and
// what was expected.
func ParseConstraints(data []byte) (Constraints, error) {
	bad := func(format string, a ...any) (Constraints, error) {
		return Constraints{}, fmt.Errorf("picker: constraints: "+format, a...)
	}
	if len(data) > maxConstraintsIn {
		return bad("%d bytes: expected at most %d", len(data), maxConstraintsIn)
	}
	var in struct {
		Required  []string            `json:"required_taints"`
		Preferred map[string]*float64 `json:"preferred_taints"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return bad("expected required_taints, a list, and preferred_taints, an object of weights: %w", err)
	}
	if len(in.Required) > MaxConstraints || len(in.Preferred) > MaxConstraints {
		return bad("%d required and %d preferred taints: expected at most %d each", len(in.Required), len(in.Preferred), MaxConstraints)
	}
	var c Constraints
	for _, t := range in.Required {
		if t == "" || len(t) > worker.MaxTaintBytes {
			return bad("required_taints: expected texts of 1 to %d bytes", worker.MaxTaintBytes)
		}
		c.Require(t)
	}
	for t, w := range in.Preferred {
		if t == "" || len(t) > worker.MaxTaintBytes || w == nil || !(math.Abs(*w) <= maxTaintWeight) {
			return bad("preferred_taints: expected texts of 1 to %d bytes, with weights from -%d to %d", worker.MaxTaintBytes, maxTaintWeight, maxTaintWeight)
		}
		c.Prefer(t, *w)
	}
	slices.SortFunc(c.Preferred, func(a, b Preference) int { return strings.Compare(a.Taint, b.Taint) })
	return c, nil
}

// None reports whether c constrains nothing.
func (c *Constraints) None() bool { return c == nil || len(c.Required)+len(c.Preferred) == 0 }

// Require adds a required taint, once.
func (c *Constraints) Require(taint string) {
	if !slices.Contains(c.Required, taint) {
		c.Required = append(c.Required, taint)
	}
}

// Prefer adds the weight to the weight that the taint has already.
func (c *Constraints) Prefer(taint string, weight float64) {
	for i := range c.Preferred {
		if c.Preferred[i].Taint == taint {
			c.Preferred[i].Weight += weight
			return
		}
	}
	c.Preferred = append(c.Preferred, Preference{taint, weight})
}

// Copy makes c equal to o, in c's own memory.
func (c *Constraints) Copy(o *Constraints) {
	c.Required = append(c.Required[:0], o.Required...)
	c.Preferred = append(c.Preferred[:0], o.Preferred...)
}

// Lacks returns the first required taint that the worker does not carry, or "".
func (c *Constraints) Lacks(w *worker.Worker) string {
	if c != nil {
		for _, t := range c.Required {
			if !w.HasTaint(t) {
				return t
			}
		}
	}
	return ""
}

// TaintError says that no candidate is left, since none carries the required taint. It
// wraps ErrNoCandidate.
type TaintError struct{ Taint string }

// Error names the taint.
func (e *TaintError) Error() string { return "picker: no candidate carries the taint " + e.Taint }

// Unwrap returns ErrNoCandidate.
func (e *TaintError) Unwrap() error { return ErrNoCandidate }
