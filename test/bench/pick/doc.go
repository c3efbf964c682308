// Command pick measures how long a decision takes and how that grows with the
// fleet: the pick alone, the pick with its booking, the look-up in the index,
// and all of it from the prompt's block hashes on.
//
// Every rank of the fleet is busy and holds a system prompt, one in eight holds
// the conversation that a request belongs to, a worker in a hundred is set
// aside. Each figure is the middle one (p50) of many runs timed singly; of five
// repeats the best is printed, since the others were disturbed. Figures of
// different machines cannot be compared; allocations can.
package main
