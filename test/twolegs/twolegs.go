package twolegs

import (
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"sigs.k8s.io/yaml" // as Kubernetes reads it: an alias within an anchor counts

	"github.com/seed-60ae5743/baton/envoy"
)

// GatewayTwoLegs returns GatewayAPI(p) with GatewayPatch(p) applied.
func GatewayTwoLegs(p envoy.GatewayParams) ([]byte, error) {
	config, err := GatewayAPI(p)
	if err != nil {
		return nil, err
	}
	patch, err := GatewayPatch(p)
	if err != nil {
		return nil, err
	}
	return Patch(config, patch)
}

// Patch applies a list of RFC 6902 operations to a configuration. Both are YAML
// or JSON; the result is JSON, which Envoy reads as YAML. An operation that does
// not fit is an error and nothing is returned.
func Patch(config, patch []byte) ([]byte, error) {
	doc, err := yaml.YAMLToJSONStrict(config)
	if err != nil {
		return nil, fmt.Errorf("twolegs: configuration: %w", err)
	}
	operations, err := yaml.YAMLToJSONStrict(patch)
	if err != nil {
		return nil, fmt.Errorf("twolegs: patch: %w", err)
	}
	p, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, fmt.Errorf("twolegs: patch: %w", err)
	}
	out, err := p.ApplyIndent(doc, "  ")
	if err != nil {
		return nil, fmt.Errorf("twolegs: apply the patch: %w", err)
	}
	return out, nil
}
