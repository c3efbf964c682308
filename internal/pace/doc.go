// Package pace learns how long ranks take to compute prompts: seconds for a token, and seconds for
// a request, of each rank, from what it has spent on its legs.
//
// # Contract
//
// A [Fleet] is told of each leg that a rank has ended ([Fleet.Ended]): how long the rank was busy with it,
// and how many tokens it had to compute. It answers what it believes of a rank ([Fleet.Of]), and of
// all ([Fleet.Mean]). It is not safe for concurrent use, and reads no clock.
//
// The load book shares a rank's time out among its legs (internal/load/queue.go). What a leg got of it is
// a·tokens + b, by least squares over the legs, of which each new one makes the older ones count 2 %
// less; so does each leg of every mate on average, so that a rank that gets no legs is not slow for ever.
//
// # What holds
//
//   - A rank of which little is known is believed to be like the fleet, and one that differs from it by
//     less than 1.3 times is, too: small differences are others' load as often as a rank's own speed,
//     and routers that know only their own picks would else flee from each other
//     (docs/routing-quality.md).
//   - A rank that has become faster or slower at once is found by a cumulative sum of the logarithms of
//     real to expected times; what was learned before the change is then forgotten.
//   - One leg that took very long moves a rank's values little.
//   - Values are finite and not negative. Memory is bounded by the ranks that are kept ([Fleet.Keep]).
//
// # What it does not do
//
// It does not know what a leg was, or whether it served: the caller leaves out those that failed, were
// cancelled, or had nothing to compute. It knows no queue: how long a rank will be busy is the load
// book's business.
package pace
