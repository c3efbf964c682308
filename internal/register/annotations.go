package register

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// maxAnnotations bounds the annotations file; Kubernetes bounds a pod's
// annotations at 256 KiB.
const maxAnnotations = 1 << 20

// parseAnnotations reads a file of Kubernetes' downward API: a line for each annotation,
// key="value", with the value escaped as in Go.
// https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
//
// If a key comes twice, the last one counts.
func parseAnnotations(data []byte) (map[string]string, error) {
	if len(data) > maxAnnotations {
		return nil, fmt.Errorf("%d bytes: expected at most %d", len(data), maxAnnotations)
	}
	out := map[string]string{}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		key, quoted, found := strings.Cut(text, "=")
		value, err := strconv.Unquote(quoted)
		if !found || key == "" || err != nil || quoted[0] != '"' {
			return nil, fmt.Errorf(`line %d: expected key="value"`, n)
		}
		out[key] = value
	}
	return out, nil
}
