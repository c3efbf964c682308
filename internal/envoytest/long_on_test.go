//go:build e2e && long

package envoytest

import "time"

// outage is how long etcd is away: longer than rivals' fleets live without it.
const outage = 60 * time.Second

// leavers is how many clients of each fleet may leave at any moment.
const leavers = 4000
