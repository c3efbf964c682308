package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Mode says which sources may be used.
type Mode string

// The modes of a [Resolver].
const (
	Auto         Mode = "auto"     // all sources
	EstimateOnly Mode = "estimate" // ids in the request, else the byte estimate
	Off          Mode = "off"      // no hashes; the length is still guessed
)

// PictureMode says what is asked about prompts with pictures or other parts that are not
// text.
type PictureMode string

// The modes for prompts with pictures.
const (
	// AskPictures asks an engine for the pictures' hashes if its kind tells them, else
	// for the tokens before the first picture. Either question may make the engine load
	// pictures once more.
	AskPictures PictureMode = "auto"
	// EstimatePictures asks no engine.
	EstimatePictures PictureMode = "estimate"
)

// Config configures a [Resolver]. The zero value means the documented defaults.
type Config struct {
	// Mode is auto, estimate or off. Default: auto.
	Mode Mode

	// Pictures is auto or estimate. It matters only with Mode auto. Default: auto.
	Pictures PictureMode

	// Wait bounds how long one request waits for a tokenizer. Default: 50 ms. A larger
	// value makes more prompts exact, and slow tokenizers cost more.
	Wait time.Duration

	// MaxInFlight bounds the questions about texts that run at once. Default: 32. A
	// quarter as many may run about prompts with pictures, in addition: each makes an
	// engine load pictures. A larger value puts more load on the engines' frontends. A
	// request over the bound waits for a place, within Wait.
	MaxInFlight int

	// MaxTokenizeBytes is the longest prompt, as raw JSON, that a tokenizer is asked
	// about. Default: 1 MiB. All prompts in questions that run or wait are copied.
	// Together they may have MaxInFlight times this many bytes; a prompt beyond that is
	// not asked about.
	MaxTokenizeBytes int

	// SetAside is how long a failed tokenizer is not asked. It doubles with each failure
	// in a row, up to 30 s. Default: 2 s.
	SetAside time.Duration

	// CacheEntries and CacheBytes bound the remembered prompts. Defaults: 4096 and 64
	// MiB. An entry takes 4 bytes per token and 8 per block.
	CacheEntries int
	CacheBytes   int

	// EstimateBytesPerToken is how many bytes of text count as one token.
	// Default: 4.
	EstimateBytesPerToken int

	// MaxBlocks is how many blocks of a prompt are hashed; later blocks are not looked
	// up. Default: 131072.
	MaxBlocks int

	// TokenizePath is the path of the engines' tokenizer. Default: /tokenize.
	TokenizePath string

	// RenderPath is the path where engines tell pictures' hashes. Default:
	// /v1/chat/completions/render.
	RenderPath string

	// Transport carries the requests to tokenizers. Default: a transport of the
	// resolver's own, with connections kept alive and no proxy.
	Transport http.RoundTripper

	// Around wraps Transport, for example to add a key to requests. Default: no wrapper.
	Around func(http.RoundTripper) http.RoundTripper

	// Local has the models whose tokens may be made in this process, by their names. They
	// are used once a trial has shown that an engine of the model gives the same tokens,
	// and as long as no engine tells of others. May be nil.
	Local map[string]*local.Model

	// OnLocal is called once for each prompt whose tokens were made here, with the time
	// that this took. It must not block. May be nil.
	OnLocal func(took time.Duration)

	// OnStanding is called when it has become known whether a model's files give its
	// engines' tokens. It must not block. May be nil.
	OnStanding func(s Standing)

	// Told reports whether a rank is known to hold all blocks of a chain, by the KV events
	// of its engine. If it is set, prompts whose tokens were made here are sampled, at most
	// one in ten seconds for texts and one for messages of a model, and compared with the
	// events of the rank that computes them, and else with its tokenizer. May be nil.
	Told func(r worker.Rank, chain []kvindex.LocalHash) bool

	// OnCompared is called with the end of each such comparison. It must not block. May
	// be nil.
	OnCompared func(end Compared)

	// OnTokenize is called once for each prompt that tokenizers were asked about, with
	// the time that this took, and the Reason of the tokens or of the failure. It must
	// not block. May be nil.
	OnTokenize func(took time.Duration, outcome Reason)
}

const maxSetAside = 30 * time.Second

// picturesInFlight bounds the running questions about prompts with pictures; see
// MaxInFlight.
func (c *Config) picturesInFlight() int { return max(c.MaxInFlight/4, 1) }

func (c Config) withDefaults() Config {
	c.Mode = cmp.Or(c.Mode, Auto)
	c.Pictures = cmp.Or(c.Pictures, AskPictures)
	c.Wait = cmp.Or(c.Wait, 50*time.Millisecond)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 32)
	c.MaxTokenizeBytes = cmp.Or(c.MaxTokenizeBytes, 1<<20)
	c.SetAside = cmp.Or(c.SetAside, 2*time.Second)
	c.CacheEntries = cmp.Or(c.CacheEntries, 4096)
	c.CacheBytes = cmp.Or(c.CacheBytes, 64<<20)
	c.EstimateBytesPerToken = cmp.Or(c.EstimateBytesPerToken, 4)
	c.MaxBlocks = cmp.Or(c.MaxBlocks, 131072)
	c.TokenizePath = cmp.Or(c.TokenizePath, "/tokenize")
	c.RenderPath = cmp.Or(c.RenderPath, "/v1/chat/completions/render")
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

// Validate returns all faults of c, joined, or nil.
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
