package main

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/seed-60ae5743/baton/internal/apikey"
)

// EnginesConfig says what the plugin's own questions to engines carry.
type EnginesConfig struct {
	// APIKeyFile holds the API key that the engines ask for (their --api-key). It is read
	// again for each question, so that the key can be changed by writing the file. Default:
	// none is shown.
	APIKeyFile string `yaml:"api_key_file"`
}

// keyed returns what goes around the transports of all that the plugin asks engines
// itself: for tokens and for health.
func (c EnginesConfig) keyed(log *slog.Logger) (func(http.RoundTripper) http.RoundTripper, error) {
	const setting = "engines.api_key_file"
	key, err := apikey.Open(c.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return (&apikey.Transport{Key: key, Setting: setting, Log: log}).Around, nil
}
