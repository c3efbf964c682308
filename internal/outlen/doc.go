// Package outlen learns how the answers of each model have lately been: how long their
// first token took, how many tokens came a second, and how many in all. From that it says
// what to expect of the next answer, so that its KV blocks can be booked while it grows.
//
// # Contract
//
// [Lately.Expect] says how an answer is expected to be, and changes nothing.
// [Lately.Booked] takes that an answer is booked, [Lately.Wrote] what running answers
// were seen to write, and [Lately.Heard] how an answer was at its end. If the length of
// an answer is not reported, it is worked out from the pace and from how long the answer
// took. All are safe for concurrent use, read no clock, and depend only on earlier calls
// and their order.
//
// Each report counts less with every later one: half after some 22 answers of the model.
// The pace is the sum of tokens over the sum of seconds, so that a long answer counts
// more than a short one. An answer is expected to have at most twice the tokens that 19 of
// 20 answers of its class did not exceed, or what the request allows if that is less. A
// class is the requests that allow about as many tokens. Until a class has [enough]
// answers, all answers of the model stand for it; until the model has, defaults do.
//
// # Bounds
//
// What a client says can only lower what is expected: a request that allows 10^9 tokens
// is in the class of those that allow very many, whose answers have ordinary lengths.
// What an engine says about one answer is believed up to [mostTokens] and [mostPace]. A
// model is kept once an answer of it is booked or reported. A report of what is being
// written does not add a model, since a worker may have thousands of names that no
// request uses; nor does a question that books nothing. At most [mostModels] are kept, in
// some 3 MB; beyond that, those are dropped whose last booking or report is the oldest.
// Callers give names of models that discovery lists, never a client's own words.
//
// # What it does not do
//
// It books nothing (internal/load does), asks no engine (internal/loads does), and knows
// no worker: if workers differ, or are slower the more they run, their reports correct
// the bookings.
package outlen
