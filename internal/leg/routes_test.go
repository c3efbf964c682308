package leg

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/extproc/routetable"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// TestEachRouteOfTheEnginesIsOfItsClass compares what becomes of a request on each path
// that the engines' sources declare: at our own edge and at a gateway, with a body and
// without.
func TestEachRouteOfTheEnginesIsOfItsClass(t *testing.T) {
	classes, err := routetable.Classes("../extproc/testdata/routes")
	require.NoError(t, err)
	for route, class := range classes {
		path := routetable.Concrete(route)
		require.Equal(t, class != routetable.Never && route != "/v1/models/{model:path}", engines.Served.Serves(path), "%s: the rooms of the engines say what they serve", route)
		for _, w := range []Way{{}, {Speaks: Gateway}, {Speaks: PlainGateway}} {
			require.Equal(t, class, becomes(w, "POST", path, false), "%s with a body, %+v", route, w)
			bare := becomes(w, "GET", path, true)
			switch {
			case class == routetable.Passed && !w.Gateway():
				require.Equal(t, routetable.Never, bare, "%s without a body names no model", route)
			case class == routetable.Read:
				require.Equal(t, failMethod.Code, bare, route)
			default:
				require.Equal(t, class, bare, "%s without a body, %+v", route, w)
			}
			if class != routetable.Never || path == "/" {
				continue
			}
			// Engines may serve their paths below a prefix, and in other spellings.
			for _, p := range []string{"/engine" + path, path + "/", path + "?x=1", strings.ToUpper(path), "/" + path} {
				require.Equal(t, routetable.Never, becomes(w, "POST", p, false), "%s, %+v", p, w)
			}
		}
	}
}

// becomes returns the class that a leg gives a request by its headers, or the code of
// another refusal.
func becomes(w Way, method, path string, bare bool) string {
	m := NewMain(testRules(), w)
	for _, e := range m.Step(testStart, &Event{Kind: EventRequestHeaders, EndOfStream: bare, Headers: &wire.Headers{Method: method, Path: path}}) {
		switch {
		case e.Op == OpModels, e.Op == OpHealth:
			return routetable.Ours
		case e.Fail == nil:
		case e.Fail.Code == FailUnknownPath.Code:
			return routetable.Never
		case e.Fail.Code == failMethod.Code && e.Fail.Header != failMethod.Header:
			return routetable.Ours
		default:
			return e.Fail.Code
		}
	}
	if m.req.Passes() {
		return routetable.Passed
	}
	return routetable.Read
}
