// Package handoff says, engine by engine, what the body and the headers of each
// leg must carry so that prefill and decode of one request find each other.
// One file an engine. Everything here is pure: values in, bytes out.
//
// The package appends JSON members and names edits; it never reads a body.
// internal/openai knows where they go.
package handoff
