package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whether there is a certificate for the authority's clients is seen when it is made.
func TestAClientsAuthorityNeedsNoCertificateInFiles(t *testing.T) {
	c := TLSConfig{SelfSigned: true, ClientCA: "gone.pem"}
	require.Empty(t, c.validate())
	c.SelfSigned = false
	require.Len(t, c.validate(), 1)
}
