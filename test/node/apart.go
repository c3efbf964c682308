//go:build kube

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The program runs three times: as it was started, as the first process of the namespaces,
// which reaps what has lost its parent, and inside. These say to a process which it is.
const (
	stageVar  = "BATON_NODE_STAGE"
	folderVar = "BATON_NODE_FOLDER" // for files, removed at the end
	groupVar  = "BATON_NODE_CGROUP" // its name in each hierarchy
	prefix    = "baton-node-"
	ownGroup  = groups + "/node" // with v2, inside: of what is in no pod
)

// Apart runs inside in namespaces of its own, and returns its exit code. All that the process
// does before it is done three times.
func Apart(inside func() int) int {
	var code int
	var err error
	switch os.Getenv(stageVar) {
	case "":
		code, err = outside()
	case "init":
		code, err = first()
	default:
		err = settle()
		if err == nil {
			return inside()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	return code
}

// Folder is where the program inside keeps its files.
func Folder() string { return os.Getenv(folderVar) }

// Outside is the number by which others know the first process of the namespaces.
func Outside() (string, error) {
	pid, err := os.ReadFile(filepath.Join(Folder(), outsideFile))
	return string(pid), err
}

const outsideFile = "outside.pid"

// outside makes the cgroups, and runs the rest in them.
func outside() (code int, err error) {
	here := Here()
	if lacks := here.Lacks(Need{}); len(lacks) > 0 {
		return 0, errors.New(Told(lacks))
	}
	name := prefix + strconv.Itoa(os.Getpid())
	c := controlOf(here.Mounts)
	removeStale(c.folders)
	if c.two {
		restore, err := handOn(groups)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, restore()) }() // once the group below is gone
	}
	defer func() {
		for _, h := range c.folders {
			removeGroup(filepath.Join(h, name))
		}
	}()
	if err := c.makeGroups(name); err != nil {
		return 0, err
	}
	folder, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	return again(&syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}, stageVar+"=init", groupVar+"="+name, folderVar+"="+folder)
}

// first is the first process of the namespaces. When it ends, all others there are killed.
func first() (int, error) {
	for _, h := range controlOf(Here().Mounts).folders {
		if err := os.WriteFile(filepath.Join(h, os.Getenv(groupVar), "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return 0, err
		}
	}
	for _, m := range []struct {
		what, at, kind string
		flags          uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.what, m.at, m.kind, m.flags, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := os.Mkdir("/run/lock", 0o755); err != nil {
		return 0, err
	}
	// The new namespace of cgroups has the groups above as its roots.
	return again(&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWCGROUP}, stageVar+"=inside")
}

// settle makes the place what a node's programs expect.
func settle() error {
	c := controlOf(Here().Mounts)
	if err := c.settle(); err != nil {
		return err
	}
	// The kubelet writes these, and they are the whole machine's: it writes files instead.
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join("/run", strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", name, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil { // the kubelet hands mounts on to containers
		return err
	}
	for _, args := range []string{
		"link set lo up",
		"link add eth0 type veth peer name eth0p", // its other end is nobody's
		"link set eth0p up",
		"address add " + Address + "/24 dev eth0",
		"link set eth0 up",
		"route add default via 10.77.0.1",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// again runs this program with the variables, and returns its exit code. Until it has ended,
// this process hands signals on to it and reaps all others that have become its children.
func again(how *syscall.SysProcAttr, variables ...string) (int, error) {
	for _, v := range variables { // set here, since of two values of one variable the first one counts
		key, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(key, value); err != nil {
			return 0, err
		}
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: how,
	})
	if err != nil {
		return 0, fmt.Errorf("namespaces: %w", err)
	}
	if how.Cloneflags != 0 { // inside, it has another number
		err := os.WriteFile(filepath.Join(Folder(), outsideFile), []byte(strconv.Itoa(child.Pid)), 0o644)
		if err != nil {
			return 0, errors.Join(err, child.Kill())
		}
	}
	go func() {
		for s := range signals {
			_ = child.Signal(s)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case pid != child.Pid:
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// makeGroups makes a group in each hierarchy. A new one of v1 has no processors, and then holds no process.
func (c *control) makeGroups(name string) error {
	for _, h := range c.folders {
		at := filepath.Join(h, name)
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if c.two {
			continue // a new group has all
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h, file))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			err = errors.Join(err, os.WriteFile(filepath.Join(at, file), value, 0o644))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// settle has the groups of the namespace as the roots of the hierarchies. A group of v2 that hands controllers
// on has no processes of its own: the ones that are there go to a group beside those of the pods.
func (c *control) settle() error {
	for _, h := range c.folders {
		kind, options := "cgroup2", ""
		if !c.two && h != c.beside {
			kind, options = "cgroup", filepath.Base(h)
		}
		if options == "systemd" {
			options = "none,name=systemd"
		}
		if err := unix.Unmount(h, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", h, err)
		}
		if err := unix.Mount(kind, h, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount %s: %w", h, err)
		}
	}
	if !c.two {
		return nil
	}
	if err := os.Mkdir(ownGroup, 0o755); err != nil {
		return err
	}
	all, err := os.ReadFile(filepath.Join(groups, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(all)) {
		if err := os.WriteFile(filepath.Join(ownGroup, "cgroup.procs"), []byte(pid), 0o644); err != nil {
			return err
		}
	}
	_, err = handOn(groups)
	return err
}

// handOn gives the groups below one of v2 all its controllers. What it returns takes back those that they did
// not have before.
func handOn(group string) (restore func() error, err error) {
	at := filepath.Join(group, "cgroup.subtree_control")
	all, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	before, err := os.ReadFile(at)
	if err != nil {
		return nil, err
	}
	var errs []error
	var added []string
	for _, name := range strings.Fields(string(all)) {
		if !slices.Contains(strings.Fields(string(before)), name) {
			added = append(added, name)
			errs = append(errs, os.WriteFile(at, []byte("+"+name), 0o644))
		}
	}
	return func() error {
		var errs []error
		for _, name := range added {
			errs = append(errs, os.WriteFile(at, []byte("-"+name), 0o644))
		}
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

// removeStale removes what programs have left that have been killed.
func removeStale(hierarchies []string) {
	for _, in := range append(slices.Clone(hierarchies), os.TempDir()) {
		found, _ := filepath.Glob(filepath.Join(in, prefix+"*"))
		for _, at := range found {
			number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(at), prefix), "-")
			pid, err := strconv.Atoi(number)
			switch {
			case err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH):
			case in == os.TempDir():
				_ = os.RemoveAll(at)
			default:
				removeGroup(at)
			}
		}
	}
}

// removeGroup removes a group and those below it. They have no process any more.
func removeGroup(at string) {
	below, _ := os.ReadDir(at)
	for _, e := range below {
		if e.IsDir() {
			removeGroup(filepath.Join(at, e.Name()))
		}
	}
	_ = os.Remove(at)
}
