// Package capability reads what an engine takes of a client: on which paths, and which members
// of a request's body may go to prefill and decode apart.
//
// # Contract
//
// A room of an engine has a file capabilities.txt, and [Must] makes a [Table] of it. A line is
// empty, a comment after #, or begins with one of these words:
//
//	source VERSION PLACE   where the rows below it are shown: the engine's version and its file
//	apart PATH...          the paths on which the engine takes a hand-off
//	one PATH...            the paths that one worker serves whole
//	any PATH...            those that a worker of any role does, since they need no KV
//	pass MEMBER...         members of the paths before, of which any value may be handed over
//	tokens MEMBER...       those of which any value may, and changes the prompt's tokens as nobody
//	                       here knows: what is told of these tokens is not what the engine counts
//	stop MEMBER TEST [with MEMBER TEST]
//	                       a member that prevents a hand-off if its value passes the test, and
//	                       so does that of the other member, if one is named
//
//	never MEMBER TEST      a member by which the engine ends if its value passes the test
//
// A TEST is given (not null), true (counts as true), empty, "is TEXT", "from N" (not below N), "over N",
// "not N", or "beside A,B", which an object passes whose type is neither A nor B.
// Of a list one element has to pass: for several prompts an engine may take a list with a value
// for each. A member "sampling_params.n" is a member of that member, or of each element of its
// list.
//
// # What holds
//
//   - What no row knows is not handed over: [Table.Obstacle] names it.
//   - A member without a value, which is null, prevents nothing.
//   - A Table is not changed, and safe for concurrent use. Obstacle allocates nothing unless it
//     returns a member that no row knows.
//
// # What it does not do
//
// It does not say how a hand-off is made: package handoff does. It judges no value that it need
// not know, and no number of prompts.
package capability
