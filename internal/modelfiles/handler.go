package modelfiles

import (
	"net/http"
	"net/netip"
	"strconv"

	"github.com/seed-60ae5743/baton/pkg/tokens/local"
)

// path is where a set is served, before its digest.
const path = "/model-files/"

// url returns where a set is served at an address.
func url(at netip.AddrPort, digest string) string { return "http://" + at.String() + path + digest }

// sending is how many requests are answered at once. Each one holds a connection, while the
// set itself is in memory once.
const sending = 16

// Handler serves packed files under their digest, to whoever asks: they are as public as
// the model is. Beyond 16 requests at once it answers 503.
func Handler(packed []byte) http.Handler {
	digest, room := local.Digest(packed), make(chan struct{}, sending)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"{digest}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("digest") != digest {
			http.Error(w, "these are not the files here; they have the digest "+digest, http.StatusNotFound)
			return
		}
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many ask at once", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Content-Length", strconv.Itoa(len(packed)))
		_, _ = w.Write(packed) // the client has gone, if it fails
	})
	return mux
}
