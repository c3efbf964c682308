// Package replicas is what one process of the plugin tells the others, and what it believes of them.
//
// # Contract
//
// A [Message] is what a replica has booked on some ranks, as it is now and not as it has changed, beside
// what it has routed, whom it has set aside and what it has learned. It has the life of its process and a
// version, which grows. [Message.Encode] and [Decode] are its form on the wire.
//
// A [Roster] knows the replicas by their addresses: who is listed, whose messages come, and how late. It
// says what is to be done about each ([Action]): ask whether its process lives, let its bookings fade,
// forget them. The load book keeps the bookings (internal/load/others.go), internal/mesh the connections.
//
// # What holds
//
//   - Nothing waits for another replica: a decision reads what has come so far. A start waits for whole
//     books, for 2 s at most.
//   - The newest message of a life wins, for each rank. A whole message comes every 3 s, so that what was
//     lost is made good.
//   - Silence is doubt. A replica whose messages stop, with no sign that its process has ended, keeps its
//     bookings; they fade over the time for which such bookings lately lasted. A replica whose messages
//     end, and at whose address nobody or another process listens, has died: its bookings end. A process
//     that comes back at an address has a new life, and nothing of the one before counts.
//   - Ages, and no times, are told: clocks may differ.
//   - What a message may have is bounded, and so is the number of replicas ([MostMates]).
//
// # What it does not do
//
// It opens no connection, reads no clock and starts no goroutine. It decides nothing for another replica:
// who is set aside there becomes a suspect here, whom this process asks itself.
package replicas
