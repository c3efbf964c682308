package host

import (
	"bufio"
	"os"
	"strings"
)

// CPU returns the processor's model, or "" where the system does not tell it.
func CPU() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, is := strings.CutPrefix(s.Text(), "model name"); is {
			return strings.TrimLeft(name, "\t :")
		}
	}
	return ""
}
