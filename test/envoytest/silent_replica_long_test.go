//go:build e2e && long

package envoytest

import (
	"testing"
	"time"
)

// TestASilentReplicaLosesFewRequests is TestASilentReplicaIsLeftOut for a whole minute.
func TestASilentReplicaLosesFewRequests(t *testing.T) {
	t.Parallel()
	eachOfThree(t, func(t *testing.T, three [3]*replica) { standStillOfThree(t, three, 20*time.Second, time.Minute, 3) })
}
