// Package wire is all that knows Envoy's messages: it reads what a data plane sends into
// plain values, writes what is answered, and registers Envoy's two gRPC services, the
// external processor and the access log. Whoever serves them sees no protobuf.
//
// # Contract
//
// [Codec] is given to gRPC's server; [Register] hands each stream to a handler. Of a
// [Stream] the handler receives [Message]s and sends [Reply]s, of [Logs] it receives
// [Entry]s.
//
//	a message                             its reply
//	request headers                       Continue, Mutate, or Writer.RouteHeaders
//	request body, buffered                Continue, or Writer.Route
//	request body, full duplex             Writer.Chunks, after the reply to the headers
//	request trailers, response trailers   Continue
//	response headers                      Relay
//	response body, full duplex            Writer.Chunks
//	any                                   Immediate.Reply, the stream's last; or Extend, before its reply
//
// Buffers. A message's body is a buffer of the [Pool] and belongs to the receiver, who
// passes it to a [Writer], which gives it to gRPC and that gives it back to the pool when
// it is sent; or returns it. What else is in a message is copied and kept as long as
// wanted. A reply that is not sent is dropped. [Headers].All and what [EachHeader] yields
// are read only. Entries are overwritten by the next call of [Logs.Recv].
//
// Concurrency. Codec, Pool and Writer are safe for concurrent use. Of a stream one
// goroutine receives while another sends.
//
// Errors. A message that cannot be read is one of kind [Malformed] and no error, which
// would end the stream, and a filter that fails open would let the request go on. Errors
// of Recv and Send are the stream's end. A rare reply is built of protos; one that cannot
// be written is a defect of ours, and panics.
//
// # Invariants
//
//	W1 what is read and written by hand is what protobuf reads and writes of the same
//	   bytes; of fields that are there twice, the last one counts. No message panics.
//	W2 a body is copied once on its way in and not at all on its way out.
//	W3 the destination in a route's headers and the one in its metadata are equal.
//	W4 no piece of a full-duplex body is over ChunkBytes.
//
// # Field numbers
//
// They are those of go-control-plane's envoy/service/ext_proc/v3 (external_processor.proto),
// envoy/config/core/v3 (base.proto) and of google/protobuf/struct.proto, and stand in
// decode.go and encode.go alone. Protobuf never gives a number to another field; that ours
// are right, the tests of W1 say, which compare with the generated code of the version in
// go.mod. Words of the endpoint picker protocol are of GAIE proposal 004, those of the
// namespaces baton and baton.usage of our own Envoy configurations.
//
// # What it does not do
//
// It decides nothing and remembers nothing of a request: which message is awaited, what a
// header means and who an answer blames is internal/extproc's. A subset hint is passed on
// unread, for internal/subset. What replicas say to each other are no messages of Envoy's,
// and are not here.
package wire
