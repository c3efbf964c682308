package plan

import (
	"io"
	"net/http"
	"strconv"
)

// Handler answers the module.
func Handler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	n, bad := strconv.Atoi(r.Header.Get("goeson-request-bytes"))
	if err != nil || bad != nil || n > len(body) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p, err := For(r.Header.Get("goeson-path"), body[:n], body[n:])
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	h := w.Header()
	h.Set("goeson-id", p.ID)
	h.Set("goeson-created", p.Created)
	h.Set("goeson-delivered", strconv.Itoa(p.Delivered))
	h.Set("goeson-do", "ask")
	if p.Ask == nil {
		h.Set("goeson-do", "end")
		p.Ask = p.End
	}
	h.Set("content-length", strconv.Itoa(len(p.Ask)))
	_, _ = w.Write(p.Ask)
}
