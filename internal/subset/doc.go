// Package subset reads the endpoints that a request is limited to, as the
// endpoint picker protocol of the Gateway API inference extension has it: a
// data plane may say, in the metadata envoy.lb.subset_hint under
// x-gateway-destination-endpoint-subset, from which endpoints the picker must
// choose, and gets a 503 where the list is empty or nobody of it can serve
// (https://github.com/kubernetes-sigs/gateway-api-inference-extension,
// docs/proposals/004-endpoint-picker-protocol).
//
// # Contract
//
//	what is there                           who may be picked
//	nothing                                 everyone: the Set is nil
//	a list of texts, a text with commas,
//	or a list of texts with commas          who an entry names
//	an entry ip:port, [ipv6]:port           that endpoint alone: several ranks of
//	                                        one pod differ by port
//	an entry ip, ipv6, [ipv6]               every port of that address
//	an entry of another form, or none
//	between two commas                      nobody by this entry; the others stand
//	an empty list or an empty text          nobody
//	a number, true, false, null, a struct   nobody
//	over MaxEntries entries                 nobody
//
// What says nothing that can be understood closes, and never opens: a data
// plane that sets the hint has a reason to. [Set.Fault] says what was wrong.
// White space around an entry is no part of it. An IPv4 address that is written
// as IPv6 (::ffff:10.0.0.1) is the IPv4 address; one with a zone is none.
//
// Conformance tests send the same as a header; [ParseHeader] reads it. Where both are in a
// request, internal/extproc/wire knows.
//
// What this package does not do: it knows no workers, decides nothing and says
// nothing to clients. Whether a request's own header may be believed is its
// caller's to know: only metadata comes from nobody but the data plane.
package subset
