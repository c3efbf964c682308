// Package openai reads what routing needs from the JSON body of a completion
// request, and changes single members of it without touching any other byte.
//
// Contract. [Scan] makes one pass over a body: it checks that the whole of it
// is one JSON object, notes where the members it knows begin and end, and
// reads the few values that routing depends on. Nothing is decoded into maps
// and, with a reused [Request], nothing is allocated. A Request describes the
// very bytes it was filled from; handing any function of this package a
// Request together with other bytes is a fault of the caller.
//
// After a Scan without error:
//
//   - [AppendInjected], [InjectInPlace] and [AppendEdited] give valid JSON, as
//     long as what they are given to insert is valid JSON.
//   - No member that this package knows occurs twice, in any spelling: keys are
//     compared after unescaping, so "mod\u0065l" is "model". Keys are compared
//     exactly, as the engines do: "Model" is some other key.
//   - No top-level member that only a router may set is there
//     (docs/behaviour.md#router-only), unless [ScanInjected] was asked to let them pass. The
//     same names inside other values are the user's text and are let be.
//
// Of other paths [ScanOther] reads the model alone, of JSON and of forms, and refuses what
// only a router may set at any depth. [Control] says which paths are never passed on.
//
// Strictness. A body is refused exactly when [encoding/json.Valid] refuses it,
// or it is no object, or it nests deeper than [MaxDepth]. As there, UTF-8 is
// not checked: the engine does that.
//
// What this package does not do: it talks to nobody, knows no model and no
// tokenizer, and never puts a part of a prompt into an error.
package openai
