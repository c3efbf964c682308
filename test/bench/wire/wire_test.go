package wire_test

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/bench/wire"
)

func TestMessagesAreReadWhole(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want wire.Head
		size int
	}{
		"a request with a length": {
			"POST / HTTP/1.1\r\nContent-Length: 5\r\nX-Request-Id: a-b\r\n\r\nhello",
			wire.Head{Length: 5, RequestID: []byte("a-b")}, 5,
		},
		"a chunked request": {
			"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nx-request-id: 1\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
			wire.Head{Chunked: true, RequestID: []byte("1")}, 15,
		},
		"a response": {"HTTP/1.1 503 No\r\ncontent-length:3\r\n\r\nabc", wire.Head{Status: 503, Length: 3}, 3},
		"no body":    {"HTTP/1.1 204\r\n\r\n", wire.Head{Status: 204}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			br := bufio.NewReader(strings.NewReader(c.in + c.in))
			var h wire.Head
			for range 2 { // on the same connection, with the same Head
				require.NoError(t, h.ReadHead(br))
				require.Equal(t, string(c.want.RequestID), string(h.RequestID))
				got, want := h, c.want
				got.RequestID, want.RequestID = nil, nil
				require.Equal(t, want, got)
				n, err := h.DiscardBody(br)
				require.NoError(t, err)
				require.Equal(t, c.size, n)
			}
			require.ErrorIs(t, h.ReadHead(br), io.EOF)
		})
	}
}

func TestBrokenMessagesAreRefused(t *testing.T) {
	for name, in := range map[string]string{
		"the first line is cut":                    "HTTP/1.1 2",
		"a status that is no number":               "HTTP/1.1 2x0\r\n\r\n",
		"no status":                                "HTTP/1.1 \n\r\n",
		"the header is cut":                        "HTTP/1.1 200\r\na: b\r\n",
		"a field without a colon":                  "HTTP/1.1 200\r\nab\r\n\r\n",
		"a length below zero":                      "HTTP/1.1 200\r\ncontent-length: -1\r\n\r\n",
		"an empty length":                          "HTTP/1.1 200\r\ncontent-length:\r\n\r\n",
		"a length that overflows":                  "HTTP/1.1 200\r\ncontent-length: 99999999999999999999\r\n\r\n",
		"another encoding":                         "HTTP/1.1 200\r\ntransfer-encoding: gzip\r\n\r\n",
		"too many fields":                          "HTTP/1.1 200\r\n" + strings.Repeat("a: b\r\n", 300) + "\r\n",
		"the body is cut":                          "HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nab",
		"a chunk is cut":                           "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
		"a chunk without a size":                   "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
		"a chunk with a size below zero":           "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
		"no empty line after a chunk":              "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
		"no last chunk":                            "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
		"the end is cut after the last chunk":      "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
		"chunks that are too large taken together": "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n7fffffff\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			br := bufio.NewReader(strings.NewReader(in))
			var h wire.Head
			err := h.ReadHead(br)
			if err == nil {
				_, err = h.DiscardBody(br)
			}
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
		})
	}
}

func FuzzHead(f *testing.F) {
	f.Add("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab")
	f.Add("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")
	f.Add("\n\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		br := bufio.NewReader(strings.NewReader(in))
		var h wire.Head
		if h.ReadHead(br) != nil {
			return
		}
		n, err := h.DiscardBody(br)
		require.GreaterOrEqual(t, n, 0)
		if err == nil {
			require.LessOrEqual(t, n, len(in))
		}
	})
}
