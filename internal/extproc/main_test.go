package extproc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/extproc"
)

// TestMain is in a package of its own, since internal/config, which has the defaults, imports
// the package that is tested.
func TestMain(m *testing.M) {
	c := config.Default()
	c.Request.MaxBodiesBytes = 1 << 30 // the plugin takes a part of the machine's memory
	var err error
	extproc.Defaults, err = c.Server()
	if err != nil {
		panic(err)
	}
	extproc.Defaults.PrefillListener = "" // tests with legs of the plugin's own have a listener each
	goleak.VerifyTestMain(m)
}
