package extproc

import "fmt"

// FirstToken says what becomes of a streamed answer before its first token.
type FirstToken string

// The values of FirstToken.
const (
	// FirstTokenHold keeps the answer back, so that an error or an end before the first
	// token can lead to a fresh attempt.
	FirstTokenHold FirstToken = "hold"
	// FirstTokenOff lets the answer pass. An error in it is then seen in Envoy's access
	// log, or in the bytes of the answer if they come through the plugin in any case.
	FirstTokenOff FirstToken = "off"
)

// Validate returns an error if f is none of these values.
func (f FirstToken) Validate() error {
	switch f {
	case FirstTokenHold, FirstTokenOff:
		return nil
	default:
		return fmt.Errorf("first_token %q: expected %s or %s", string(f), FirstTokenHold, FirstTokenOff)
	}
}
