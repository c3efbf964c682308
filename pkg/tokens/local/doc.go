// Package local makes a model's token ids in this process, from the files with which the
// model is published: tokenizer.json, and for conversations tokenizer_config.json and
// chat_template.jinja.
//
// Contract. [Read] reads the files, [New] makes a [Model] of them or says why it cannot,
// and [Model.Append] gives the ids that an engine of that model gives for the same
// request. An error means that this is not known of the request, or of the model: the
// caller then asks an engine. No error holds a text of a request.
//
// Whether a model's files are those that its engines were started with cannot be seen in
// them: an engine may have another template, or add a token. So the caller puts a Model to
// work only after a trial. [Trials] are requests; an engine is asked for the tokens of
// each, and [Model.Compare] says where they begin to differ from the model's own.
//
// Invariants:
//
//   - Append gives the ids of the whole prompt, or an error.
//   - What is remembered of one request changes no other's ids. It is bounded by
//     [Limits].CacheBytes.
//   - At most [Limits].Encoders requests are encoded at once; others wait for them.
//
// What this package does not do: it asks no engine, counts no metric, truncates nothing,
// knows no pictures, and writes no text anywhere.
package local
