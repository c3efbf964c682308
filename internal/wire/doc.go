// Package wire is the only one that reads and writes Envoy's messages. It turns what a
// data plane sends into plain values, writes the replies, and registers Envoy's two gRPC
// services, the external processor and the access log. Its users handle no protobuf.
//
// # Contract
//
// gRPC's server gets the [Codec]; [Register] passes each stream to a handler. From a
// [Stream] the handler receives [Message]s, and it sends [Reply]s; from [Logs] it
// receives [Entry]s.
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
// Buffers. A message's body is a buffer of the [Pool] and belongs to the receiver. The
// receiver returns it, or passes it to a [Writer], which passes it to gRPC; gRPC returns
// it to the pool once it is sent. All else in a message is copied and may be kept. A
// reply that is not sent must be dropped. [Headers].All and what [EachHeader] yields are
// read-only. The next call of [Logs.Recv] overwrites its entries.
//
// Concurrency. Codec, Pool and Writer are safe for concurrent use. One goroutine may
// receive from a stream while another sends.
//
// Errors. A message that cannot be read becomes one of kind [Malformed]. It is no error:
// an error would end the stream, and a filter that fails open would let the request go
// on. An error of Recv or Send means that the stream has ended. The rare replies are
// built from protos. If one of these cannot be written, that is a defect of ours, and it
// panics.
//
// # Invariants
//
//	W1 what is read and written by hand equals what protobuf reads and writes of the same
//	   bytes; of a field that is there twice, the last one counts. No message causes a panic.
//	W2 a body is copied once when it is read, and never when it is written.
//	W3 the destination in a route's headers and the one in its metadata are equal.
//	W4 no piece of a full-duplex body is longer than ChunkBytes.
//
// # Field numbers
//
// The numbers are those of go-control-plane's envoy/service/ext_proc/v3
// (external_processor.proto), envoy/config/core/v3 (base.proto) and of
// google/protobuf/struct.proto. Only decode.go and encode.go have them. Protobuf never
// gives a number to another field. The tests of W1 show that ours are right: they compare
// with the generated code of the version in go.mod. The names of the endpoint picker
// protocol are from GAIE proposal 004; the namespaces baton and baton.usage are from our
// own Envoy configurations.
//
// # What it does not do
//
// It decides nothing and remembers nothing of a request. internal/extproc knows which
// message is next, what a header means, and which worker an answer blames. A subset hint
// is passed on unread, for internal/subset. Messages between replicas are not Envoy's,
// and are not here.
package wire
