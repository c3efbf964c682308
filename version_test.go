package baton

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheVersionIsWrittenOnce looks at those who cannot read VERSION: the chart, and the
// manifests for Kustomize that are written from it.
func TestTheVersionIsWrittenOnce(t *testing.T) {
	require.Regexp(t, `^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`, Version())
	file := func(path ...string) string {
		data, err := os.ReadFile(filepath.Join(path...))
		require.NoError(t, err)
		return string(data)
	}
	chart := file("charts", "baton", "Chart.yaml")
	require.Contains(t, chart, "\nversion: "+Version()+"\n")
	require.Contains(t, chart, "\nappVersion: \""+Version()+"\"\n")
	for _, kustomize := range []string{"base/baton.yaml", "istio/kustomization.yaml"} {
		said := regexp.MustCompile(`(?:app.kubernetes.io/version|newTag|image: baton): ?(\S+)`).FindAllStringSubmatch(file("examples", "kubernetes", kustomize), -1)
		require.NotEmpty(t, said)
		for _, s := range said {
			require.Equal(t, Version(), strings.TrimSpace(s[1]), "%s: %s", kustomize, s[0])
		}
	}
}
