package routetable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPathWithoutAClassIsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ classes, engine, want string }{
		"all fits":            {"# a word\n\nread /a\nnever /b /c/{id}\n", "/a POST\n/b GET,POST\n/c/{id} GET\n", ""},
		"a new path":          {"read /a\n", "/a POST\n/b GET\n", "/b of e-1 has no class"},
		"a path that is gone": {"read /a\nnever /b\n", "/a POST\n", "/b is never, and no engine declares it"},
		"two classes":         {"read /a\nnever /a\n", "/a POST\n", "/a stands in classes twice"},
		"an unknown class":    {"some /a\n", "/a POST\n", `class "some"`},
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "classes"), []byte(c.classes), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "e-1"), []byte(c.engine), 0o600))
		_, err := Classes(dir)
		if c.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.want, name)
		}
	}
	_, err := Classes(t.TempDir())
	require.Error(t, err)
	require.Equal(t, "/v1/x17/y/x17", Concrete("/v1/{a}/y/{b:path}"))
}
