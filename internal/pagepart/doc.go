// Package pagepart replaces the part of a page that a program writes: it stands between two marks, which stay.
// It is for tests and for what writes pages.
//
// # What it does not do
//
// It reads and writes no file.
package pagepart
