package node

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	disk     = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
	noGroups = disk + "23 27 0:22 / /sys rw - sysfs sysfs rw\n31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
	inV1     = noGroups + `32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
`
	hybrid = inV1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	v2     = disk + "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
)

// whole is a place that lacks nothing.
func whole() *Place {
	return &Place{
		Capabilities: 1<<41 - 1, Mounts: v2, Filesystems: "nodev\tproc\nnodev\toverlay\n\text4\n", Namespaces: []string{"cgroup", "ipc", "mnt", "net", "pid"},
		Groups: map[string]string{"cgroup.controllers": "cpuset cpu io memory hugetlb pids\n"}, Netfilter: true,
		Programs: []string{"ip", "tar", "ldd", "cc", "apt-get", "dpkg-deb"}, Temporary: "/tmp", Disk: 20000, Memory: 16000,
	}
}

func TestAPlaceSaysAllThatItLacks(t *testing.T) {
	group := func(name, text string) func(*Place) { return func(p *Place) { p.Groups[name] = text } }
	mounts := func(text string) func(*Place) { return func(p *Place) { p.Mounts = text } }
	for name, tt := range map[string]struct {
		with []func(*Place)
		want []string // the beginning of each, and how to get it
	}{
		"cgroup v2 alone, all controllers delegated": {nil, nil},
		"cgroup v1": {[]func(*Place){mounts(inV1)}, nil},
		"hybrid: v2 without controllers beside v1": {[]func(*Place){mounts(hybrid), group("cgroup.controllers", "")}, nil},
		"v1 without a hierarchy of pids": {
			[]func(*Place){mounts(strings.ReplaceAll(inV1, "rw,pids", "rw,freezer"))},
			[]string{"cgroup v1 with the controllers pids mounted", "mount -t cgroup -o NAME"},
		},
		"no cgroups":                           {[]func(*Place){mounts(noGroups)}, []string{"cgroups: nothing is mounted", "mount -t cgroup2"}},
		"hybrid, of which v2 alone is mounted": {[]func(*Place){mounts(noGroups + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")}, []string{"cgroups: nothing is mounted", "--privileged"}},
		"v2 without controllers":               {[]func(*Place){group("cgroup.controllers", "")}, []string{"cgroup v2 with the controllers cpu, cpuset, memory, pids", "Delegate=yes"}},
		"v2 without cpuset":                    {[]func(*Place){group("cgroup.controllers", "cpu io memory pids\n")}, []string{"cgroup v2 with the controllers cpuset", "Delegate=yes"}},
		"a container with v2 read-only":        {[]func(*Place){mounts(strings.Replace(v2, "rw,nosuid", "ro,nosuid", 1))}, []string{"cgroups that can be written", "--privileged"}},
		"a container with v1 read-only":        {[]func(*Place){mounts(strings.Replace(inV1, "memory rw,", "memory ro,", 1))}, []string{"cgroups that can be written", "--privileged"}},
		"a container whose root group has processes": {
			[]func(*Place){group("cgroup.type", "domain\n"), group("cgroup.procs", "1\n7\n")},
			[]string{"cgroup v2 whose root hands controllers on", "/sys/fs/cgroup/init"},
		},
		"a container whose root group has processes no more": {[]func(*Place){group("cgroup.type", "domain\n"), group("cgroup.procs", "")}, nil},
		"a container whose root group has handed on": {
			[]func(*Place){group("cgroup.type", "domain\n"), group("cgroup.procs", "1\n"), group("cgroup.subtree_control", "cpuset cpu memory pids\n")}, nil,
		},
		"the machine's own root has processes": {[]func(*Place){group("cgroup.procs", "1\n7\n")}, nil},
		"a user":                               {[]func(*Place){func(p *Place) { p.UID = 1000; p.Capabilities = 0 }}, []string{"root: user 1000", "sudo"}},
		"a container without rights": {
			[]func(*Place){func(p *Place) { p.Capabilities &^= 1<<21 | 1<<12 }},
			[]string{"the capability CAP_NET_ADMIN", "--privileged", "the capability CAP_SYS_ADMIN", "--privileged"},
		},
		"files on an overlayfs": {
			[]func(*Place){mounts(v2 + "50 27 0:40 / / rw - overlay overlay rw,lowerdir=l\n")}, []string{"a place for files of containers: /tmp is on an overlayfs", "TMPDIR"},
		},
		"files on a volume of a container":       {[]func(*Place){mounts(v2 + "50 27 0:40 / / rw - overlay overlay rw\n51 27 0:41 / /tmp rw - tmpfs tmpfs rw\n")}, nil},
		"a folder beside a mount of a like name": {[]func(*Place){mounts(v2 + "51 27 0:41 / /tm rw - overlay overlay rw\n")}, nil},
		"a bare system": {
			[]func(*Place){func(p *Place) {
				p.Programs, p.Filesystems, p.Netfilter, p.Namespaces = nil, "nodev\toverlayfs2\n", false, []string{"mnt", "net", "pid"}
			}},
			[]string{
				"namespaces of the kind cgroup", "another kernel", "netfilter", "modprobe nf_tables", "overlayfs", "modprobe overlay",
				"the program apt-get", "apt", "the program cc", "gcc libc6-dev", "the program dpkg-deb", "dpkg",
				"the program ip", "iproute2", "the program ldd", "libc-bin", "the program tar", "tar",
			},
		},
		"a small machine": {[]func(*Place){func(p *Place) { p.Disk, p.Memory = 100, 1000 }}, []string{"disk: 100 MiB", "remove", "memory: 1000 MiB", "end other"}},
		"much at once": {
			[]func(*Place){mounts(noGroups), func(p *Place) { p.UID, p.Memory = 1, 0 }},
			[]string{"cgroups: nothing", "mount", "memory: 0", "end", "root: user 1", "sudo"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := whole()
			for _, do := range tt.with {
				do(p)
			}
			lacks := p.Lacks(Need{Build: true, Disk: 12000, Memory: 5000})
			require.Len(t, lacks, len(tt.want)/2, "%v", lacks)
			for i, l := range lacks {
				require.Contains(t, l.What, tt.want[2*i])
				require.Contains(t, l.Get, tt.want[2*i+1])
				require.Contains(t, Told(lacks), l.What)
			}
		})
	}
}

// What is built asks for no compiler.
func TestAPlaceThatBuildsNothingNeedsNoCompiler(t *testing.T) {
	p := whole()
	p.Programs, p.Disk = []string{"ip", "tar", "ldd"}, 3000
	require.Empty(t, p.Lacks(Need{Disk: 2000}))
}

// The groups of the machine that runs this are found as they are told.
func TestHierarchiesAreThoseOfOneVersion(t *testing.T) {
	c := controlOf(hybrid)
	require.False(t, c.two)
	require.Len(t, c.folders, 6)
	require.Equal(t, "/sys/fs/cgroup/unified", c.beside, "in which runc makes groups, too")
	require.Equal(t, "/sys/fs/cgroup/cpu,cpuacct", c.folders[0])
	c = controlOf(v2)
	require.True(t, c.two)
	require.Equal(t, []string{groups}, c.folders)
}
