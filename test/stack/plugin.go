package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Plugin is a running extproc.
type Plugin struct {
	*Process
	Admin  string // its admin address, with http://
	Socket string
}

// PluginOptions say how to run the plugin.
type PluginOptions struct {
	BinDir string
	Dir    string // for its configuration, socket and logs

	// Where the plugin finds workers: at least one of these three.
	Workers string   // the discovery file
	Pools   string   // the entries of discovery.kubernetes, separated by commas
	Etcd    []string // etcd's addresses
	Prefix  string   // of the workers' keys in etcd; empty: the plugin's default
	Dynamo  bool     // also read Dynamo's workers from this etcd

	Config  string // more YAML, appended to the generated configuration
	Listen  string // default: a unix socket in Dir
	Args    []string
	Cgroup  string // path of the cgroup.procs of the cgroup to run in; default: that of this process
	Pprof   bool   // serve Go's profiles on the admin address
	NotWait bool   // return before the plugin is ready

	// Passed is a socket at Listen that the plugin is given as systemd gives one; nil: none.
	Passed *os.File

	// Command replaces the arguments for serve. The caller then writes the configuration,
	// and AdminPort is the loopback port of its admin address.
	Command   []string
	AdminPort int
}

// StartPlugin runs the plugin and returns once it is ready.
func StartPlugin(ctx context.Context, o PluginOptions) (*Plugin, error) {
	ports, err := FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	p := &Plugin{Admin: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), Socket: filepath.Join(o.Dir, "extproc.sock")}
	if o.AdminPort != 0 {
		p.Admin = fmt.Sprintf("http://127.0.0.1:%d", o.AdminPort)
	}
	if o.Listen == "" {
		o.Listen = "unix://" + p.Socket
	}
	config := fmt.Sprintf("listen: %q\nadmin: {listen: \"127.0.0.1:%d\", pprof: %t}\n%s%s", o.Listen, ports[0], o.Pprof, o.discovery(), o.Config)
	name := filepath.Join(o.Dir, "extproc.yaml")
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		return nil, fmt.Errorf("stack: write the plugin's configuration: %w", err)
	}
	command := o.Command
	if command == nil {
		command = []string{"serve", "--config", name}
	}
	path, args := within(o.Cgroup, filepath.Join(o.BinDir, "extproc"), append(command, o.Args...))
	var files []*os.File
	if o.Passed != nil {
		files = []*os.File{o.Passed}
		path, args = "/bin/sh", append([]string{"-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"`, path}, args...)
	}
	proc, err := startWith(ctx, "extproc", nil, files, path, args...)
	if err != nil {
		return nil, err
	}
	p.Process = proc
	if o.NotWait {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err = poll(ctx, "the plugin to be ready", proc, func() bool {
		body, err := Get(ctx, p.Admin+"/readyz")
		return err == nil && strings.TrimSpace(body) != ""
	})
	if err != nil {
		_ = proc.Kill()
		return nil, fmt.Errorf("%w\n%s", err, proc.Log())
	}
	return p, nil
}

// discovery returns the section of the configuration that says where the plugin finds
// workers.
func (o PluginOptions) discovery() string {
	var parts []string
	if o.Workers != "" {
		parts = append(parts, fmt.Sprintf("file: %q", o.Workers))
	}
	if len(o.Etcd) > 0 {
		quoted := make([]string, len(o.Etcd))
		for i, e := range o.Etcd {
			quoted[i] = strconv.Quote(e)
		}
		etcd := "endpoints: [" + strings.Join(quoted, ", ") + "]"
		if o.Prefix != "" {
			etcd += fmt.Sprintf(", prefix: %q", o.Prefix)
		}
		parts = append(parts, "etcd: {"+etcd+"}")
	}
	if o.Pools != "" {
		parts = append(parts, "kubernetes: ["+o.Pools+"]")
	}
	if o.Dynamo {
		parts = append(parts, "dynamo: true")
	}
	if len(o.Etcd) > 0 || o.Pools != "" { // the workers of a stack are on this machine
		parts = append(parts, "networks: [127.0.0.0/8]")
	}
	return "discovery: {" + strings.Join(parts, ", ") + "}\n"
}
