package tokens

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// mediaTokens is the assumed length of an image or other medium. The true number depends
// on the model and the picture. Without this assumption a base64 text would be counted as
// if it were text of the prompt.
const mediaTokens = 256

// estimator hashes a text that comes in pieces as if it came in one. Only what is left
// over between pieces is copied.
type estimator struct {
	hashes     []kvindex.LocalHash
	carry      []byte // the beginning of a run, shorter than blockBytes
	blockBytes int    // 0: count only
	mediaBytes int    // bytes that a picture counts for among the text
	maxBlocks  int
	seed       uint64
	bytes      int // bytes of text seen
	tokens     int // tokens of media seen
	perToken   int
	most       int // tokens that are left of a prompt once it is cut
	cut        int // tokens that are not left of the prompts seen whole
	before     int // bytes of text of those
	first      bool
	onlyFirst  bool // hash the first prompt only
}

func (e *estimator) reset(blockBytes, perToken, maxBlocks int, seed uint64, onlyFirst bool) {
	*e = estimator{hashes: e.hashes[:0], carry: e.carry[:0], blockBytes: blockBytes, mediaBytes: mediaTokens * perToken,
		maxBlocks: maxBlocks, seed: seed, first: true, onlyFirst: onlyFirst, perToken: perToken, most: math.MaxInt}
}

// inTokens is how many tokens so many bytes of text are assumed to be.
func (e *estimator) inTokens(bytes int) int { return (bytes + e.perToken - 1) / e.perToken }

// isl is the input length of all that was seen.
func (e *estimator) isl() int {
	n := e.tokens + e.inTokens(e.bytes)
	if e.onlyFirst {
		return n - e.cut
	}
	return min(n, e.most)
}

// visit takes one piece of a prompt. After each piece of text comes a byte that no JSON
// string can contain, so that "ab","c" and "a","bc" differ.
func (e *estimator) visit(kind openai.PieceKind, piece []byte) {
	hash := e.first || !e.onlyFirst
	switch kind {
	case openai.PieceText:
		e.bytes += len(piece)
		if hash {
			e.add(piece)
			e.close(0)
		}
	case openai.PieceMedia:
		e.tokens += mediaTokens
		if hash {
			h := xxh3.Hash128(piece)
			var b [16]byte
			binary.LittleEndian.PutUint64(b[:8], h.Hi)
			binary.LittleEndian.PutUint64(b[8:], h.Lo)
			for n := 0; n < e.mediaBytes && len(e.hashes) < e.maxBlocks; n += len(b) { // the limit matters: a client may name millions of pictures
				e.add(b[:])
			}
			e.close(1)
		}
	case openai.PieceEnd:
		if hash {
			e.close(2)
		}
		e.first = false
		if e.onlyFirst { // the end of a prompt, and not only of a message
			e.cut += max(0, e.inTokens(e.bytes-e.before)-e.most)
			e.before = e.bytes
		}
	}
}

func (e *estimator) close(mark byte) {
	b := [1]byte{mark}
	e.add(b[:])
}

func (e *estimator) add(p []byte) {
	if e.blockBytes < 1 || len(e.hashes) >= e.maxBlocks {
		return
	}
	if len(e.carry) > 0 {
		n := min(e.blockBytes-len(e.carry), len(p))
		e.carry = append(e.carry, p[:n]...)
		p = p[n:]
		if len(e.carry) < e.blockBytes {
			return
		}
		e.hashes = kvindex.AppendByteHashes(e.hashes, e.carry, e.blockBytes, e.seed)
		e.carry = e.carry[:0]
	}
	whole := min(len(p)/e.blockBytes, e.maxBlocks-len(e.hashes)) * e.blockBytes
	e.hashes = kvindex.AppendByteHashes(e.hashes, p[:whole], e.blockBytes, e.seed)
	p = p[whole:]
	if len(p) < e.blockBytes {
		e.carry = append(e.carry, p...)
	}
}

// estimateStride is how many KV blocks one hash of an estimate stands for. An estimate is
// not exact to the block, and with the stride long prompts have a quarter as many hashes
// to look up.
const estimateStride = 4

// Estimate resolves q from the bytes of the prompt's text, without asking an engine. why
// becomes the Prompt's reason. The result depends on q and the configuration alone. Safe
// for concurrent use, each caller with its own Scratch.
func (r *Resolver) Estimate(q Query, s *Scratch, why Reason) Prompt {
	perToken := r.cfg.EstimateBytesPerToken
	e := &s.est
	e.reset(max(q.BlockSize, 0)*perToken*estimateStride, perToken, r.cfg.MaxBlocks, q.Salt.Seed(), q.Request.PromptKind == openai.PromptStrings)
	e.most = q.leaves()
	if q.BlockSize > 0 {
		e.maxBlocks = min(e.maxBlocks, e.most/(q.BlockSize*estimateStride))
	}
	openai.VisitPrompt(q.Body, q.Request, e.visit)
	return Prompt{
		ISLTokens: q.Request.PromptTokens + e.isl(),
		Hashes:    e.hashes,
		Source:    Estimate,
		Estimated: true,

		BlocksPerHash: estimateStride,
		Reason:        why,
	}
}
