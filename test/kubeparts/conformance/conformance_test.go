// Package conformance is the inference extension's conformance suite as a program.
package conformance

import (
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/conformance"
)

func TestConformance(t *testing.T) { conformance.RunConformance(t) }
