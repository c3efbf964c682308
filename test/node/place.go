package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Place is what a machine has of what a cluster needs. Ports are not among it: the cluster has a network of its own.
type Place struct {
	UID          int
	Capabilities uint64            // the effective ones, as a mask
	Mounts       string            // /proc/self/mountinfo
	Filesystems  string            // /proc/filesystems
	Namespaces   []string          // names in /proc/self/ns
	Groups       map[string]string // of the root of cgroup v2: its files that control it, by name
	Netfilter    bool              // the kernel answers for it
	Programs     []string          // those of the needed ones that PATH has
	Temporary    string            // where temporary files are
	Disk, Memory uint64            // MiB that are free for .tools and for programs
}

// Need is what is asked of a place.
type Need struct {
	Build        bool   // parts are still to be built
	Disk, Memory uint64 // MiB
}

// Lack is something that a place does not have, and how to get it.
type Lack struct{ What, Get string }

const (
	groups     = "/sys/fs/cgroup"
	privileged = "in a container: start it with --privileged"
)

// debian are the packages of the programs that a cluster runs, and of those that build it.
func debian(build bool) map[string]string {
	out := map[string]string{"ip": "iproute2", "tar": "tar", "ldd": "libc-bin"}
	if build {
		out["cc"], out["apt-get"], out["dpkg-deb"] = "gcc libc6-dev", "apt", "dpkg"
	}
	return out
}

// Lacks says all that is lacking.
func (p *Place) Lacks(need Need) (out []Lack) {
	lack := func(is bool, get, what string, args ...any) {
		if is {
			out = append(out, Lack{fmt.Sprintf(what, args...), get})
		}
	}
	lack(p.UID != 0, "sudo make …, or a root shell", "root: user %d cannot make namespaces and mounts", p.UID)
	for bit, name := range map[int]string{12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"} {
		lack(p.UID == 0 && p.Capabilities&(1<<bit) == 0, privileged, "the capability %s, which root does not have here", name)
	}
	for _, name := range []string{"net", "mnt", "pid", "cgroup"} {
		lack(!slices.Contains(p.Namespaces, name), "another kernel", "namespaces of the kind %s", name)
	}
	out = append(out, p.lacksOfGroups()...)
	lack(!strings.Contains(p.Filesystems, "\toverlay\n"), "modprobe overlay", "overlayfs, from which containers have their files")
	lack(p.kindAt(p.Temporary) == "overlay", "TMPDIR=… of a real disk, or a volume there", "a place for files of containers: %s is on an overlayfs, which cannot hold another one's", p.Temporary)
	lack(!p.Netfilter, "modprobe nf_tables", "netfilter, by which kube-proxy serves Services")
	for program, from := range debian(need.Build) {
		lack(!slices.Contains(p.Programs, program), "apt-get install "+from, "the program %s", program)
	}
	lack(p.Disk < need.Disk, "remove what else is there: go clean -cache may have much", "disk: %d MiB are free for .tools and Go's cache, and %d are needed", p.Disk, need.Disk)
	lack(p.Memory < need.Memory, "end other programs", "memory: %d MiB are available, and %d are needed", p.Memory, need.Memory)
	slices.SortStableFunc(out, func(a, b Lack) int { return strings.Compare(a.What, b.What) })
	return out
}

// Told is all that is lacking, as a text for a person.
func Told(lacks []Lack) string {
	var out strings.Builder
	out.WriteString("this machine lacks what a cluster in namespaces of its own needs:\n")
	for _, l := range lacks {
		fmt.Fprintf(&out, "  - %s\n      %s\n", l.What, l.Get)
	}
	return out.String()
}

// lacksOfGroups: a kubelet takes its pods' processors and memory from these controllers.
func (p *Place) lacksOfGroups() []Lack {
	c := controlOf(p.Mounts)
	needed := []string{"cpu", "cpuset", "memory", "pids"}
	missing := func(has []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(needed), func(n string) bool { return slices.Contains(has, n) }), ", ")
	}
	switch without := missing(c.controllers(p.Groups)); {
	case len(c.folders) == 0:
		return []Lack{{"cgroups: nothing is mounted below " + groups, "mount -t cgroup2 none " + groups + ", or " + privileged}}
	case c.readOnly:
		return []Lack{{"cgroups that can be written: " + groups + " is mounted read-only", privileged}}
	case without != "" && c.two:
		return []Lack{{"cgroup v2 with the controllers " + without, "in a container or a unit: what started it has to delegate them (systemd: Delegate=yes); else the kernel's command line may disable them"}}
	case without != "":
		return []Lack{{"cgroup v1 with the controllers " + without + " mounted below " + groups, "mount -t cgroup -o NAME cgroup " + groups + "/NAME"}}
	case c.two && p.Groups["cgroup.type"] != "" && p.Groups["cgroup.procs"] != "" && missing(strings.Fields(p.Groups["cgroup.subtree_control"])) != "":
		return []Lack{{
			"cgroup v2 whose root hands controllers on: this container's has processes of its own, and then it cannot",
			"mkdir " + groups + "/init; for p in $(cat " + groups + "/cgroup.procs); do echo $p >" + groups + "/init/cgroup.procs; done",
		}}
	}
	return nil
}

// kindAt is the kind of the file system that a path is on.
func (p *Place) kindAt(path string) (kind string) {
	best := ""
	eachMount(p.Mounts, func(at, _, is, _ string) {
		if rel, err := filepath.Rel(at, path); err == nil && filepath.IsLocal(rel) && len(at) >= len(best) {
			best, kind = at, is
		}
	})
	return kind
}

// control says how cgroups are mounted: the folders of v1's hierarchies, or v2's one. Beside v1's there may be
// one of v2 that has no controllers, in which runc makes groups, too.
type control struct {
	folders  []string
	beside   string   // the folder of v2 among those of v1
	v1       []string // its controllers
	two      bool
	readOnly bool
}

func controlOf(mounts string) (c control) {
	eachMount(mounts, func(at, options, kind, of string) {
		below := filepath.Dir(at) == groups
		switch {
		case kind == "cgroup" && below:
			c.v1 = append(c.v1, strings.Split(of, ",")...)
		case kind == "cgroup2" && below:
			c.beside = at
			return
		case kind == "cgroup2" && at == groups:
			c.two = true
		default:
			return
		}
		c.folders = append(c.folders, at)
		c.readOnly = c.readOnly || slices.Contains(strings.Split(options, ","), "ro")
	})
	if len(c.v1) > 0 && c.beside != "" {
		c.folders = append(c.folders, c.beside)
	}
	return c
}

func (c *control) controllers(ofRoot map[string]string) []string {
	if c.two {
		return strings.Fields(ofRoot["cgroup.controllers"])
	}
	return c.v1
}

// eachMount calls do with each mount's folder and options, and with the kind and the options of its file system.
func eachMount(mounts string, do func(at, options, kind, of string)) {
	for line := range strings.Lines(mounts) {
		mount, system, _ := strings.Cut(line, " - ")
		if m, s := strings.Fields(mount), strings.Fields(system); len(m) > 5 && len(s) > 2 {
			do(m[4], m[5], s[0], s[2])
		}
	}
}
