// Package patience learns how long a leg may take before it is given up, from how long
// such legs have taken.
//
// # What is learned
//
// For each worker and [Kind] of request: the longest that it lately took, in multiples
// of an allowance which the caller makes of what is known of the request (its prompt
// tokens, its output tokens). The longest fades by 2 % with each request that was
// faster, so one slow answer is remembered for some fifty. The pool's own memory stands
// in for a worker that has answered no request of the kind yet.
//
// # Contract
//
// [Limits.Limit] returns the allowance times twice that multiple, never less than the
// allowance. Where neither worker nor pool has served the kind, it is three times the
// allowance (the first request of a life compiles and warms up), and at least half a
// minute for the kinds whose cost the prompt does not tell. [Limits.Took] learns from a
// leg that has served. [Limits.Forget] drops workers that have left. Safe for
// concurrent use.
//
// # What it does not do
//
// It blames nobody, ends nothing and reads no clock.
package patience
