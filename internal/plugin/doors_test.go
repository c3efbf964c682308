package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestASelectionHeaderIsWarnedOf at the start.
func TestASelectionHeaderIsWarnedOf(t *testing.T) {
	for _, on := range []string{"true", "false"} {
		r := startPlugin(t, "listen: 127.0.0.1:0\ngateway: {enabled: true, selection_header: "+on+"}\n")
		r.doors.tell(r.plugin)
		if on == "true" {
			require.Contains(t, r.log.String(), "gateway.selection_header is on")
		} else {
			require.NotContains(t, r.log.String(), "gateway.selection_header is on")
		}
	}
}
