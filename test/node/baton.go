//go:build kube

package node

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/seed-60ae5743/baton"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The images of this repository's programs.
const (
	BatonImage  = "localhost/baton:node"
	WorkerImage = "localhost/enginesim:node"
)

// nobody is the user of images that need no rights.
const nobody = "65532:65532"

// ImportBaton makes what people install, and brings the image to the node as docs/install.md
// says. It returns the path of the program for this machine.
func (n *Node) ImportBaton(ctx context.Context) (program string, err error) {
	root, err := stack.Root()
	if err != nil {
		return "", err
	}
	if err := n.Build("", "./test/dist"); err != nil {
		return "", err
	}
	out := filepath.Join(".run", "dist")
	cmd := exec.CommandContext(ctx, n.Built("dist"), "-out", out)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("node: what people install: %w\n%s", err, said)
	}
	archive := n.file("baton.tar")
	if said, err := exec.CommandContext(ctx, "tar", "-C", filepath.Join(root, out, "image-"+baton.Version()), "-cf", archive, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("node: the image's archive: %w\n%s", err, said)
	}
	if err := n.importFile(ctx, archive); err != nil {
		return "", err
	}
	name, err := n.imageNamed(ctx, "localhost/baton:")
	if err != nil {
		return "", err
	}
	return filepath.Join(root, out, "extproc-"+baton.Version()+"-linux-"+runtime.GOARCH), n.tag(ctx, name, BatonImage)
}

// ImportWorkers makes the image of simulated workers.
func (n *Node) ImportWorkers(ctx context.Context) error {
	if err := n.Build("invariants", "./test/cmd/enginesim"); err != nil {
		return err
	}
	return n.ImportProgram(ctx, WorkerImage, n.Built("enginesim"))
}

// ImportProgram makes an image of one program that needs no files but the libraries that it
// loads, and no rights.
func (n *Node) ImportProgram(ctx context.Context, name, program string) error {
	files := map[string]string{}
	if err := withLibraries(files, "/main", program); err != nil {
		return err
	}
	return n.Import(ctx, Image{Name: name, Entrypoint: []string{"/main"}, User: nobody, Files: files})
}
