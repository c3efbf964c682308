// Package nats is a channel of Dynamo's event plane for deployments in which NATS core
// carries the plane. It subscribes to one subject, which may have wildcards. The messages
// of that subject are the plane's envelopes.
//
// NATS core delivers a message at most once. Messages are lost while the connection is
// down, and if the subscriber falls behind by more than its limit. The ids of the events
// show such a loss (see kvevents.Cursor); this package does not look for it. The library
// reconnects and subscribes again by itself. [Channel] tells the sink when the connection
// goes down and comes up.
//
// The package reads no message and knows no worker.
package nats
