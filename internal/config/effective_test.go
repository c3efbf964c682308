package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A body that is larger than all the room for large ones gets 413, whatever is configured.
func TestTheLargestBodyIsShownAsItIs(t *testing.T) {
	t.Parallel()
	for bodies, shown := range map[int64]string{8 << 20: "max_body_bytes: 6291456\n", 1 << 30: "max_body_bytes: 67108864\n"} {
		c := Default()
		c.Request.MaxBodiesBytes = bodies
		text, err := c.Effective()
		require.NoError(t, err)
		require.Contains(t, text, shown)
	}
}
