package charts

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const chart = "../../charts/baton"

// schema is the part of a JSON schema that says which keys an object has.
type schema struct {
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
}

// TestNoValueMayBeTakenAway: Helm drops a key that is set to null, its default too, and a
// template that reads it fails with words of its own.
func TestNoValueMayBeTakenAway(t *testing.T) {
	read := func(file string) []byte {
		data, err := os.ReadFile(chart + "/" + file)
		require.NoError(t, err)
		return data
	}
	var s schema
	require.NoError(t, json.Unmarshal(read("values.schema.json"), &s))
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(read("values.yaml"), &values))
	requireAll(t, "", s, values)
}

func requireAll(t *testing.T, at string, s schema, values map[string]any) {
	require.ElementsMatch(t, slices.Collect(maps.Keys(values)), s.Required, "what %q requires", at)
	for key, value := range values {
		inner, isMap := value.(map[string]any)
		if isMap && len(s.Properties[key].Properties) > 0 {
			requireAll(t, at+"."+key, s.Properties[key], inner)
		}
	}
}
