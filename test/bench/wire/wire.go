// Package wire reads HTTP/1.1 messages as cheaply as a benchmark's own ends
// need it: net/http costs as much for one request as the plugin under test, and
// its collector would disturb what is measured.
//
// Contract: messages come from Envoy, which writes well-formed HTTP/1.1 with
// a content-length or chunked. Everything else is an error, never a guess.
// The package keeps three header fields and forgets the others. It is not a
// general parser and nothing that ships uses it.
package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxLines bounds the header fields of one message, and maxBody a body.
const (
	maxLines = 256
	maxBody  = 1 << 30
)

// HandOff is what the benchmark's vLLM prefill worker hands over, the value of
// kv_transfer_params in its answer and in decode's request. Members and sizes
// are those of a short prompt's; it means nothing to anybody.
const HandOff = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],` +
	`"remote_engine_id":"c5c4f2d0-6f0c-4e57-9a3c-0d2b7d3c9a11","remote_request_id":"chatcmpl-1","remote_host":"127.0.0.1",` +
	`"remote_port":5600,"tp_size":1}`

// Head is what is kept of a message's start. It may be reused; RequestID is
// overwritten by the next ReadHead.
type Head struct {
	Status    int // of a response; 0 of a request
	Length    int // of the body, where not chunked
	Chunked   bool
	RequestID []byte
}

// ReadHead reads up to the empty line. The error is io.EOF if the connection
// ended before the first byte.
func (h *Head) ReadHead(br *bufio.Reader) error {
	*h = Head{RequestID: h.RequestID[:0]}
	first, err := br.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) && len(first) > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	if rest, ok := bytes.CutPrefix(first, []byte("HTTP/1.1 ")); ok {
		h.Status, err = number(rest[:min(3, len(rest))], 999)
		if err != nil {
			return fmt.Errorf("wire: status line %q: %w", first, err)
		}
	}
	for range maxLines {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("wire: in the header: %w", unexpected(err))
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return nil
		}
		if err := h.field(line); err != nil {
			return err
		}
	}
	return fmt.Errorf("wire: more than %d header fields", maxLines)
}

func (h *Head) field(line []byte) error {
	i := bytes.IndexByte(line, ':')
	if i < 0 {
		return fmt.Errorf("wire: header field %q: expected a colon", line)
	}
	name, value := line[:i], bytes.TrimSpace(line[i+1:])
	var err error
	switch {
	case bytes.EqualFold(name, []byte("content-length")):
		h.Length, err = number(value, maxBody)
		if err != nil {
			return fmt.Errorf("wire: content-length: %w", err)
		}
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		h.Chunked = bytes.EqualFold(value, []byte("chunked"))
		if !h.Chunked {
			return fmt.Errorf("wire: transfer-encoding %q: expected chunked", value)
		}
	case bytes.EqualFold(name, []byte("x-request-id")):
		h.RequestID = append(h.RequestID[:0], value...)
	}
	return nil
}

// DiscardBody reads the body that belongs to h and returns its size.
func (h *Head) DiscardBody(br *bufio.Reader) (int, error) {
	if !h.Chunked {
		n, err := br.Discard(h.Length)
		if err != nil {
			return n, fmt.Errorf("wire: body: %w", unexpected(err))
		}
		return n, nil
	}
	total := 0
	for {
		n, err := chunkSize(br)
		if err != nil {
			return total, fmt.Errorf("wire: chunk: %w", unexpected(err))
		}
		total += n
		if total > maxBody {
			return total, fmt.Errorf("wire: body over %d bytes", maxBody)
		}
		if _, err := br.Discard(n); err != nil {
			return total, fmt.Errorf("wire: chunk: %w", unexpected(err))
		}
		line, err := br.ReadSlice('\n')
		if err != nil {
			return total, fmt.Errorf("wire: chunk: %w", unexpected(err))
		}
		if len(bytes.TrimRight(line, "\r\n")) > 0 {
			return total, fmt.Errorf("wire: after a chunk: %q: expected an empty line (trailers are not read)", line)
		}
		if n == 0 {
			return total, nil
		}
	}
}

func chunkSize(br *bufio.Reader) (int, error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	line, _, _ = bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(";"))
	n, err := strconv.ParseUint(string(line), 16, 31)
	if err != nil {
		return 0, fmt.Errorf("size %q: expected a hexadecimal number", line)
	}
	return int(n), nil
}

func number(b []byte, most int) (int, error) {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > most {
			return 0, fmt.Errorf("%q: expected a number up to %d", b, most)
		}
		n = 10*n + int(c-'0')
	}
	if len(b) == 0 || n > most {
		return 0, fmt.Errorf("%q: expected a number up to %d", b, most)
	}
	return n, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
