//go:build long

package extproc

// everyFleet says whether the tests use fleets of each shape, or one for each kind of
// hand-off.
const everyFleet = true
