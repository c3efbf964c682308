// Package ask has what the rooms of the engines have in common when an engine is asked over HTTP
// what it is and what it runs: the facts, the pages, and tools that read them. An engine's room
// fills in a [Reader].
//
// # Contract
//
// A reader gets its pages from [Pages], and nothing else. A field may be absent or null, and its
// fact is then zero; a field of the wrong type is an error that names the field. If a page that an
// engine need not have is missing, its facts are not known. If it is there and fails,
// [Facts].Unread names it, and [Facts.Keeping] takes its facts from the last reading.
//
// # What it does not do
//
// It opens no connection: internal/register/engine does.
package ask
