//go:build long

package extproc

// everyFleet: fleets of each shape meet clients, not one of each hand-off alone.
const everyFleet = true
