// Package sides finds pairs of a prefill and a decode worker that make other tokens of one prompt:
// another chat template or tokenizer, or a prompt that one of the two cuts. Decode then attends to
// the KV of another prompt, and answers with 200.
//
// # What is compared
//
// Both workers of an attempt count the tokens of its prompt: prefill in the usage of its answer,
// decode in the usage of its own or, where that does not pass, at its /tokenize ([Book.Due]). Two
// different counts of one prompt are proof that the pair differs: nobody uses it from then on. Equal
// counts prove nothing, since two templates may be of equal length and a short prompt is not cut; but
// whoever has counted as another worker, or as Baton where that knows the tokens exactly, is *backed*.
//
// # Who stands alone
//
// If one worker of a pair that differs is backed and the other is not, the other one stands alone: it
// is used with no backed worker. Two workers that are not backed may still be a pair, as while a
// template is replaced on one worker after the other.
//
// # Lives
//
// All that is known of a worker ends with its life: when it leaves, when its record changes, when
// its process is found dead ([Book.Renew]). What an attempt of an earlier life tells is dropped
// ([Pair]).
//
// # Contract
//
// Pure: no clock, no lock, no I/O. A [Book] is not safe for concurrent use; the [Apart] that it
// returns is immutable. Memory is bounded by the number of workers, and by [mostPairs].
//
// # What it does not do
//
// It asks nobody, and does not know models: a worker's templates are its own.
package sides
