// Package heap keeps elements of which the first is wanted, in the order of their type.
//
// # Contract
//
// [Heap.First] is an element that no other comes before. Elements of which neither comes before the
// other have no order among them. An element is in one heap at most, and notes its place there,
// which is -1 once it has left. The owner calls [Heap.Fix] after a change that moves an element in
// the order.
//
// # Cost
//
// First takes constant time, the others O(log n). Only Put allocates, as a slice grows.
//
// # What it does not do
//
// It has no lock and knows no time: it lies among its owner's fields, under the owner's lock.
package heap
