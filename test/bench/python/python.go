// Package python runs the repository's Python judges of tokens and templates
// (pkg/tokens/*/testdata/oracle.py) for benches. A judge answers each line of JSON with one.
// The interpreters are those of the engines that make real-tools installs.
package python

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/seed-60ae5743/baton/test/stack"
)

// Judge is a running judge. Not safe for concurrent use.
type Judge struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts the judge of a package below pkg/tokens in an engine's environment. What it
// writes to its standard error goes to stderr; nil: nowhere. It ends with Stop, or with this
// process.
func Start(root, engine, of string, stderr io.Writer, args ...string) (*Judge, error) {
	script := filepath.Join(root, "pkg", "tokens", of, "testdata", "oracle.py")
	cmd := exec.Command(filepath.Join(root, ".tools", "real", engine, "bin", "python"), append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "TOKENIZERS_PARALLELISM=false", "RAYON_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=")
	cmd.Stderr = stderr
	stack.EndWithParent(cmd, syscall.SIGKILL)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start Python: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start Python (make real-tools installs it): %w", err)
	}
	return &Judge{cmd, in, bufio.NewReaderSize(out, 1<<20)}, nil
}

// Stop ends the judge.
func (j *Judge) Stop() {
	_ = j.in.Close()
	_ = j.cmd.Wait()
}

// Ask writes a question as one line, and reads the next line that has JSON: libraries may
// write lines of their own.
func (j *Judge) Ask(question, answer any) error {
	b, err := json.Marshal(question)
	if err == nil {
		_, err = j.in.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("ask Python: %w", err)
	}
	for {
		text, err := j.out.ReadString('\n')
		if err != nil {
			return errors.Join(errors.New("python has ended"), err)
		}
		text = strings.TrimPrefix(text, "=")
		if text[0] == '{' {
			return json.Unmarshal([]byte(text), answer)
		}
	}
}
