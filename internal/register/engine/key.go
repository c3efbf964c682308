package engine

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
)

// unauthorized reports whether the engine refuses requests without the right key.
func unauthorized(err error) bool {
	return ask.IsStatus(err, http.StatusUnauthorized, http.StatusForbidden)
}

// keyless adds what to do about an error that is caused by the key. It returns any other
// error as it is.
func (c *Client) keyless(err error) error {
	var se *ask.StatusError
	if !unauthorized(err) || !errors.As(err, &se) {
		return err
	}
	if c.key == nil {
		return fmt.Errorf("the engine asks for an API key: expected %s: %w", c.cfg.KeySetting, se)
	}
	if old := c.key.Err(); old != nil {
		return fmt.Errorf("the engine refuses the API key that was read last: %w: %w", old, se)
	}
	return fmt.Errorf("the engine refuses the API key of %s: expected that of its --api-key: %w", c.key.Path(), se)
}
