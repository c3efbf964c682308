package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/stack"
)

// python is Hugging Face's tokenizers, in a process of the interpreter that make
// real-tools installs.
type python struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPython(root string) (*python, error) {
	cmd := exec.Command(filepath.Join(root, ".tools", "real", "vllm", "bin", "python"), filepath.Join(root, "pkg", "tokens", "bpe", "testdata", "oracle.py"), "serve")
	cmd.Env = append(os.Environ(), "TOKENIZERS_PARALLELISM=false", "RAYON_NUM_THREADS=1")
	cmd.Stderr = os.Stderr
	stack.EndWithParent(cmd, syscall.SIGKILL)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the Python package: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the Python package (make real-tools installs it, -python=false leaves it out): %w", err)
	}
	return &python{cmd, in, bufio.NewReaderSize(out, 1<<20)}, nil
}

func (p *python) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// cpu returns how many tokens a text has, and the CPU time to encode it for the first
// time and once more.
func (p *python) cpu(file, text string) (n int, first, again time.Duration, err error) {
	q, err := json.Marshal(map[string]any{"do": "cpu", "path": file, "texts": []string{text}})
	if err == nil {
		_, err = p.in.Write(append(q, '\n'))
	}
	if err != nil {
		return 0, 0, 0, fmt.Errorf("ask the Python package: %w", err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read the Python package's answer: %w", err)
	}
	var a struct {
		Answer [][3]float64
		Error  string
	}
	err = json.Unmarshal(line, &a)
	if err != nil || len(a.Answer) != 1 {
		return 0, 0, 0, fmt.Errorf("the Python package's answer: %s: %w", a.Error, err)
	}
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	return int(a.Answer[0][0]), seconds(a.Answer[0][1]), seconds(a.Answer[0][2]), nil
}
