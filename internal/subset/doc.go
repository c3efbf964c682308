// Package subset reads the endpoints to which a request is limited, as in the endpoint
// picker protocol of the Gateway API inference extension. In the metadata
// envoy.lb.subset_hint, under x-gateway-destination-endpoint-subset, a data plane may say
// from which endpoints the picker must choose. It gets a 503 if the list is empty or no
// endpoint of it can serve
// (https://github.com/kubernetes-sigs/gateway-api-inference-extension,
// docs/proposals/004-endpoint-picker-protocol).
//
// # Contract
//
//	the hint                                what may be picked
//	none                                    every endpoint: the Set is nil
//	a list of texts, a text with commas,
//	or a list of texts with commas          the endpoints that the entries name
//	an entry ip:port, [ipv6]:port           only that endpoint: several ranks of
//	                                        one pod differ by port
//	an entry ip, ipv6, [ipv6]               every port of that address
//	an entry of another form, or none
//	between two commas                      no endpoint by this entry; others count
//	an empty list or an empty text          no endpoint
//	a number, true, false, null, a struct   no endpoint
//	over MaxEntries entries                 no endpoint
//
// A hint that cannot be understood allows nothing, since a data plane that sets one has a
// reason to. [Set.Fault] says what was wrong. White space around an entry is not part of
// it. An IPv4 address that is written as IPv6 (::ffff:10.0.0.1) counts as the IPv4
// address; an address with a zone is no endpoint.
//
// Conformance tests send the hint as a header, which [ParseHeader] reads.
// internal/wire reads where in a request the two are.
//
// What this package does not do: it knows no workers, decides nothing, and says nothing
// to clients. The caller decides whether a request's own header is believed: only
// metadata comes from the data plane alone.
package subset
