package kubesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// status is an error of the API.
type status struct {
	code    int
	reason  string
	message string
	cause   string
}

func (e status) object() map[string]any {
	details := map[string]any{}
	if e.cause != "" {
		details["causes"] = []any{map[string]any{"reason": e.cause, "message": "Too large resource version"}}
		details["retryAfterSeconds"] = 1
	}
	return map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": e.message, "reason": e.reason, "details": details, "code": e.code,
	}
}

// serve answers one request: GET of a collection.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); len(parts) == 3 && parts[0] == "apis" {
		s.directory(w, parts[1], parts[2])
		return
	}
	q := r.URL.Query()
	res, namespace, found := s.resolve(r.URL.Path)
	watch := q.Get("watch") == "true" || q.Get("watch") == "1"
	verb := "list"
	if watch {
		verb = "watch"
	}
	s.mu.Lock()
	s.requests = append(s.requests, Request{
		Verb: verb, Resource: res.Plural, Namespace: namespace, ResourceVersion: q.Get("resourceVersion"), LabelSelector: q.Get("labelSelector"),
		ContinueToken: q.Get("continue"), Limit: q.Get("limit"), Initial: q.Get("sendInitialEvents") == "true", Token: r.Header.Get("Authorization"),
	})
	refused := s.refused[verb+" "+res.Plural]
	s.mu.Unlock()
	if s.wait(r.Context()) != nil {
		return
	}
	switch {
	case s.cfg.Token != nil && r.Header.Get("Authorization") != "Bearer "+s.cfg.Token():
		fail(w, status{code: 401, reason: "Unauthorized", message: "Unauthorized"})
	case r.Method != http.MethodGet:
		fail(w, status{code: 405, reason: "MethodNotAllowed", message: "the server does not allow this method on the requested resource"})
	case !found:
		fail(w, status{code: 404, reason: "NotFound", message: "the server could not find the requested resource"})
	case refused:
		fail(w, status{code: 403, reason: "Forbidden", message: fmt.Sprintf(
			"%s is forbidden: User \"system:serviceaccount:%s:baton\" cannot %s resource %q in API group %q in the namespace %q",
			fullName(res), namespace, verb, res.Plural, res.Group, namespace)})
	case watch:
		s.watch(w, r, res, namespace, q)
	default:
		s.list(w, res, namespace, q)
	}
}

// directory lists the resources of a group and version.
func (s *Server) directory(w http.ResponseWriter, group, version string) {
	list := []any{}
	for _, r := range s.resources {
		if r.Group == group && r.Version == version {
			list = append(list, map[string]any{"name": r.Plural, "kind": r.Kind, "namespaced": true}, map[string]any{"name": r.Plural + "/status", "kind": r.Kind})
		}
	}
	if len(list) == 0 {
		fail(w, status{code: 404, reason: "NotFound", message: "the server could not find the requested resource"})
		return
	}
	write(w, 200, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group + "/" + version, "resources": list})
}

func fullName(r Resource) string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}

// resolve reads a path: /api/v1/namespaces/NS/pods, /apis/GROUP/VERSION/namespaces/NS/PLURAL.
func (s *Server) resolve(path string) (Resource, string, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group := ""
	switch {
	case len(parts) == 5 && parts[0] == "api":
		parts = parts[1:]
	case len(parts) == 6 && parts[0] == "apis":
		group = parts[1]
		parts = parts[2:]
	default:
		return Resource{}, "", false
	}
	i := slices.IndexFunc(s.resources, func(r Resource) bool {
		return r.Group == group && r.Version == parts[0] && r.Plural == parts[3]
	})
	if i < 0 || parts[1] != "namespaces" {
		return Resource{Plural: parts[3]}, parts[2], false
	}
	return s.resources[i], parts[2], true
}

// list answers a list.
func (s *Server) list(w http.ResponseWriter, r Resource, namespace string, q url.Values) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, _ := strconv.Atoi(q.Get("limit"))
	version, items := s.version, []map[string]any(nil)
	meta := map[string]any{}
	if token := q.Get("continue"); token != "" {
		p, ok := s.pages[token]
		if !ok || p.version < s.oldest {
			fail(w, status{code: 410, reason: "Expired", message: "The provided continue parameter is too old to display a consistent list result."})
			return
		}
		version, items = p.version, p.rest
	} else {
		want := q.Get("resourceVersion")
		n, err := strconv.ParseUint(want, 10, 64)
		switch {
		case want != "" && err != nil:
			fail(w, status{code: 400, reason: "BadRequest", message: "invalid resource version"})
			return
		case n > s.version:
			fail(w, status{
				code: 504, reason: "Timeout", cause: "ResourceVersionTooLarge",
				message: fmt.Sprintf("Too large resource version: %d, current: %d", n, s.version),
			})
			return
		case want == "0":
			limit = 0
		}
		items = s.matchingLocked(r, namespace, q)
	}
	if limit > 0 && len(items) > limit {
		token := fmt.Sprintf("page-%d-%d", version, len(s.pages))
		s.pages[token] = page{version, items[limit:]}
		meta["continue"], meta["remainingItemCount"] = token, len(items)-limit
		items = items[:limit]
	}
	meta["resourceVersion"] = strconv.FormatUint(version, 10)
	if items == nil {
		items = []map[string]any{}
	}
	write(w, 200, map[string]any{"apiVersion": r.APIVersion(), "kind": r.Kind + "List", "metadata": meta, "items": items})
}

