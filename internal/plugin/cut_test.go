package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextFromOutsideIsShortAndHasNoPassword(t *testing.T) {
	got := cut(`workers.yaml:3: endpoint "http://user:` + strings.Repeat("secret", 100) + `@10.0.0.1:80": expected ip:port`)
	require.Equal(t, `workers.yaml:3: endpoint "http://xxxxx@10.0.0.1:80": expected ip:port`, got)
	require.LessOrEqual(t, len(cut(strings.Repeat("ä", 1000))), 303)
}
