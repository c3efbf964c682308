package record

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The values of a record that have a text of their own.
type (
	id          worker.ID // a number, or text: not every writer of JSON has numbers above 2^53
	role        worker.Role
	engine      worker.Engine
	endpoint    worker.Endpoint
	host        string // a name or an IP address, without brackets; "" for the endpoint's
	enforcement worker.Enforcement
)

var _ = []strictyaml.Word{new(id), new(role), new(engine), new(endpoint), new(host), new(enforcement)}

func (i *id) Read(text string) error {
	n, err := worker.ParseID(text)
	if err != nil || text[0] == '0' { // some readers of YAML read it as octal
		return fmt.Errorf("a decimal number from 1 to %d", uint64(math.MaxUint64))
	}
	*i = id(n)
	return nil
}

func (r *role) Read(text string) error {
	return readAs((*worker.Role)(r), text, worker.ParseRole)
}

func (e *engine) Read(text string) error {
	return readAs((*worker.Engine)(e), text, worker.ParseEngine)
}

func (e *endpoint) Read(text string) error {
	return readAs((*worker.Endpoint)(e), text, worker.ParseEndpoint)
}

func (e *enforcement) Read(text string) error {
	return readAs((*worker.Enforcement)(e), text, worker.ParseEnforcement)
}

// readAs sets the value to what the text stands for.
func readAs[V any](to *V, text string, parse func(string) (V, error)) (err error) {
	*to, err = parse(text)
	return wanted(err)
}

func (h *host) Read(text string) error {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	*h = host(text)
	if text == "" {
		return nil
	}
	return wanted(worker.CheckHost(text))
}

func (r role) MarshalText() ([]byte, error)     { return []byte(worker.Role(r).String()), nil }
func (e endpoint) MarshalText() ([]byte, error) { return []byte(worker.Endpoint(e).String()), nil }

// wanted is what err says is expected.
func wanted(err error) error {
	if err == nil {
		return nil
	}
	const mark = ": expected "
	text := err.Error()
	return errors.New(text[strings.LastIndex(text, mark)+len(mark):])
}

// idAt makes the id of a worker that is named only by its endpoint. Each replica makes the
// same one.
func idAt(e worker.Endpoint) worker.ID {
	sum := sha256.Sum256([]byte(e.String()))
	return worker.ID(max(1, binary.BigEndian.Uint64(sum[:8])))
}
