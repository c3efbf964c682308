// Package engine says what Baton knows of a serving engine: its hand-off, what its requests,
// events and pages can, and what they lack. Each engine is a room, a package below this one
// with one value of [Engine]. Package engines below lists the rooms, and is what others ask.
//
// # Contract
//
// An [Engine] is data. What the engine does is written in its room alone, with the file of the
// engine's source that shows it. Other packages ask for a property, never for a name: a package
// that would compare names wants a field here.
//
// # What holds
//
//   - Nobody changes an Engine or a hand-off's Protocol.
//   - Of an engine that is not listed nothing is known: no hand-off, no property.
//   - A room imports the tools of rooms, ask, capability, handoff and message, and another room
//     only if that engine is the same program with another part.
//
// # What it does not do
//
// It opens no connection and keeps no state. The public names of the engines, and whether their
// records need a bootstrap address, are in pkg/worker, which imports nothing of Baton.
package engine
