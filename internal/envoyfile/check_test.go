package envoyfile_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/envoyfile"
	"github.com/seed-60ae5743/baton/internal/envoyfile/lacking"
)

// forms are parameters with which each part of the list is there in one of them.
func forms() map[string]envoy.Params {
	return map[string]envoy.Params{
		"plain":       {},
		"full duplex": {FullDuplex: true},
		"before 1.37": {Before137: true, Before139: true},
		"all":         {CORS: []string{"https://chat.example.com"}, TracingHost: "127.0.0.1", TracingPort: 4317, WorkerCA: "/etc/ca.pem"},
		"replicas":    {PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: 9002, Replicas: []string{"127.0.0.1:9012"}, PrefillSocket: "/run/baton/legs.sock"},
		"picker":      {PickerPort: 9003},
	}
}

func TestAConfigurationOfTheTemplatesLacksNothing(t *testing.T) {
	for name, p := range forms() {
		t.Run(name, func(t *testing.T) {
			data, err := envoy.Standalone(p)
			require.NoError(t, err)
			found, err := envoyfile.Check(p, envoyfile.File{Name: "envoy.yaml", Data: data})
			require.NoError(t, err)
			require.Empty(t, found)
		})
	}
}

// taken is a configuration that lacks one part.
type taken struct {
	part string
	data []byte
}

// takenAway gives, for each part that a form has, the form without it.
func takenAway(t *testing.T, p envoy.Params) []taken {
	t.Helper()
	var out []taken
	for _, part := range envoyfile.Parts() {
		data, err := envoy.Standalone(p)
		require.NoError(t, err)
		less, err := lacking.Part(data, part.ID)
		require.NoError(t, err)
		if less != nil {
			out = append(out, taken{part.ID, less})
		}
	}
	return out
}

// TestThePartThatIsTakenAwayIsNamed: each part is in one of the forms, and is missed there.
func TestThePartThatIsTakenAwayIsNamed(t *testing.T) {
	seen := map[string]bool{}
	for name, p := range forms() {
		for _, f := range takenAway(t, p) {
			seen[f.part] = true
			found, err := envoyfile.Check(p, envoyfile.File{Name: "envoy.yaml", Data: f.data})
			require.NoError(t, err, "%s without %s", name, f.part)
			ids := []string{}
			for _, f := range found {
				ids = append(ids, f.Part.ID)
			}
			require.Contains(t, ids, f.part, "%s without %s", name, f.part)
			if f.part != "main_leg" && f.part != "main_cluster" && f.part != "route" { // without which the check knows less
				require.Len(t, ids, 1, "%s without %s: %s", name, f.part, found)
			}
		}
	}
	for _, p := range envoyfile.Parts() {
		require.True(t, seen[p.ID], "part %s is in no form", p.ID)
		require.True(t, strings.HasSuffix(p.Without, "."), p.ID)
	}
}

// TestAListenersBoundOfAStreamIsNamed: a merge takes it away for the route alone.
func TestAListenersBoundOfAStreamIsNamed(t *testing.T) {
	data, err := envoy.Standalone(envoy.Params{})
	require.NoError(t, err)
	const options = "common_http_protocol_options: {"
	f := envoyfile.File{Name: "envoy.yaml", Data: []byte(strings.Replace(string(data), options, options+"max_stream_duration: 60s, max_connection_duration: 900s, ", 1))}
	found, err := envoyfile.Check(envoy.Params{}, f)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "route_timeout", found[0].Part.ID)
	require.Contains(t, found[0].String(), "client/http/common_http_protocol_options/max_stream_duration is 60s: expected nothing, or max_stream_duration: {max_stream_duration: 0s} of the route")

	f.Data, _, err = envoyfile.Merge(f, envoyfile.Options{})
	require.NoError(t, err)
	require.Contains(t, string(f.Data), options+"max_stream_duration: 60s,")
	found, err = envoyfile.Check(envoy.Params{}, f)
	require.NoError(t, err)
	require.Empty(t, found)
	again, changed, err := envoyfile.Merge(f, envoyfile.Options{})
	require.NoError(t, err)
	require.Equal(t, string(f.Data), string(again))
	require.Empty(t, changed)
}
