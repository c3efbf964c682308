// Package admintest makes what the pages show, for tests of internal/admin and for those that
// open its page in a browser.
//
// # Contract
//
// Each function's result follows from its arguments alone, and is the caller's: tests change it.
// Names are such as an attacker would choose.
//
// # What it does not do
//
// It serves no page.
package admintest
