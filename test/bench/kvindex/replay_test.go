package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// tiny writes a trace of two engines: a fill, then queries among changes.
func tiny(t *testing.T) string {
	var words []uint64
	locals := make([]uint64, 20)
	seqs := make([]uint64, 20)
	for i := range locals {
		locals[i], seqs[i] = uint64(1000+i), uint64(2000+i)
	}
	ops, queries := uint64(0), uint64(0)
	op := func(k kind, flag, n, engine uint64, data ...uint64) {
		ops++
		words = append(words, uint64(k)|flag<<8|n<<16|engine<<40)
		words = append(words, data...)
	}
	store := func(engine uint64, from, to int) {
		var data []uint64
		if from > 0 {
			data = append(data, seqs[from-1])
		}
		for i := from; i < to; i++ {
			data = append(data, seqs[i], locals[i])
		}
		op(opStore, uint64(min(from, 1)), uint64(to-from), engine, data...)
	}
	query := func(n int) {
		queries++
		data := append([]uint64{}, locals[:n]...)
		data = append(data, seqs[:n]...)
		op(opQuery, 0, uint64(n), 0, data...)
	}
	for e := range uint64(8) {
		store(e, 0, 4)
	}
	op(opMark, 0, 0, 0)
	for i := range 5 {
		store(0, 4+i, 5+i)
		query(10)
	}
	op(opRemove, 0, 2, 1, seqs[3], seqs[2])
	query(4)
	op(opClear, 0, 0, 0)
	query(20)
	head := []uint64{traceMagic, 1, 8, 64, 20, ops, queries, 1}
	var buf bytes.Buffer
	require.NoError(t, binary.Write(&buf, binary.LittleEndian, append(head, words...)))
	path := filepath.Join(t.TempDir(), "tiny.kvt")
	require.NoError(t, os.WriteFile(path, buf.Bytes(), 0o600))
	return path
}

func TestEveryModeRunsAndTheChecksumIsThatOfTheAnswers(t *testing.T) {
	path := tiny(t)
	var sum any
	for _, mode := range []string{"replay", "writes", "reads", "both"} {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), []string{mode, path}, &out, &out))
		got := map[string]any{}
		require.NoError(t, json.Unmarshal(out.Bytes(), &got))
		require.Equal(t, "tiny", got["trace"])
		if mode == "replay" {
			sum = got["checksum"]
		}
	}
	var want uint64
	for q, overlaps := range [][8]uint32{
		{5, 4, 4, 4, 4, 4, 4, 4}, {6, 4, 4, 4, 4, 4, 4, 4}, {7, 4, 4, 4, 4, 4, 4, 4},
		{8, 4, 4, 4, 4, 4, 4, 4}, {9, 4, 4, 4, 4, 4, 4, 4},
		{4, 2, 4, 4, 4, 4, 4, 4}, {0, 2, 4, 4, 4, 4, 4, 4},
	} {
		for engine, n := range overlaps {
			if n > 0 {
				want += share(q, engine, n)
			}
		}
	}
	require.Equal(t, fmt.Sprintf("%016x", want), sum)
}

func TestWhatCannotBeRunIsSaid(t *testing.T) {
	var out bytes.Buffer
	require.ErrorContains(t, run(t.Context(), []string{"reads"}, &out, &out), "expected MODE TRACE")
	require.ErrorContains(t, run(t.Context(), []string{"dance", tiny(t)}, &out, &out), "expected replay")
	bad := filepath.Join(t.TempDir(), "bad.kvt")
	require.NoError(t, os.WriteFile(bad, make([]byte, 80), 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"reads", bad}, &out, &out), "KVTRACE1")
}
