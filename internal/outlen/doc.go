// Package outlen knows what the answers of each model have lately been like: after how
// long the first token came, how many came a second, how many they were. From that it
// says what to expect of the next answer, so that its KV blocks can be booked while it
// grows.
//
// # Contract
//
// [Lately.Expect] says what an answer is expected to be and changes nothing.
// [Lately.Booked] takes that one is to come, [Lately.Wrote] what answers were seen to write
// while they ran, and [Lately.Heard] what came of one. How long an answer was that does not
// say it is judged by the pace and by how long it took. All are safe for concurrent use,
// read no clock and depend on nothing but what was heard before, in its order.
//
// What was heard counts less the more has been heard since: by half after some 22
// answers of the model. Speeds are tokens over seconds of all of them together, so that
// a long answer counts for more than a short one. How many tokens an answer has at most
// is what 19 of 20 of its class did not pass, twice over, and what the request allows if
// that is less; the class is that of requests that allow about as many. Before
// [enough] answers were heard the whole model stands for a class, and defaults for the
// model.
//
// # Bounds
//
// What a client says can only make less be expected: a request that allows 10^9 tokens
// is of the class of those that allow very many, whose answers are as long as answers
// are. What an engine says of one answer is believed up to [mostTokens] and [mostPace].
// A model is known once an answer of it is booked or heard: not for what is written
// alone, since a worker may have thousands of names that nobody asks for, nor for a question
// that books nothing. At most [mostModels] are known, in some 3 MB; of more, those go of
// which an answer was booked or heard longest ago. Callers name models that discovery
// lists, never a client's own words.
//
// # What it does not do
//
// It books nothing (internal/load does), asks no engine (internal/loads does), and knows
// no worker: where workers differ, or are slower the more they run, what they report
// puts it right.
package outlen
