// Package openai reads what routing needs from the JSON body of a completion request, and
// changes single members without touching any other byte.
//
// Contract. [Scan] makes one pass over a body: it checks that the body is one JSON
// object, notes where the members begin and end that it knows, and reads the few values
// that routing depends on. It decodes nothing into maps and, with a reused [Request],
// allocates nothing. A Request describes the bytes from which it was filled: a caller
// must not pass it to a function of this package together with other bytes.
//
// After a Scan without error:
//
//   - [InjectInPlace] and [AppendEdited] give valid JSON if what they
//     insert is valid JSON.
//   - No member that this package knows occurs twice, in any spelling: keys are compared
//     after unescaping, so that "mod\u0065l" is "model". Upper and lower case differ, as
//     in the engines: "Model" is another key.
//   - No top-level member is there that only a router may set
//     (docs/behaviour.md#router-only), unless [ScanInjected] was called, which allows
//     them. The same names inside other values are the user's text, and are not looked
//     at.
//
// On other paths [ScanOther] reads only the model, of JSON and of forms, and refuses at
// any depth what only a router may set. [Control] says which paths are never passed on.
//
// Strictness. A body is refused exactly if [encoding/json.Valid] refuses it, or if it is
// not an object, or if it nests deeper than [MaxDepth]. Like that function, the package
// does not check UTF-8: the engine does.
//
// What this package does not do: it sends nothing, knows no model and no tokenizer, and
// never puts a part of a prompt into an error.
package openai
