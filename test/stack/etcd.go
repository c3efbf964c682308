package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Etcd is one running etcd member. Kill and Stop end it. Restart starts it again with its
// data, at the same address. Restart must not run at the same time as another method.
type Etcd struct {
	*Process           // the process that was started last
	Endpoints []string // client addresses of this member, with http://
	Name      string
	Dir       string // its data

	opts EtcdOptions // with all addresses set
}

// EtcdOptions say how to run a member.
type EtcdOptions struct {
	BinDir string // folder of the devetcd command
	Dir    string // folder of its data, which stays when it ends
	Listen string // ip:port for clients; default: a free port of 127.0.0.1
	Args   []string

	// Set by StartEtcdCluster.
	name, peer, cluster string
}

// StartEtcd runs one member, alone in its cluster, and returns once it serves. The member
// does not wait for the disk (--no-fsync): that matters only in a power cut.
func StartEtcd(ctx context.Context, o EtcdOptions) (*Etcd, error) {
	members, err := startMembers(ctx, []EtcdOptions{o})
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// StartEtcdCluster runs n members of one cluster, each with a folder below Dir, and
// returns once all serve. Listen must be empty.
func StartEtcdCluster(ctx context.Context, o EtcdOptions, n int) ([]*Etcd, error) {
	if o.Listen != "" {
		return nil, fmt.Errorf("stack: etcd cluster: listen %q: expected none, each member gets its own", o.Listen)
	}
	all := make([]EtcdOptions, n)
	for i := range all {
		all[i] = o
		all[i].name = fmt.Sprintf("m%d", i)
		all[i].Dir = filepath.Join(o.Dir, all[i].name)
	}
	return startMembers(ctx, all)
}

// startMembers starts the members of one cluster at the same time, since a member serves
// only when most of them run.
func startMembers(ctx context.Context, all []EtcdOptions) ([]*Etcd, error) {
	ports, err := FreePorts(ctx, 2*len(all))
	if err != nil {
		return nil, err
	}
	members := make([]*Etcd, len(all))
	var cluster []string
	for i, o := range all {
		if o.Listen == "" {
			o.Listen = fmt.Sprintf("127.0.0.1:%d", ports[2*i])
		}
		if o.name == "" {
			o.name = "m0"
		}
		o.peer = fmt.Sprintf("127.0.0.1:%d", ports[2*i+1])
		cluster = append(cluster, o.name+"=http://"+o.peer)
		members[i] = &Etcd{opts: o, Name: o.name, Dir: o.Dir}
	}
	var g errgroup.Group
	for _, m := range members {
		m.opts.cluster = strings.Join(cluster, ",")
		g.Go(func() error { return m.Restart(ctx) })
	}
	if err := g.Wait(); err != nil {
		for _, m := range members {
			if m.Process != nil {
				_ = m.Kill()
			}
		}
		return nil, err
	}
	return members, nil
}

// Restart runs the member, for the first time or again after it has ended, and returns
// once it serves. A member that still runs is an error.
func (e *Etcd) Restart(ctx context.Context) error {
	if e.Process != nil {
		select {
		case <-e.Done():
		default:
			return fmt.Errorf("stack: etcd %s is started again while it runs", e.Name)
		}
	}
	args := append([]string{
		"--dir", e.opts.Dir, "--name", e.opts.name, "--listen", e.opts.Listen, "--peer", e.opts.peer,
		"--initial-cluster", e.opts.cluster, "--no-fsync",
	}, e.opts.Args...)
	proc, line, err := startReady(ctx, "etcd "+e.Name, filepath.Join(e.opts.BinDir, "devetcd"), args...)
	if err != nil {
		return err
	}
	var ready struct{ Endpoints []string }
	if err := json.Unmarshal(line, &ready); err != nil {
		_ = proc.Kill()
		return fmt.Errorf("stack: etcd's ready line %q: %w", line, err)
	}
	e.Process, e.Endpoints = proc, ready.Endpoints
	return nil
}

// Register is a running `extproc register`.
type Register struct{ *Process }

// RegisterOptions say how to run a Register.
type RegisterOptions struct {
	BinDir    string
	EngineURL string        // address of the worker that it registers
	Etcd      []string      // etcd's addresses
	Prefix    string        // of the keys; empty: the command's default
	TTL       time.Duration // of the lease; 0: the command's default
	Args      []string
}

// StartRegister runs `extproc register` beside a worker. It does not wait until the
// worker is registered: a caller that needs the worker must wait until the plugin has it.
func StartRegister(ctx context.Context, o RegisterOptions) (*Register, error) {
	args := []string{
		"register", "--engine-url", o.EngineURL, "--etcd-endpoints", strings.Join(o.Etcd, ","), "--log-format", "json",
	}
	if o.Prefix != "" {
		args = append(args, "--etcd-prefix", o.Prefix)
	}
	if o.TTL != 0 {
		args = append(args, "--lease-ttl", o.TTL.String())
	}
	proc, err := start(ctx, "register of "+o.EngineURL, nil, filepath.Join(o.BinDir, "extproc"), append(args, o.Args...)...)
	if err != nil {
		return nil, err
	}
	return &Register{proc}, nil
}

// Registered returns the id under which the worker was registered last, and when etcd had
// it, according to the command's log. False means that the worker was not registered yet.
func (r *Register) Registered() (id worker.ID, since time.Time, ok bool) {
	for line := range strings.Lines(r.Log()) {
		var said struct {
			Time time.Time `json:"time"`
			Msg  string    `json:"msg"`
			ID   worker.ID `json:"worker_id,string"`
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "worker registered" {
			id, since, ok = said.ID, said.Time, true
		}
	}
	return id, since, ok
}