// matchingLocked returns the objects that a request selects, by name.
func (s *Server) matchingLocked(r Resource, namespace string, q url.Values) (out []map[string]any) {
	var keys []key
	for k, o := range s.objects {
		if k.plural == r.Plural && k.namespace == namespace && matches(o.object, q) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.name, b.name) })
	for _, k := range keys {
		out = append(out, s.objects[k].object)
	}
	return out
}

// matches reports whether an object fits the selectors. Only equality is known.
func matches(object map[string]any, q url.Values) bool {
	m := metadata(object)
	if f := q.Get("fieldSelector"); f != "" && f != fmt.Sprint("metadata.name=", m["name"]) {
		return false
	}
	has, _ := m["labels"].(map[string]any)
	for part := range strings.SplitSeq(q.Get("labelSelector"), ",") {
		k, v, ok := strings.Cut(part, "=")
		if ok && has[k] != v {
			return false
		}
	}
	return true
}

// stream is one watch.
type stream struct {
	w         http.ResponseWriter
	r         Resource
	namespace string
	q         url.Values
	at        uint64 // the version up to which it has told
}

// watch answers a watch.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, res Resource, namespace string, q url.Values) {
	st := &stream{w: w, r: res, namespace: namespace, q: q}
	initial := q.Get("sendInitialEvents") == "true"
	if initial && (s.cfg.NoWatchList || q.Get("resourceVersionMatch") != "NotOlderThan") {
		fail(w, status{code: 422, reason: "Invalid", message: `ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled`})
		return
	}
	want := q.Get("resourceVersion")
	from, err := strconv.ParseUint(want, 10, 64)
	if want != "" && err != nil {
		fail(w, status{code: 400, reason: "BadRequest", message: "invalid resource version"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush(w)
	s.mu.Lock()
	oldest, end := s.oldest, s.watchStop
	expired := from != 0 && from < oldest
	if !expired && (initial || from == 0) {
		for _, o := range s.matchingLocked(res, namespace, q) {
			st.event("ADDED", o)
		}
		st.at = s.version
		if initial {
			st.bookmark(true)
		}
	} else {
		st.at = from
	}
	s.mu.Unlock()
	if expired {
		st.event("ERROR", status{code: 410, reason: "Expired", message: fmt.Sprintf("too old resource version: %d (%d)", from, oldest)}.object())
		return
	}
	s.run(r, st, end)
}

// run tells changes until the watch ends.
func (s *Server) run(r *http.Request, st *stream, end <-chan struct{}) {
	seconds, _ := strconv.Atoi(st.q.Get("timeoutSeconds"))
	limit := time.NewTimer(time.Duration(max(seconds, 1)) * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(s.cfg.Bookmarks)
	defer tick.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		hang := s.hanging
		if hang == nil {
			for _, c := range s.history {
				if c.version > st.at {
					st.tell(c)
				}
			}
			st.at = max(st.at, s.version)
		}
		s.mu.Unlock()
		if hang != nil {
			select {
			case <-hang:
			case <-r.Context().Done():
				return
			}
			continue
		}
		flush(st.w)
		select {
		case <-changed:
		case <-tick.C:
			st.bookmark(false)
		case <-limit.C:
			st.bookmark(false)
			flush(st.w)
			return
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// tell writes a change as the watch sees it.
func (st *stream) tell(c change) {
	if c.key.plural != st.r.Plural || c.key.namespace != st.namespace {
		return
	}
	was := c.before != nil && matches(c.before, st.q)
	is := c.after != nil && matches(c.after, st.q)
	switch {
	case is && was:
		st.event("MODIFIED", c.after)
	case is:
		st.event("ADDED", c.after)
	case was:
		last := clone(c.before)
		metadata(last)["resourceVersion"] = strconv.FormatUint(c.version, 10)
		st.event("DELETED", last)
	}
}

func (st *stream) bookmark(initial bool) {
	if st.q.Get("allowWatchBookmarks") != "true" {
		return
	}
	m := map[string]any{"resourceVersion": strconv.FormatUint(st.at, 10), "creationTimestamp": nil}
	if initial {
		m["annotations"] = map[string]any{"k8s.io/initial-events-end": "true"}
	}
	st.event("BOOKMARK", map[string]any{"apiVersion": st.r.APIVersion(), "kind": st.r.Kind, "metadata": m})
}

func (st *stream) event(kind string, object map[string]any) {
	_ = json.NewEncoder(st.w).Encode(map[string]any{"type": kind, "object": object})
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

func fail(w http.ResponseWriter, e status) { write(w, e.code, e.object()) }

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
