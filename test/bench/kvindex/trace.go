package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// The words of a trace: a header of eight, then operations.
const (
	traceMagic  = 0x314543415254564b
	traceHeader = 8
	seqShare    = 2 // a query has its blocks' hashes twice: of tokens, then of sequences
)

type kind uint8

const (
	opStore kind = iota + 1
	opRemove
	opClear
	opQuery
	opMark
)

// trace is a mapped file of operations.
type trace struct {
	words   []uint64
	engines int
	queries int
	ops     []uint32 // where each begins
	steady  int      // the first operation after the fill
	live    int      // entries at the end
}

// op is one operation in the index's own types. Its slices are valid until the
// next operation is read into it.
type op struct {
	kind   kind
	engine uint32
	n      int
	store  kvindex.Stored
	remove kvindex.Removed
	chain  []kvindex.LocalHash
}

func openTrace(path string) (*trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	w := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	if len(w) < traceHeader || w[0] != traceMagic {
		return nil, errors.New(path + ": expected a trace that begins with KVTRACE1")
	}
	t := &trace{words: w, engines: int(w[2]), queries: int(w[6]), ops: make([]uint32, 0, w[5])}
	for at := traceHeader; at < len(w); {
		t.ops = append(t.ops, uint32(at))
		at += t.scan(at)
	}
	return t, nil
}

// scan counts an operation and returns its length in words.
func (t *trace) scan(at int) int {
	w := t.words[at]
	n := int(w >> 16 & 0xffffff)
	switch kind(w) {
	case opStore:
		t.live += n
		return 1 + int(w>>8&1) + 2*n
	case opRemove:
		t.live -= n
		return 1 + n
	case opQuery:
		return 1 + seqShare*n
	case opMark:
		t.steady = len(t.ops)
	}
	return 1
}

// read converts operation i. A trace's words have the layout of the index's
// own types, so nothing is copied.
func (t *trace) read(i int, o *op) {
	w := t.words[t.ops[i]:]
	head := w[0]
	o.kind, o.engine, o.n = kind(head), uint32(head>>40), int(head>>16&0xffffff)
	w = w[1:]
	switch o.kind {
	case opStore:
		o.store = kvindex.Stored{HasParent: head>>8&1 == 1}
		if o.store.HasParent {
			o.store.Parent, w = kvindex.EngineHash(w[0]), w[1:]
		}
		o.store.Blocks = unsafe.Slice((*kvindex.Block)(unsafe.Pointer(unsafe.SliceData(w))), o.n)
	case opRemove:
		o.remove.Blocks = unsafe.Slice((*kvindex.EngineHash)(unsafe.Pointer(unsafe.SliceData(w))), o.n)
	case opQuery:
		o.chain = unsafe.Slice((*kvindex.LocalHash)(unsafe.Pointer(unsafe.SliceData(w))), o.n)
	}
}
