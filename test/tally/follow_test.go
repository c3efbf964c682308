package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhoWaitsSeesEachStepAndThatItGoesOn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		out, r, w := new(bytes.Buffer), (*io.PipeReader)(nil), (*io.PipeWriter)(nil)
		r, w = io.Pipe()
		go func() {
			for i := range 3 {
				<-time.After(25 * time.Second)
				_, _ = fmt.Fprintf(w, "line %d\n", i)
			}
			_ = w.Close()
		}()
		ok, err := tellStep(r, out, "vet", filepath.Join(dir, "steps"), 9, filepath.Join(dir, "log"), true, watching{})
		require.True(t, ok)
		require.NoError(t, err)
		require.Equal(t, `00:00:00  1/9  vet
00:00:20  1/9  vet: since 20 s
00:00:40  1/9  vet: since 40 s; its last line: line 0
00:01:00  1/9  vet: since 60 s; its last line: line 1
00:01:15  1/9  vet: has ended, 75 s
`, utc(out.String()))
	})
	kept, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Equal(t, "line 0\nline 1\nline 2\n", string(kept))
	require.Contains(t, told(t, 0, "as it was", "-follow", "-steps", filepath.Join(dir, "steps"), "-of", "9"), "CLOCK  2/9  tests\nas it was")
}

func TestWhoWaitsSeesHowManyTestsHaveEndedAndWhichRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kept.json")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pause","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestC"}
{"Action":"pass","Package":"p","Test":"TestC/one"}
`)
			<-time.After(10 * time.Second)
			_, _ = io.WriteString(w, `{"Action":"cont","Package":"p","Test":"TestB"}`+"\n")
			<-time.After(40 * time.Second)
			_ = w.Close()
		}()
		_, err := (begin(&out, "tests", "")).watch(r, file, watching{of: 3, quiet: true})
		require.NoError(t, err)
		require.Equal(t, `00:00:00  tests
00:00:20  tests: since 20 s; 1 of 3 tests and 0 packages have ended; p TestC runs for 20 s
00:00:40  tests: since 40 s; 1 of 3 tests and 0 packages have ended; p TestC runs for 40 s
`, utc(out.String()))
	})
}

// utc turns the clock of the machine's zone back to that of synctest, which begins at
// midnight UTC.
func utc(s string) string {
	lines := strings.SplitAfter(s, "\n")
	for i, l := range lines {
		if len(l) < 8 {
			continue
		}
		at, err := time.ParseInLocation(time.DateTime, "2000-01-01 "+l[:8], time.Local)
		if err == nil {
			lines[i] = at.UTC().Format(time.TimeOnly) + l[8:]
		}
	}
	return strings.Join(lines, "")
}

func TestASecondRunSaysForWhomItWaitsAndRunsThen(t *testing.T) {
	if os.Getenv("TALLY_ALONE") != "" {
		os.Exit(run([]string{"-alone", os.Getenv("TALLY_ALONE"), "--", "sleep", "600"}, nil, io.Discard, io.Discard))
	}
	lock := filepath.Join(t.TempDir(), "lock")
	first := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	first.Env = append(os.Environ(), "TALLY_ALONE="+lock)
	require.NoError(t, first.Start())
	t.Cleanup(func() { _ = first.Process.Kill() })
	var who string
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(lock)
		who = string(b)
		return strings.HasSuffix(who, "sleep 600\n")
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, who, fmt.Sprintf("process %d, since ", first.Process.Pid))

	said := make(chan string, 1)
	pipe, w := io.Pipe()
	go func() {
		var b [400]byte
		n, _ := pipe.Read(b[:])
		said <- string(b[:n])
		_ = first.Process.Kill() // it lets nothing go itself
		_ = first.Wait()
		_, _ = io.Copy(io.Discard, pipe)
	}()
	code := run([]string{"-alone", lock, "--", "bash", "-c", "exit 7"}, nil, w, io.Discard)
	require.Equal(t, 7, code)
	require.Contains(t, <-said, "waits until another run in this folder has ended: process ")
	require.Contains(t, told(t, 1, "", "-alone", lock, "--", filepath.Join(t.TempDir(), "none")), "no such file")
	require.Equal(t, 143, run([]string{"-alone", lock, "--", "bash", "-c", "kill $$"}, nil, io.Discard, io.Discard))
}
