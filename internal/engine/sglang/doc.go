// Package sglang says what Baton knows of SGLang: see package engine. Both halves of a pair begin
// at once and meet at the prefill worker's bootstrap server, in a room of the request's own.
package sglang
