package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/seed-60ae5743/baton"
	"github.com/seed-60ae5743/baton/test/stack"
)

// architectures are those of the image, as GOARCH has them.
var architectures = []string{"amd64", "arm64"}

func main() {
	out := flag.String("out", "dist", "`folder` to write to, below the repository's root; it is emptied first")
	epoch := flag.String("time", "", "the time that the image bears, in `seconds` since 1970; empty: the commit's")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "dist builds extproc for Linux on amd64 and arm64, an OCI image of both, and their checksums.")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *epoch, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, out, epoch string, say io.Writer) error {
	root, err := stack.Root()
	if err != nil {
		return fmt.Errorf("find the repository: %w", err)
	}
	dir := filepath.Join(root, out)
	if rel, err := filepath.Rel(root, dir); err != nil || rel == "." || strings.HasPrefix(rel, "..") {
		return fmt.Errorf("-out %s: expected a folder below the repository's root, since it is emptied", out)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at, err := timeOf(ctx, root, epoch)
	if err != nil {
		return err
	}
	var binaries []binary
	for _, arch := range architectures {
		fmt.Fprintf(say, "building extproc for linux/%s\n", arch)
		b, err := build(ctx, root, filepath.Join(dir, programOf(arch)), arch)
		if err != nil {
			return fmt.Errorf("linux/%s: %w", arch, err)
		}
		binaries = append(binaries, b)
	}
	digest, err := writeImage(filepath.Join(dir, "image-"+baton.Version()), binaries, at)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := writeSums(dir, binaries); err != nil {
		return err
	}
	fmt.Fprintf(say, "%s: version %s, image %s\n", out, binaries[0].version, digest)
	return nil
}

// programOf is the file of an architecture's program.
func programOf(arch string) string { return "extproc-" + baton.Version() + "-linux-" + arch }

// build compiles extproc for an architecture into a file, and checks what came of it.
func build(ctx context.Context, root, file, arch string) (binary, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=auto", "-ldflags", "-s -w", "-o", file, "./cmd/extproc")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	said, err := cmd.CombinedOutput()
	if err != nil {
		return binary{}, fmt.Errorf("go build: %w\n%s", err, said)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return binary{}, err
	}
	if err := lean(content); err != nil {
		return binary{}, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return binary{}, fmt.Errorf("read the version: %w", err)
	}
	b := binary{arch: arch, content: content}
	b.version, b.revision = baton.Built(info)
	return b, nil
}

// lean returns what keeps a binary from running in an image that has nothing else, or
// makes it larger than it has to be.
func lean(content []byte) error {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("no program for Linux: %w", err)
	}
	var faults []error
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			faults = append(faults, errors.New("not static: it asks for a loader, which the image does not have"))
		}
	}
	if f.Section(".symtab") != nil {
		faults = append(faults, errors.New("not stripped: it has a table of symbols"))
	}
	return errors.Join(faults...)
}

func writeImage(dir string, binaries []binary, at time.Time) (v1.Hash, error) {
	idx, err := index(binaries, at)
	if err != nil {
		return v1.Hash{}, err
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	// containerd and podman take the image's name from here when they import the layout.
	name := "baton:" + tag(binaries[0].version)
	err = to.AppendIndex(idx, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": name,
		"io.containerd.image.name":          "localhost/" + name,
	}))
	if err != nil {
		return v1.Hash{}, err
	}
	return idx.Digest()
}

// tag returns a version as the tag of an image: a tag has no plus sign, which stands in
// the version of a tree with changes (OCI distribution specification, "Pulling manifests").
func tag(version string) string { return strings.ReplaceAll(version, "+", "-") }

func writeSums(dir string, binaries []binary) error {
	var sums strings.Builder
	for _, b := range binaries {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b.content), programOf(b.arch))
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// timeOf returns the time that what is built bears: epoch, or the commit's.
func timeOf(ctx context.Context, root, epoch string) (time.Time, error) {
	if epoch == "" {
		cmd := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct")
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the commit's time: %w (without git, name one with -time)", err)
		}
		epoch = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("-time: expected seconds since 1970, found %q", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
