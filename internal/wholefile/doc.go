// Package wholefile replaces a file at once: a reader sees the old content or the new one,
// never a part, also if the process ends in the middle.
//
// Contract. The new content is written beside the file and then renamed onto it, so the
// folder has to be writable. If several writers replace one file at the same time, the
// content of one of them remains. A reader that has the old file open keeps the old content.
//
// What this package does not do: it keeps no content, and does not wait until the disk has
// it: after a loss of power the file may be the old one.
package wholefile
