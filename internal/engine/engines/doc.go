// Package engines lists the engines. An engine is added here, and its public name in
// pkg/worker.
package engines
