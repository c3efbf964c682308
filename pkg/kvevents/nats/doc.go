// Package nats is a way into Dynamo's event plane where that is carried by NATS
// core: a subscription to one subject, which may have wildcards, whose messages
// are the plane's envelopes.
//
// NATS core delivers at most once. What is lost while the connection is down,
// or because the subscriber falls behind by more than its limit, is found by
// the ids of the events (see kvevents.Cursor), never here. The library
// reconnects and subscribes again by itself; [Channel] says when it was away.
//
// It reads no message and knows no worker.
package nats
