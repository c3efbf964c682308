// Package plan decides whether and how an answer that broke off can go on: from the client's
// request and the whole events that were delivered. It is pure; [Handler] is the planner that
// the module asks.
package plan
