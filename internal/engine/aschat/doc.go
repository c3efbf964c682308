// Package aschat makes of a message of Anthropic's API, or of a request for a response, the chat
// request that an engine makes of it, so that its tokens are counted as those of a chat. A room of an
// engine uses it for those paths on which the engine does the same.
//
// # Contract
//
// [Message] and [Response] return a body of /v1/chat/completions that renders to the same prompt. It
// has the members on which a prompt depends, and no others. ok is false for what engines, or their
// versions, do differently, or what depends on the model's template: thinking that is sent back, an
// inline system or developer message, parts that are no text, tools of an engine's own. Then an
// engine has to be asked, or the prompt is estimated.
//
// # What holds
//
//   - What is returned is valid JSON, no longer than what a request may have plus some bytes for each
//     of its items. The request's own values are copied as they are written.
//   - Whether an engine renders the same prompt is not known before it has counted it: package tokens
//     compares the counts, and drops what differs.
//
// # What it does not do
//
// It renders nothing, and knows no engine: what differs is a value, [Rules].
package aschat
