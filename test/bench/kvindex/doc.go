// Command kvindex measures the index on the traces of ../shared/peers/kvindex,
// alone and beside its rivals.
//
//	kvindex MODE TRACE            one run, one line of JSON
//	kvindex peers [flags]         builds the rivals, interleaves all, prints tables
//
// The modes are those of the rivals' runners: replay (a fill in bulk, then
// everything in order, each operation timed), writes (alone), reads (warm, after
// all writes), both (a writer and a reader at once). The checksum of a replay
// sums up every answer: an exact index has the oracle's.
//
// Times are the index's own calls on its own types. Figures of one run move by
// 10 to 40 per cent with what else the machine does, so that only ratios of
// interleaved runs mean anything.
package main
