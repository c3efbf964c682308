package tokens

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Mode says which sources may be used.
type Mode string

// The modes.
const (
	Auto         Mode = "auto"     // all of them
	EstimateOnly Mode = "estimate" // ids in the request, else the byte estimate
	Off          Mode = "off"      // no hashes; the length is still guessed
)

// PictureMode says what is asked about prompts with pictures, and whatever else is not text.
type PictureMode string

// The modes.
const (
	// AskPictures asks an engine that tells pictures' hashes for them, and else for what
	// stands before the first. Either may have the engine load what is asked about once more.
	AskPictures PictureMode = "auto"
	// EstimatePictures asks nobody.
	EstimatePictures PictureMode = "estimate"
)

// Config is how a [Resolver] works. The zero value is the documented default.
type Config struct {
	// Mode is auto, estimate or off. Default: auto.
	Mode Mode

	// Pictures is auto or estimate, under Mode auto. Default: auto.
	Pictures PictureMode

	// Wait bounds how long one request waits for a tokenizer. Default: 50 ms.
	// Raising it makes more prompts exact and slow tokenizers dearer.
	Wait time.Duration

	// MaxInFlight bounds the questions about texts that are under way at once. Default: 32.
	// Of those about prompts with pictures a quarter as many are, beside them: each has an
	// engine load pictures. More of them load the engines' frontends; a request over the
	// bound waits for its turn within Wait.
	MaxInFlight int

	// MaxTokenizeBytes is the longest prompt, as raw JSON, that a tokenizer is
	// asked about. Default: 1 MiB. All that are asked about or wait for their turn are
	// copied, and come to no more than MaxInFlight times that: one that is over it is not
	// asked about.
	MaxTokenizeBytes int

	// SetAside is how long a failed tokenizer is not asked; it doubles with
	// each failure in a row, up to 30 s. Default: 2 s.
	SetAside time.Duration

	// CacheEntries and CacheBytes bound the remembered prompts. Defaults: 4096
	// and 64 MiB. An entry takes 4 bytes a token and 8 a block.
	CacheEntries int
	CacheBytes   int

	// EstimateBytesPerToken is how many bytes of text count as one token.
	// Default: 4.
	EstimateBytesPerToken int

	// MaxBlocks is the longest chain that is hashed; what follows it is not
	// looked up. Default: 131072.
	MaxBlocks int

	// TokenizePath is the path that tokenizers answer. Default: /tokenize.
	TokenizePath string

	// RenderPath is the path that engines answer which tell pictures' hashes.
	// Default: /v1/chat/completions/render.
	RenderPath string

	// Transport carries the tokenize requests. Default: one of the resolver's
	// own, with connections kept alive and no proxy.
	Transport http.RoundTripper

	// Around goes around Transport: what shows a key, for example. Default: nothing.
	Around func(http.RoundTripper) http.RoundTripper

	// OnTokenize is called after each request to a tokenizer with how long it
	// took and ReasonTokenized or why it failed. It must not block. May be nil.
	OnTokenize func(took time.Duration, outcome Reason)
}

const maxSetAside = 30 * time.Second

// picturesInFlight is MaxInFlight for prompts with pictures.
func (c *Config) picturesInFlight() int { return max(c.MaxInFlight/4, 1) }

func (c Config) withDefaults() Config {
	c.Mode = or(c.Mode, Auto)
	c.Pictures = or(c.Pictures, AskPictures)
	c.Wait = or(c.Wait, 50*time.Millisecond)
	c.MaxInFlight = or(c.MaxInFlight, 32)
	c.MaxTokenizeBytes = or(c.MaxTokenizeBytes, 1<<20)
	c.SetAside = or(c.SetAside, 2*time.Second)
	c.CacheEntries = or(c.CacheEntries, 4096)
	c.CacheBytes = or(c.CacheBytes, 64<<20)
	c.EstimateBytesPerToken = or(c.EstimateBytesPerToken, 4)
	c.MaxBlocks = or(c.MaxBlocks, 131072)
	c.TokenizePath = or(c.TokenizePath, "/tokenize")
	c.RenderPath = or(c.RenderPath, "/v1/chat/completions/render")
	if c.Transport == nil {
		c.Transport = &http.Transport{
			MaxIdleConns:        4 * c.MaxInFlight,
			MaxIdleConnsPerHost: c.MaxInFlight + c.picturesInFlight(),
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		}
	}
	if c.Around != nil {
		c.Transport, c.Around = c.Around(c.Transport), nil
	}
	return c
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Mode != Auto && c.Mode != EstimateOnly && c.Mode != Off {
		errs = append(errs, fmt.Errorf("tokens: mode %q: expected auto, estimate or off", string(c.Mode)))
	}
	if c.Pictures != AskPictures && c.Pictures != EstimatePictures {
		errs = append(errs, fmt.Errorf("tokens: pictures %q: expected auto or estimate", string(c.Pictures)))
	}
	for _, v := range []struct {
		name  string
		value int64
	}{
		{"wait", int64(c.Wait)}, {"max_in_flight", int64(c.MaxInFlight)},
		{"max_tokenize_bytes", int64(c.MaxTokenizeBytes)}, {"set_aside", int64(c.SetAside)},
		{"cache_entries", int64(c.CacheEntries)}, {"cache_bytes", int64(c.CacheBytes)},
		{"estimate_bytes_per_token", int64(c.EstimateBytesPerToken)}, {"max_blocks", int64(c.MaxBlocks)},
	} {
		if v.value < 0 {
			errs = append(errs, fmt.Errorf("tokens: %s %d: expected no negative value", v.name, v.value))
		}
	}
	for _, p := range []struct{ name, path string }{{"tokenize_path", c.TokenizePath}, {"render_path", c.RenderPath}} {
		if p.path[0] != '/' {
			errs = append(errs, fmt.Errorf("tokens: %s %q: expected a path from /", p.name, p.path))
		}
	}
	return errors.Join(errs...)
}
