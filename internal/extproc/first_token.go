package extproc

import "fmt"

// FirstToken says what becomes of a streamed answer before its first token.
type FirstToken string

// The values of FirstToken.
const (
	// FirstTokenHold keeps the answer back: an error, or an end, before the first token
	// can become a fresh attempt.
	FirstTokenHold FirstToken = "hold"
	// FirstTokenOff lets it pass. What its worker has done is learnt from Envoy's access
	// log, or where its bytes come to us in any case.
	FirstTokenOff FirstToken = "off"
)

// Validate returns an error where f is none of them.
func (f FirstToken) Validate() error {
	switch f {
	case FirstTokenHold, FirstTokenOff:
		return nil
	default:
		return fmt.Errorf("first_token %q: expected %s or %s", string(f), FirstTokenHold, FirstTokenOff)
	}
}
