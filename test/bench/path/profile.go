package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-60ae5743/baton/test/stack"
)

// profileTime is how long a case is watched.
const profileTime = 10 * time.Second

// profile loads the plugin with each cell of 16 clients and writes what its
// own profiler sees: cpu-… for a CPU profile, allocs-… for allocations since it
// began.
func profile(ctx context.Context, p *plan, l *lab, dir string, w io.Writer) error {
	for _, c := range p.Cells {
		if c.Clients != 16 {
			continue
		}
		for _, v := range l.variants {
			if v.server == nil || v.server.admin == "" || v.mode != c.Mode || !p.wants(v.name, c) {
				continue
			}
			name := fmt.Sprintf("%s-%s-%dKB.pprof", v.name, c.Mode, c.BodyBytes/1000)
			fmt.Fprintln(w, "profile", filepath.Join(dir, "cpu-"+name))
			if err := profileOne(ctx, v, c, dir, name); err != nil {
				return fmt.Errorf("profile %s %s: %w", v, c, err)
			}
		}
	}
	return nil
}

func profileOne(ctx context.Context, v *variant, c cell, dir, name string) error {
	crowd := v.crowd(load{c.BodyBytes, c.Clients})
	defer crowd.close()
	loaded, stop := context.WithCancel(ctx)
	ended := make(chan tally, 1)
	go func() { ended <- crowd.run(loaded, time.Hour) }()
	defer func() { stop(); <-ended }()
	for kind, url := range map[string]string{
		"cpu-":    fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", v.server.admin, int(profileTime.Seconds())),
		"allocs-": fmt.Sprintf("%s/debug/pprof/allocs?seconds=%d", v.server.admin, int(profileTime.Seconds())),
	} {
		data, err := stack.Get(ctx, url)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, kind+name), []byte(data), 0o644); err != nil {
			return err
		}
	}
	return nil
}
