//go:build e2e

package envoytest

import (
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/envoy"
)

// subsetHeader is how tests tell a gateway the subset hint of a request.
const subsetHeader = "x-subset"

// subsetHint is the value of that header for a hint in any form: a string, a list
// of strings, an empty list …
func subsetHint(t *testing.T, v any) string {
	t.Helper()
	value, err := structpb.NewValue(v)
	require.NoError(t, err)
	b, err := proto.Marshal(value)
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(b)
}

// forBothForms runs a test for a gateway as it is and with two legs.
func forBothForms(t *testing.T, f func(t *testing.T, p envoy.GatewayParams, twoLegs bool)) {
	t.Helper()
	for _, two := range []bool{false, true} {
		name := "one leg"
		if two {
			name = "two legs"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothBodies(t, func(t *testing.T, p envoy.GatewayParams) { f(t, p, two) })
		})
	}
}

// TestASubsetHintReachesThePicker in each form that it may have, and on the main leg
// too: dynamic metadata does not cross to it, so what sets the hint has moved along.
func TestASubsetHintReachesThePicker(t *testing.T) {
	t.Parallel()
	forBothForms(t, func(t *testing.T, p envoy.GatewayParams, two bool) {
		a := newBackend(t, nil)
		p.Pool, p.SubsetHeader = []string{a.addr}, subsetHeader
		f := newFactsWith(t, p, two, func(x *exchange) error { return x.serve(a.addr) })
		for _, hint := range []any{
			a.addr, "", "a:1,b:2", []any{}, []any{a.addr}, []any{"a:1", "b:2,c:3"}, nil, 7.0, []any{7.0},
			map[string]any{"a": "b"}, map[string]any{},
		} {
			r := f.sendBody(http.MethodPost, http.NoBody, subsetHeader, subsetHint(t, hint))
			require.NoError(t, r.err)
			require.Equal(t, a.addr, r.body)
			frames := f.picker.last().taken()
			namespace, ok := frames[0].GetMetadataContext().GetFilterMetadata()["envoy.lb.subset_hint"]
			require.True(t, ok, "%v", hint)
			require.Equal(t, hint, namespace.GetFields()["x-gateway-destination-endpoint-subset"].AsInterface())
			require.Empty(t, headerValues(frames[0].GetRequestHeaders().Headers, subsetHeader))
		}
		r := f.sendBody(http.MethodPost, http.NoBody)
		require.Equal(t, a.addr, r.body)
		require.NotContains(t, f.picker.last().taken()[0].GetMetadataContext().GetFilterMetadata(), "envoy.lb.subset_hint")
		// A client's own header is no hint.
		r = f.sendBody(http.MethodPost, http.NoBody, "x-gateway-destination-endpoint-subset", "10.0.0.1:80")
		require.Equal(t, a.addr, r.body)
		x := f.picker.last()
		require.NotContains(t, x.taken()[0].GetMetadataContext().GetFilterMetadata(), "envoy.lb.subset_hint")
		require.Equal(t, !two, len(headerValues(x.taken()[0].GetRequestHeaders().Headers, "x-gateway-destination-endpoint-subset")) == 1)
	})
}

// TestAPickerHearsWhichFormItIs: with two legs the filter says so in its initial
// metadata; a gateway's own filter says nothing.
func TestAPickerHearsWhichFormItIs(t *testing.T) {
	t.Parallel()
	forBothForms(t, func(t *testing.T, p envoy.GatewayParams, two bool) {
		a := newBackend(t, nil)
		p.Pool = []string{a.addr}
		heard := make(chan metadata.MD, 1)
		f := newFactsWith(t, p, two, func(x *exchange) error {
			md, _ := metadata.FromIncomingContext(x.Context())
			heard <- md
			return x.serve(a.addr)
		})
		require.Equal(t, a.addr, f.send(10, "x-baton-filter", "prefill", "x-baton-protocol", "none").body)
		md := <-heard
		if two {
			require.Equal(t, []string{"main"}, md.Get("x-baton-filter"))
			require.Equal(t, []string{"gateway"}, md.Get("x-baton-protocol"))
			require.Equal(t, []string{"1"}, headerValues(f.picker.last().taken()[0].GetRequestHeaders().Headers, "x-envoy-attempt-count"))
		} else {
			require.Empty(t, md.Get("x-baton-filter"))
			require.Empty(t, md.Get("x-baton-protocol"))
		}
	})
}

// TestOnTheMainLegTheAnswerSaysWhoServed by its attribute alone: an exact cluster
// has no word for it.
func TestOnTheMainLegTheAnswerSaysWhoServed(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a := newBackend(t, nil)
		f := newFactsWith(t, p, true, func(x *exchange) error { return x.serve(a.addr) })
		require.Equal(t, a.addr, f.send(10).body)
		metadata, attribute := f.told()
		require.Empty(t, metadata)
		require.Equal(t, a.addr, attribute)
	})
}
