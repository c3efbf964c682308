package kubeparts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// compiler stands in for go: as long as the file broken is there, it ends in the middle of what it writes.
const compiler = `#!/bin/bash
for ((i = 1; i <= $#; i++)); do [ "${!i}" = -o ] && { n=$((i + 1)); out=${!n}; }; done
case "$1 ${2:-}" in
"list -m") dir=$ROOT/module; mkdir -p $dir/manifests/charts/istio-control/istio-discovery $dir/tools/packaging/common $dir/resources
  touch $dir/tools/packaging/common/envoy_bootstrap.json $dir/resources/base.yaml; echo $dir; exit;;
"list -f") exit;;
esac
[ -n "${out:-}" ] || exit
[ "${out%/}" = "$out" ] || out=${out}program
mkdir -p "$(dirname "$out")"
[ -e $ROOT/broken ] && { printf half >$out; kill -9 $PPID; exit 1; }
printf whole >$out
`

// teller stands in for what tells how far a step is: it keeps what the step says.
const teller = `#!/bin/bash
while (($# > 0)); do [ "$1" = -o ] && out=$2; shift; done
exec cat >"${out:-/dev/null}"
`

// TestWhatIsNotWholeIsNotThere: a build that is killed leaves nothing that counts as whole, also where an older
// one was; the next run makes it.
func TestWhatIsNotWholeIsNotThere(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for target, part := range map[string]string{
		".tools/kube-" + kubeVersion + "/kube":                 "",
		".tools/epp-" + eppVersion:                             "",
		".tools/pd-sidecar-" + sidecarVersion:                  "",
		".tools/istio-" + istioVersion + "/.whole":             "program",
		".tools/conformance-" + conformanceVersion + "/.whole": "conformance",
	} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			write := func(name, text string, mode os.FileMode) {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), mode))
			}
			write("Makefile", string(makefile), 0o600)
			write("bin/go", compiler, 0o755)
			write(".run/tally", teller, 0o755)
			for _, m := range []string{"kube", "epp", "sidecar", "istio", "conformance"} {
				write("test/kubeparts/"+m+"/go.mod", "", 0o600)
			}
			write("test/kubeparts/kube/main.go", "", 0o600)
			write("test/kubeparts/conformance/conformance_test.go", "", 0o600)
			build := func() error {
				cmd := exec.Command("make", "--no-print-directory", "HELD=1", target)
				cmd.Dir = root
				cmd.Env = []string{"PATH=" + filepath.Join(root, "bin") + ":" + os.Getenv("PATH"), "ROOT=" + root, "HOME=" + root}
				out, err := cmd.CombinedOutput()
				t.Logf("%s", out)
				return err
			}
			program := filepath.Join(filepath.Dir(target), part)
			if part == "" {
				program = target
			}
			is := func() string {
				text, err := os.ReadFile(filepath.Join(root, program))
				require.NoError(t, err)
				return string(text)
			}
			write("broken", "", 0o600)
			require.Error(t, build())
			require.NoFileExists(t, filepath.Join(root, target))
			require.NoError(t, os.Remove(filepath.Join(root, "broken")))
			require.NoError(t, build())
			require.Equal(t, "whole", is())
			require.FileExists(t, filepath.Join(root, target))

			// Its module has changed since.
			old := time.Now().Add(-time.Hour)
			require.NoError(t, os.Chtimes(filepath.Join(root, target), old, old))
			write("broken", "", 0o600)
			require.Error(t, build())
			if strings.HasSuffix(target, ".whole") {
				require.NoFileExists(t, filepath.Join(root, target))
			} else {
				require.Equal(t, "whole", is(), "the old one")
			}
			require.NoError(t, os.Remove(filepath.Join(root, "broken")))
			require.NoError(t, build())
			require.Equal(t, "whole", is())
		})
	}
}
