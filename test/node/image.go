//go:build kube

package node

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"

	imagename "github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image is an image of one layer.
type Image struct {
	Name       string
	Entrypoint []string
	User       string
	Files      map[string]string // from the path in the image to that of the file here; "" is a folder that all may write to
}

// Import makes the image known to the node.
func (n *Node) Import(ctx context.Context, i Image) error {
	file, err := os.CreateTemp(n.dir, "image")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if err := i.write(file); err != nil {
		return fmt.Errorf("node: image %s: %w", i.Name, err)
	}
	return n.importFile(ctx, file.Name())
}

// importFile makes the images of an archive known to the node.
func (n *Node) importFile(ctx context.Context, file string) error {
	_, err := n.ctr(ctx, "images", "import", "--snapshotter", "overlayfs", file)
	return err
}

// tag gives an image another name.
func (n *Node) tag(ctx context.Context, from, to string) error {
	_, err := n.ctr(ctx, "images", "tag", "--force", from, to)
	return err
}

// imageNamed returns the name of the node's image that begins so.
func (n *Node) imageNamed(ctx context.Context, prefix string) (string, error) {
	out, err := n.ctr(ctx, "images", "list", "--quiet")
	if err != nil {
		return "", err
	}
	for name := range strings.Lines(out) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, prefix) {
			return name, nil
		}
	}
	return "", fmt.Errorf("node: no image is named %s…: %s", prefix, out)
}

func (i Image) write(to io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	files, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil }, tarball.WithCompressionLevel(1))
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, files)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: i.Entrypoint, User: i.User, WorkingDir: "/", Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}}
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		return err
	}
	ref, err := imagename.ParseReference(i.Name)
	if err != nil {
		return err
	}
	return tarball.Write(ref, img, to)
}

func (i Image) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{"/": true}
	folders := func(at string, mode int64) error {
		var missing []string
		for ; !made[at]; at = path.Dir(at) {
			made[at] = true
			missing = append(missing, at)
		}
		slices.Reverse(missing)
		for _, at := range missing {
			if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(at, "/") + "/", Typeflag: tar.TypeDir, Mode: mode}); err != nil {
				return err
			}
		}
		return nil
	}
	add := func(at string, content []byte, mode int64) error {
		if err := folders(path.Dir(at), 0o755); err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(at, "/"), Size: int64(len(content)), Mode: mode}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	if err := folders("/tmp", 0o1777); err != nil {
		return nil, err
	}
	if err := add("/etc/passwd", []byte("root:x:0:0:root:/:/\nistio-proxy:x:1337:1337::/:/\n"), 0o644); err != nil {
		return nil, err
	}
	for at, from := range i.Files {
		if from == "" {
			if err := folders(at, 0o1777); err != nil {
				return nil, err
			}
			continue
		}
		content, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := add(at, content, 0o755); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// withLibraries adds a program to an image's files, with the libraries that it loads.
func withLibraries(files map[string]string, at, program string) error {
	files[at] = program
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	defer f.Close()
	if f.Section(".interp") == nil { // it is static
		return nil
	}
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	for line := range strings.Lines(string(out)) {
		for _, word := range strings.Fields(line) {
			if path.IsAbs(word) {
				files[word] = word // the loader looks where it has looked here
			}
		}
	}
	return nil
}
