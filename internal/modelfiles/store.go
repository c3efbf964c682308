package modelfiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/wholefile"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
)

// errOther means that what was read has another digest than was asked for.
var errOther = errors.New("it has another digest")

// fetch reads a set from the first worker that serves it whole. The error has what each of
// them said.
func (f *Follower) fetch(ctx context.Context, s *Set) ([]byte, netip.AddrPort, error) {
	var errs []error
	for _, at := range s.From {
		packed, err := f.ask(ctx, at, s.Digest)
		if err == nil {
			return packed, at, nil
		}
		errs = append(errs, err)
	}
	return nil, netip.AddrPort{}, errors.Join(errs...)
}

func (f *Follower) ask(ctx context.Context, at netip.AddrPort, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url(at, digest), nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", at, resp.StatusCode)
	}
	packed, err := io.ReadAll(io.LimitReader(resp.Body, local.MaxPacked+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if local.Digest(packed) != digest {
		return nil, fmt.Errorf("%s: %w", at, errOther)
	}
	return packed, nil
}

// fileOf returns the file of a set in the folder.
func (f *Follower) fileOf(digest string) string {
	return filepath.Join(f.cfg.Dir, strings.Replace(digest, ":", "-", 1)+".tar")
}

// kept reads a set from the folder; nil if it is not there, or is not what it was.
func (f *Follower) kept(digest string) []byte {
	if f.cfg.Dir == "" {
		return nil
	}
	in, err := os.Open(f.fileOf(digest))
	if err != nil {
		return nil
	}
	defer func() { _ = in.Close() }()
	packed, err := io.ReadAll(io.LimitReader(in, local.MaxPacked+1))
	if err != nil || local.Digest(packed) != digest {
		return nil
	}
	return packed
}

// keep writes a set to the folder, and removes the oldest ones beyond the bound.
func (f *Follower) keep(digest string, packed []byte) error {
	if f.cfg.Dir == "" {
		return nil
	}
	err := os.MkdirAll(f.cfg.Dir, 0o755) //nolint:gosec // public files
	if err == nil {
		err = wholefile.Replace(f.fileOf(digest), packed)
	}
	if err != nil {
		return err
	}
	return f.prune()
}

func (f *Follower) prune() error {
	names, err := filepath.Glob(f.fileOf("sha256:*"))
	if err != nil || len(names) <= f.cfg.Most {
		return err
	}
	age := map[string]int64{}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			age[name] = info.ModTime().UnixNano()
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(age[a], age[b]) })
	var errs []error
	for _, name := range names[:len(names)-f.cfg.Most] {
		errs = append(errs, os.Remove(name))
	}
	return errors.Join(errs...)
}
