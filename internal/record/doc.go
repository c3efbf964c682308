// Package record writes what the plugin decides into a bounded ring of files, and reads such files.
//
// # Contract
//
// A [Recorder] takes each decision ([Recorder.Decided]) and what became of it ([Recorder.Ended]). Neither
// waits: they hand a copy to a bounded queue, and what finds no room is lost and counted. [Recorder.Run] is
// the one goroutine that writes, into files ([Dir]), into memory ([Memory]), or both. A [Log] reads files in
// the order in which they were written, also those of several processes.
//
// No prompt, no token and no text of a request is written. A block of a prompt is written as
// AES(key, the block before it ‖ the block's own hash), cut to 8 bytes. The key is made of [Config].Key, which
// replicas share; it is never written, so nobody can find out with a
// file alone whether a prompt that he guesses was sent. Names of models, engines, modes, reasons and outcomes are written as they are.
//
// # Files
//
// A file stands alone: magic and version, then frames of
//
//	type, 1 byte · length, varint · payload · CRC32C of the three, 4 bytes
//
// Numbers are varints; those that may be negative are zigzag-coded. Times are nanoseconds.
//
//	header    version of the plugin, Unix time, the process' life, the key's id
//	name      the next number of a text (1, 2, …)
//	fleet     all ranks: each gets the next number of the table (1, 2, …), which begins anew
//	decision  time since the header · number of the request, after the one before · facts of the request ·
//	          its prefix: the number of its longest known block · its new blocks, 8 bytes each, which get the
//	          next numbers · booked loads of ranks that are not as the file last said · picks
//	end       number of the request, before the latest one · outcome, times, tokens
//	speeds    learned speeds of ranks and of hand-offs that have changed
//
// The oldest files are removed when all of them would pass the bound. A file ends when it is full, or has so
// many different blocks ([mostBlocks]) that the writer's table of them is.
//
// # What holds
//
//   - A crash loses what was written in the last second, and the frame that was being written.
//   - All files together have at most MaxBytes; the queue, the table of blocks and what is in memory are
//     bounded, whatever callers send.
//   - [Log.Read] takes what is whole, says what it leaves out and why, and never panics. It takes memory in
//     proportion to the files.
//   - A file that cannot be written stops nothing: it is told once, what is lost is counted, and a new file
//     is tried after a while.
//
// # What it does not do
//
// It decides nothing, and plays nothing: internal/whatif does. It is no log for people.
package record
