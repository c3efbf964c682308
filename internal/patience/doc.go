// Package patience learns how long a leg may take before it is given up, from how long
// such legs have taken.
//
// # What is learned
//
// For each worker and [Kind] of request it learns the longest time of late, as a multiple
// of an allowance. The caller works the allowance out from the request (its prompt
// tokens, its output tokens). The longest fades by 2 % with each request that was faster,
// so that one slow answer counts for some fifty requests. For a worker that has answered
// no request of the kind, the longest of its pool is used.
//
// # Contract
//
// [Limits.Limit] returns the allowance times twice that multiple, and at least the
// allowance. If neither worker nor pool has served the kind, it returns three times the
// allowance (the first request of a life compiles and warms up), and at least half a
// minute for the kinds whose cost the prompt does not show. [Limits.Took] learns from a
// leg that has served. [Limits.Repeat] says whether a leg that is over its limit may be given
// up for a fresh attempt: what it does may go on, so this is for few requests of a pool.
// [Limits.Repaid] tells it that the fresh attempt was the faster one. [Limits.Forget] drops
// workers that have left. Of more than 1,024 pools, the one that has served nothing for the
// longest time is forgotten. Safe for concurrent use.
//
// # What it does not do
//
// It charges no worker, ends nothing and reads no clock.
package patience
