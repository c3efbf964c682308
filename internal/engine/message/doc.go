// Package message reads the messages and the tools of a chat request for the rooms of engines,
// whose callers of chat templates (pkg/tokens/chat) have this in common.
//
// # Contract
//
// A room says which members its engine's request model keeps, in which order it writes them, and
// what it makes of content, tool calls and tools. This package reads what is alike in all engines
// known, and refuses ([jinja.Refused]) what may not be.
//
// # What holds
//
//   - An object with a member that is not known, or with one of another kind than is known, is
//     refused: whether an engine keeps it, drops it or answers with an error is not known.
//   - Nothing that is given is changed, and no error holds a text of a request.
//
// # What it does not do
//
// It names no engine and no member that only one of them has.
package message
