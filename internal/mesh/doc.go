// Package mesh carries what replicas tell each other (internal/replicas): each sends its messages to each
// other one on a gRPC stream of its own, at the address at which that one takes Envoy's streams.
//
// # Contract
//
// [New] makes a [Hub], [Hub.Register] adds its service to the gRPC server of the process, and [Hub.Run] runs
// it until its context ends. The hub asks its [Lister]s for the addresses of the others, and learns those
// that call it. [Hub.Ready] says when a start need not wait any longer.
//
// Who calls has to have the replicas' key: the stream's metadata have a token that is sealed with it, and
// names the address and the process. Nothing of a stream is read before that.
//
// # What holds
//
//   - A slow replica holds nobody up: what was not sent yet is dropped, and all that is booked is told again;
//     routed prompts are not.
//   - A replica that does not answer for answerWithin gets a new connection, since one over which packets
//     were lost for long is slow to come back.
//   - A process that ends in order says so, by ending its streams.
//
// # What it does not do
//
// It decides nothing (internal/replicas does), and keeps no bookings (internal/load does). Calls that have
// answers stay where they are (internal/extproc/peers.go).
package mesh
