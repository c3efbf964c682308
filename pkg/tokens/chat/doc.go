// Package chat makes the text that an engine makes of a chat request: it gives the model's
// chat template (package jinja) the messages in the form in which that engine gives them.
//
// Contract. [Compile] reads a template with the model's special tokens; a [Template] is
// immutable and safe for concurrent use. [Template.Render] takes the raw JSON of a request's
// members, as they stand in its body, and returns the text in pieces. Whatever is not known
// to be the same in the engine is refused by name ([jinja.Refused]); the caller then asks the
// engine. Nothing is guessed, and no error holds a text of a request.
//
// Who renders a template is a [Caller]: a value that says in what form the template is given a
// request. [Transformers] gives all as it is. Of the engines that Baton knows CallerOf of package
// tokens returns them; for another engine one can be written.
//
// # Pieces and what they cost
//
// A [Store] keeps each message as decoded and prepared, by the bytes of its JSON, so a
// conversation's next turn decodes only what is new; and each message keeps what the
// template's loop wrote for it (package jinja). A piece of a message that is as it was is the
// very same string. Which pieces are not, when a turn is added:
//
//	qwen3        messages after the question before: their reasoning is dropped now
//	llama3_1     none but the new ones
//	deepseek_v3  none but the new ones (a tool's answer that was last: its end follows it)
//	gemma3       none but the new ones
//	mistral_nemo none but the new ones
//
// At 400 KB in 400 messages the next turn takes a quarter to a third of a millisecond from the
// raw messages to the pieces; the template run whole, two to four milliseconds.
//
// A template whose loop reads what cannot be recorded (a macro that reads or changes names
// outside of it, a macro defined in the loop) is run whole each time. It still gives a piece
// for each message, and a message's JSON is decoded once.
//
// Invariants:
//
//   - the pieces joined are the engine's text, byte for byte.
//   - what is rendered does not depend on what a Store holds.
//   - a Store holds at most its limit of bytes. What it holds of one client's request
//     changes nothing of another's: an entry is used only for the very same bytes.
//
// What it does not do: know an engine, know which template an engine was started with, count tokens, read
// files, ask engines, know a clock (strftime_now is given the time by the caller, or refused),
// prepare media. It logs nothing and keeps text in memory alone.
package chat
