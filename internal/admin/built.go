package admin

import (
	"bytes"
	"compress/gzip"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// A page is served again for freshFor, or for longer if it takes long to build, up to
// staleFor: the readers of a page then cost less than a hundredth of a processor, however many
// they are.
const (
	freshFor  = time.Second
	staleFor  = 5 * time.Second
	ofTheTime = 300
	maxBuilt  = 16 // pages that are kept, one for each query
)

// built keeps the pages of one state. Safe for concurrent use.
type built struct {
	mu    sync.Mutex // guards all below; held while a page is built, so that it is built once
	at    time.Time  // when state was made
	until time.Time
	state State
	pools []*pool
	hour  *hourView
	pages map[query]builtPage
}

// builtPage is a page, and the same compressed: to send the bytes costs more than to make them.
type builtPage struct{ plain, zipped []byte }

// pageFor returns the page for the query.
func (s *Server) pageFor(q query) (builtPage, error) {
	b := &s.built
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	if !began.Before(b.until) {
		b.state = s.state()
		b.pools, b.hour = pools(b.state.Workers), newHourView(s.cfg.Hour, b.state.Now)
		b.pages, b.at, b.until = map[query]builtPage{}, began, began
	}
	if page, ok := b.pages[q]; ok {
		return page, nil
	}
	recs := s.cfg.Journal.Recent([]decision.Record{}, q.n)
	var out bytes.Buffer
	view := newPageView(&b.state, recs, s.cfg.Journal.Size())
	view.Hour, view.Query = b.hour, q
	view.Columns = columnViews(q)
	view.Pools, view.PoolsLeft = poolViews(b.pools, q, b.state.Now)
	if err := s.page.Execute(&out, view); err != nil {
		return builtPage{}, err
	}
	page := builtPage{plain: oneWay(out.Bytes())}
	var zipped bytes.Buffer
	z, _ := gzip.NewWriterLevel(&zipped, gzip.BestSpeed) // a level that there is
	_, _ = z.Write(page.plain)
	_ = z.Close()
	page.zipped = zipped.Bytes()
	fresh := min(began.Sub(b.at)+max(freshFor, ofTheTime*time.Since(began)), staleFor)
	if until := b.at.Add(fresh); until.After(b.until) {
		b.until = until
	}
	if len(b.pages) < maxBuilt {
		b.pages[q] = page
	}
	return page, nil
}

func (s *Server) servePage(w http.ResponseWriter, r *http.Request) {
	n, err := decisionCount(r, defaultDecisions)
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	page, err := s.pageFor(newQuery(r.URL.Query(), n))
	w.Header().Set("Vary", "Accept-Encoding")
	if err == nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		page.plain = page.zipped
	}
	s.html(w, page.plain, err)
}

// serveDecision shows one decision with all of its candidates, of which the page has only the
// picked ones.
func (s *Server) serveDecision(w http.ResponseWriter, r *http.Request) {
	recs := s.cfg.Journal.Recent(nil, 0)
	i := slices.IndexFunc(recs, func(d decision.Record) bool { return strconv.FormatUint(d.Seq, 10) == r.PathValue("seq") })
	if i < 0 {
		text(w, http.StatusNotFound, "this decision is not kept any more; the page has the latest\n")
		return
	}
	var out bytes.Buffer
	err := s.page.ExecuteTemplate(&out, "decision", &recs[i])
	s.html(w, oneWay(out.Bytes()), err)
}

// oneWay replaces the characters that turn the direction of text: in a name they would move
// the words around it.
func oneWay(page []byte) []byte {
	for _, turn := range "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" {
		page = bytes.ReplaceAll(page, []byte(string(turn)), []byte("\ufffd"))
	}
	return page
}

func (s *Server) html(w http.ResponseWriter, page []byte, err error) {
	if err != nil {
		s.cfg.Logger.Error("status page could not be built", slog.Any(logkey.Err, err))
		text(w, http.StatusInternalServerError, "the page could not be built; see the log\n")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page)
}
