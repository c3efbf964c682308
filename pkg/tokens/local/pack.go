package local

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// MaxPacked is the longest text that [Files.Pack] makes and [Unpack] reads, in bytes.
const MaxPacked = maxTokenizer + maxConfig + maxTemplate + 1<<16

// named is a file with its name and the most bytes that it may have.
type named struct {
	name string
	text *[]byte
	most int64
}

// named returns the files in the order in which they are packed.
func (f *Files) named() []named {
	return []named{
		{"tokenizer.json", &f.Tokenizer, maxTokenizer},
		{"tokenizer_config.json", &f.Config, maxConfig},
		{"chat_template.jinja", &f.Template, maxTemplate},
	}
}

// Pack returns the files as one tar archive. The same files always give the same bytes: the
// archive has no times and no owners.
func (f Files) Pack() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, n := range f.named() {
		if *n.text == nil {
			continue
		}
		err := w.WriteHeader(&tar.Header{Name: n.name, Mode: 0o644, Size: int64(len(*n.text)), Format: tar.FormatUSTAR})
		if err == nil {
			_, err = w.Write(*n.text)
		}
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", n.name, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// Digest returns the digest of packed files, as worker.ModelFiles has it.
func Digest(packed []byte) string {
	sum := sha256.Sum256(packed)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Unpack reads what [Files.Pack] has made. A file of another name, a file that comes twice
// or is too long, and an archive without tokenizer.json are errors.
func Unpack(packed []byte) (Files, error) {
	var f Files
	r := tar.NewReader(bytes.NewReader(packed))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Files{}, fmt.Errorf("unpack: %w", err)
		}
		if err := f.take(h, r); err != nil {
			return Files{}, err
		}
	}
	if f.Tokenizer == nil {
		return Files{}, errors.New("unpack: expected tokenizer.json")
	}
	return f, nil
}

// take reads one file of the archive.
func (f *Files) take(h *tar.Header, r io.Reader) error {
	for _, n := range f.named() {
		if n.name != h.Name || *n.text != nil || h.Typeflag != tar.TypeReg || h.Size > n.most {
			continue
		}
		text := make([]byte, h.Size)
		if _, err := io.ReadFull(r, text); err != nil {
			return fmt.Errorf("unpack %s: %w", n.name, err)
		}
		*n.text = text
		return nil
	}
	return fmt.Errorf("unpack: %.80q of %d bytes: expected each file of a model once", h.Name, h.Size)
}
