package hashvectors

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Vector is what the blocks of one prompt are called.
type Vector struct {
	Name      string
	Tokens    []uint32
	BlockSize int // tokens
	LoRA      string
	CacheSalt string
	Eagle     bool
	Objects   [][]uint64 // hashes of multimodal objects by block; may end early

	Seed     uint64
	Local    []uint64 // by block
	Sequence []uint64 // by block
}

// Read reads the vectors of a file.
func Read(path string) ([]Vector, error) {
	out, err := read(path, "name", (*Vector).set)
	for _, v := range out {
		if len(v.Sequence) != len(v.Local) || len(v.Objects) > len(v.Local) {
			return nil, fmt.Errorf("%s: %q: expected a sequence hash for each local one, and no more objects", path, v.Name)
		}
	}
	return out, err
}

// Object is what a multimodal object is called.
type Object struct {
	Identifier string
	Hash       uint64
	Pad        uint32 // the token id that stands for it
}

// ReadObjects reads the vectors of a file of multimodal objects.
func ReadObjects(path string) ([]Object, error) { return read(path, "identifier", (*Object).set) }

// read reads a file of vectors, each of which begins with the key first.
func read[T any](path, first string, set func(v *T, key, value string) error) ([]T, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []T
	seen := map[string]bool{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if key == first {
			out, seen = append(out, *new(T)), map[string]bool{}
		}
		if !ok || len(out) == 0 || seen[key] {
			return nil, fmt.Errorf("%s:%d: %q: expected a key once in its vector, %s first", path, n, line, first)
		}
		seen[key] = true
		if err := set(&out[len(out)-1], key, strings.TrimSpace(value)); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	return out, nil
}

func (o *Object) set(key, value string) (err error) {
	switch key {
	case "identifier":
		o.Identifier = value
	case "hash":
		o.Hash, err = strconv.ParseUint(value, 10, 64)
	case "pad":
		var pad uint64
		pad, err = strconv.ParseUint(value, 10, 32)
		o.Pad = uint32(pad)
	default:
		err = fmt.Errorf("key %q: expected one of the format", key)
	}
	return err
}

func (v *Vector) set(key, value string) (err error) {
	switch key {
	case "name":
		v.Name = value
	case "tokens":
		v.Tokens, err = tokens(value)
	case "block":
		v.BlockSize, err = strconv.Atoi(value)
	case "lora":
		v.LoRA = value
	case "salt":
		v.CacheSalt = value
	case "eagle":
		v.Eagle, err = strconv.ParseBool(value)
	case "objects":
		for block := range strings.SplitSeq(value, "|") {
			var of []uint64
			block = strings.TrimSpace(block)
			if block != "-" {
				of, err = numbers(block)
				if err != nil {
					return err
				}
			}
			v.Objects = append(v.Objects, of)
		}
	case "seed":
		v.Seed, err = strconv.ParseUint(value, 10, 64)
	case "local":
		v.Local, err = numbers(value)
	case "sequence":
		v.Sequence, err = numbers(value)
	default:
		err = fmt.Errorf("key %q: expected one of the format", key)
	}
	return err
}

func numbers(text string) ([]uint64, error) {
	var out []uint64
	for f := range strings.FieldsSeq(text) {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// tokens reads ids and ranges a..b, both ends included.
func tokens(text string) ([]uint32, error) {
	var out []uint32
	for f := range strings.FieldsSeq(text) {
		from, to, isRange := strings.Cut(f, "..")
		if !isRange {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(to, 10, 32)
		if err != nil {
			return nil, err
		}
		if b < a {
			return nil, fmt.Errorf("tokens %s: expected a range that rises", f)
		}
		for ; a <= b; a++ {
			out = append(out, uint32(a))
		}
	}
	return out, nil
}
