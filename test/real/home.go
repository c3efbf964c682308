package real

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Mark is the file that a step of the install has once it is whole.
const Mark = ".whole"

// Home returns where the engines are, below the repository's root.
func Home(root string) string { return filepath.Join(root, ".tools", "real") }

// SitePackages returns the folder of a virtual environment's packages, empty where there
// is none.
func SitePackages(venv string) string {
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python3.*", "site-packages"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[0]
}

// CanRun tells all that keeps the engines from running on this machine.
func CanRun() error {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		cpu = nil
	}
	return canRun(runtime.GOOS+"/"+runtime.GOARCH, string(cpu))
}

// canRun judges a platform and its CPU's description, empty where there is none.
func canRun(platform, cpu string) error {
	var errs []error
	if platform != "linux/amd64" {
		errs = append(errs, fmt.Errorf("vLLM for CPUs is tried on linux/amd64, this is %s", platform))
	}
	if cpu != "" && !strings.Contains(cpu, " avx2") {
		errs = append(errs, errors.New("the CPU has no AVX2, which vLLM for CPUs needs"))
	}
	return errors.Join(errs...)
}

// Installed tells what of the install is missing.
func Installed(home string) error {
	var errs []error
	for _, step := range []string{"uv", "vllm", "mooncake", "sglang", "node", "clients", "models"} {
		if _, err := os.Stat(filepath.Join(home, step, Mark)); err != nil {
			errs = append(errs, fmt.Errorf("%s is not installed: run make real", step))
		}
	}
	return errors.Join(errs...)
}

// StartBytes is the memory that an engine takes with its processes while it starts.
const StartBytes = 3 << 30

// FreeMemory returns the bytes of memory that a new process may take.
func FreeMemory() (uint64, error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if kib, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
