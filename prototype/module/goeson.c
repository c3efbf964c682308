// goeson is an HTTP filter for Envoy 1.40, as a dynamic module: it carries a streamed answer to
// the client itself, and lets it go on at another decode worker when the first one dies.
//
// It stands before the router of the client listener. A streamed completion does not reach the
// router: the filter sends it as a stream callout to the cluster of the main leg, makes fresh
// attempts on x-baton-retry as the route's retry policy does, and relays whole events. It keeps
// the request and what was delivered, and reads neither. When the callout is reset in mid-answer
// it posts both to the planner, which says whether and how the answer can go on: the body of the
// next request, or the events that are missing at the end, or neither, and then the answer is cut.
// Of the events of a continued answer it rewrites what must be one answer's: id, created, usage.
//
// What the planner says stands in the headers of its answer:
//   200, goeson-do: ask     the body is the next request to the main leg
//        goeson-id, goeson-created   of the events that have been delivered
//        goeson-delivered            tokens that were delivered, and are prompt there
//   200, goeson-do: end     the body is the end of the answer
//   any other               cut
//
// The declarations below are those few of Envoy's ABI for modules that are used here.

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { const char *ptr; size_t len; } buf;            // Envoy's or ours
typedef struct { const char *k; size_t klen; const char *v; size_t vlen; } header;
typedef void *envoy;

enum { CONTINUE = 0, STOP = 1, STOP_NO_BUFFER = 3 };            // of headers; of bodies: 1 is stop and buffer
enum { REQUEST_HEADERS = 0 };
enum { RECEIVED_REQUEST = 0, BUFFERED_REQUEST = 1 };

size_t envoy_dynamic_module_callback_http_get_headers_size(envoy, int);
bool envoy_dynamic_module_callback_http_get_headers(envoy, int, header *);
size_t envoy_dynamic_module_callback_http_get_body_chunks_size(envoy, int);
bool envoy_dynamic_module_callback_http_get_body_chunks(envoy, int, buf *);
bool envoy_dynamic_module_callback_http_received_buffered_request_body(envoy);
void envoy_dynamic_module_callback_http_send_response(envoy, uint32_t, header *, size_t, buf, buf);
void envoy_dynamic_module_callback_http_send_response_headers(envoy, header *, size_t, bool);
void envoy_dynamic_module_callback_http_send_response_data(envoy, buf, bool);
void envoy_dynamic_module_callback_http_filter_reset_stream(envoy, int, buf);
int envoy_dynamic_module_callback_http_filter_start_http_stream(envoy, uint64_t *, buf, header *, size_t, buf, bool,
                                                                uint64_t);
void envoy_dynamic_module_callback_http_filter_reset_http_stream(envoy, uint64_t);
void envoy_dynamic_module_callback_log(int, buf);

enum { MAX_ATTEMPTS = 3, MAX_DEATHS = 3, TIMEOUT_MS = 600000, PLAN_TIMEOUT_MS = 5000, MAX_KEPT = 4 << 20 };

typedef struct { char *p; size_t n, cap; } bytes;

static void add(bytes *b, const char *p, size_t n) {
  if (b->n + n > b->cap) {
    b->cap = (b->n + n) * 2 + 256;
    b->p = realloc(b->p, b->cap);
    if (b->p == NULL) abort();
  }
  memcpy(b->p + b->n, p, n);
  b->n += n;
}
static void adds(bytes *b, const char *s) { add(b, s, strlen(s)); }

static buf str(const char *s) { return (buf){s, strlen(s)}; }
static buf all(bytes *b) { return (buf){b->p, b->n}; }

enum phase { IDLE, FIRST, PLANNING, NEXT, OVER };  // FIRST, NEXT: a leg runs

typedef struct {
  envoy e;
  const char *upstream, *planner;   // clusters
  enum phase phase;
  uint64_t stream;      // the callout under way
  int attempt, deaths;
  bool started;         // the client has response headers
  bool joinable;        // the answer is a stream of events
  bool retry;           // this attempt ended with x-baton-retry: what else comes of it is dropped
  bool ok;              // of the planner's answer, of a next leg's
  bool end;             // the planner's answer is the end
  bool full;            // more was delivered than is kept
  bool gone;            // the stream has been ended from here
  bytes body;           // of the client's request
  bytes next;           // of the next leg's request; the planner's answer
  bytes head;           // request headers: k\0v\0…
  size_t nhead;
  bytes said;           // what was delivered; behind sent, what is not whole yet
  size_t sent;
  bytes tail;           // of a next leg: what is no whole event yet
  char id[128], created[24];
  long delivered;
  char status[4];
  char start[32];       // of the request, which its deadline counts from
  struct timespec died;
} filter;

typedef struct { char *upstream, *planner; } config;

static void note(filter *f, const char *what) {
  char line[600];
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  snprintf(line, sizeof line, "goeson: %s, %zu bytes delivered, death %d, %ld us after it, last status %s: %.*s", what, f->sent, f->deaths,
           (t.tv_sec - f->died.tv_sec) * 1000000 + (t.tv_nsec - f->died.tv_nsec) / 1000, f->status, f->ok ? 0 : (int)f->tail.n, f->tail.p);
  envoy_dynamic_module_callback_log(2, str(line));
}

static bool is(header *h, const char *k) { return h->klen == strlen(k) && memcmp(h->k, k, h->klen) == 0; }
static bool starts(header *h, const char *v) { return h->vlen >= strlen(v) && memcmp(h->v, v, strlen(v)) == 0; }

static void cut(filter *f, const char *why) {
  if (f->gone) return;
  note(f, why);
  f->phase = OVER, f->gone = true;
  if (f->started && f->joinable && !f->full) {  // whole events have gone out: one more tells
    envoy_dynamic_module_callback_http_send_response_data(
        f->e,
        str("data: {\"error\":{\"message\":\"The answer broke off.\",\"type\":\"service_unavailable_error\",\"param\":null,"
            "\"code\":\"answer_cut\"}}\n\n"),
        true);
    return;
  }
  if (f->started) {
    envoy_dynamic_module_callback_http_filter_reset_stream(f->e, 0, str("answer_cut"));
    return;
  }
  header h[] = {{"content-type", 12, "application/json", 16}, {"retry-after", 11, "1", 1}};
  envoy_dynamic_module_callback_http_send_response(
      f->e, 503, h, 2,
      str("{\"error\":{\"message\":\"The request could not be routed; try again.\",\"type\":\"service_unavailable_error\","
          "\"param\":null,\"code\":\"router_unavailable\"}}"),
      str("goeson_no_leg"));
}

// ask starts an attempt of the leg that is due.
static void ask(filter *f) {
  header h[64];
  size_t n = 0;
  char count[16];
  const char *p = f->head.p;
  bytes *body = f->phase == NEXT ? &f->next : &f->body;
  for (size_t i = 0; i < f->nhead && n < 60; i++) {
    const char *v = p + strlen(p) + 1;
    h[n++] = (header){p, strlen(p), v, strlen(v)};
    p = v + strlen(v) + 1;
  }
  snprintf(count, sizeof count, "%d", ++f->attempt);
  h[n++] = (header){"x-baton-start", 13, f->start, strlen(f->start)};
  h[n++] = (header){"x-envoy-attempt-count", 21, count, strlen(count)};
  f->retry = f->ok = false;
  f->tail.n = 0;
  if (envoy_dynamic_module_callback_http_filter_start_http_stream(f->e, &f->stream, str(f->upstream), h, n, all(body), true,
                                                                  TIMEOUT_MS) != 0)
    cut(f, "no leg can be started");
}

// plan asks the planner what is to become of an answer that has broken off.
static void plan(filter *f) {
  char n[24];
  bytes b = {0};
  clock_gettime(CLOCK_MONOTONIC, &f->died);
  if (f->full || f->deaths++ >= MAX_DEATHS) {
    cut(f, f->full ? "too long to go on" : "died too often");
    return;
  }
  f->said.n = f->sent;  // what was not whole was not delivered
  f->phase = PLANNING, f->ok = false, f->end = false, f->next.n = 0;
  snprintf(n, sizeof n, "%zu", f->body.n);
  add(&b, f->body.p, f->body.n);
  add(&b, f->said.p, f->said.n);
  header h[] = {{":method", 7, "POST", 4}, {":path", 5, "/goeson", 7}, {":authority", 10, "planner", 7},
                {"goeson-request-bytes", 20, n, strlen(n)}, {"goeson-path", 11, "", 0}};
  const char *p = f->head.p;
  for (size_t i = 0; i < f->nhead; i++) {
    const char *v = p + strlen(p) + 1;
    if (strcmp(p, ":path") == 0) h[4].v = v, h[4].vlen = strlen(v);
    p = v + strlen(v) + 1;
  }
  int rc = envoy_dynamic_module_callback_http_filter_start_http_stream(f->e, &f->stream, str(f->planner), h, 5, all(&b), true,
                                                                       PLAN_TIMEOUT_MS);
  free(b.p);
  if (rc != 0) cut(f, "no planner");
}

// relay passes on what is whole of an answer as it came.
static void relay(filter *f) {
  size_t end = f->said.n;
  while (end > f->sent + 1 && !(f->said.p[end - 1] == '\n' && f->said.p[end - 2] == '\n')) end--;
  if (end < f->sent + 2) return;
  buf out = {f->said.p + f->sent, end - f->sent};
  f->sent = end;
  envoy_dynamic_module_callback_http_send_response_data(f->e, out, false);
}

// swap copies ev to out, with what stands between the end of key and one of stops replaced by value.
static bool swap(bytes *out, buf *ev, const char *key, const char *stops, const char *value) {
  char *at = memmem(ev->ptr, ev->len, key, strlen(key));
  if (at == NULL) return false;
  const char *from = at + strlen(key), *to = from, *last = ev->ptr + ev->len;
  while (to < last && strchr(stops, *to) == NULL) to++;
  add(out, ev->ptr, from - ev->ptr);
  adds(out, value);
  ev->len = last - to, ev->ptr = to;
  return true;
}

static long number(buf ev, const char *key) {
  char *at = memmem(ev.ptr, ev.len, key, strlen(key));
  return at == NULL ? -1 : atol(at + strlen(key));
}

// join passes on one event of a next leg, as an event of the first answer.
static void join(filter *f, buf ev) {
  char n[24];
  if (memmem(ev.ptr, ev.len, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"", 40) != NULL) return;  // has been said
  swap(&f->said, &ev, "\"id\":\"", "\"", f->id);
  swap(&f->said, &ev, "\"created\":", ",}", f->created);
  swap(&f->said, &ev, "\"prompt_token_ids\":", "]n", "null");  // [1,2] or null
  if (ev.len > 0 && *ev.ptr == ']') ev.ptr++, ev.len--;
  if (ev.len > 3 && memcmp(ev.ptr, "null", 4) == 0) ev.ptr += 4, ev.len -= 4;
  long prompt = number(ev, "\"prompt_tokens\":"), said = number(ev, "\"completion_tokens\":");
  const char *p1 = memmem(ev.ptr, ev.len, "\"prompt_tokens\":", 16), *c1 = memmem(ev.ptr, ev.len, "\"completion_tokens\":", 20);
  for (int i = 0; i < 2 && p1 != NULL && c1 != NULL; i++) {  // in the order in which they stand
    bool first = (i == 0) == (p1 < c1);
    snprintf(n, sizeof n, "%ld", first ? prompt - f->delivered : said + f->delivered);
    swap(&f->said, &ev, first ? "\"prompt_tokens\":" : "\"completion_tokens\":", ",}", n);
  }
  add(&f->said, ev.ptr, ev.len);
}

static void relay_next(filter *f) {
  size_t at = 0;
  for (char *nl; (nl = memmem(f->tail.p + at, f->tail.n - at, "\n\n", 2)) != NULL;) {
    size_t end = nl + 2 - f->tail.p;
    join(f, (buf){f->tail.p + at, end - at});
    at = end;
  }
  memmove(f->tail.p, f->tail.p + at, f->tail.n - at);
  f->tail.n -= at;
  if (f->said.n > f->sent) {
    buf out = {f->said.p + f->sent, f->said.n - f->sent};
    f->sent = f->said.n;
    envoy_dynamic_module_callback_http_send_response_data(f->e, out, false);
  }
}

static bool done(filter *f) {
  const char *mark = "data: [DONE]\n\n";
  return f->sent >= strlen(mark) && memcmp(f->said.p + f->sent - strlen(mark), mark, strlen(mark)) == 0;
}

static void finish(filter *f) {
  f->phase = OVER;
  if (f->gone) return;
  f->gone = true;
  envoy_dynamic_module_callback_http_send_response_data(f->e, (buf){"", 0}, true);
}

// --- Envoy's hooks

const char *envoy_dynamic_module_on_program_init(void) { return "v0.1.0"; }

void *envoy_dynamic_module_on_http_filter_config_new(envoy e, buf name, buf conf) {
  (void)e, (void)name;
  config *c = calloc(1, sizeof *c);
  char *all = strndup(conf.ptr, conf.len), *comma = strchr(all, ',');
  if (comma == NULL) return NULL;
  *comma = 0;
  c->upstream = all, c->planner = comma + 1;
  return c;
}
void envoy_dynamic_module_on_http_filter_config_destroy(void *c) {
  free(((config *)c)->upstream);
  free(c);
}

void *envoy_dynamic_module_on_http_filter_new(config *c, envoy e) {
  filter *f = calloc(1, sizeof *f);
  f->e = e, f->upstream = c->upstream, f->planner = c->planner;
  return f;
}
void envoy_dynamic_module_on_http_filter_destroy(filter *f) {
  free(f->body.p), free(f->next.p), free(f->head.p), free(f->said.p), free(f->tail.p), free(f);
}

int envoy_dynamic_module_on_http_filter_request_headers(envoy e, filter *f, bool end) {
  header h[64];
  size_t n = envoy_dynamic_module_callback_http_get_headers_size(e, REQUEST_HEADERS);
  bool post = false, ours = false;
  if (end || n > 56 || !envoy_dynamic_module_callback_http_get_headers(e, REQUEST_HEADERS, h)) return CONTINUE;
  for (size_t i = 0; i < n; i++) {
    post = post || (is(&h[i], ":method") && starts(&h[i], "POST"));
    ours = ours || (is(&h[i], ":path") && (starts(&h[i], "/v1/completions") || starts(&h[i], "/v1/chat/completions")));
  }
  if (!post || !ours) return CONTINUE;
  for (size_t i = 0; i < n; i++) {
    if (is(&h[i], "content-length")) continue;  // Envoy sets that of each leg's body
    f->nhead++;
    add(&f->head, h[i].k, h[i].klen), add(&f->head, "", 1);
    add(&f->head, h[i].v, h[i].vlen), add(&f->head, "", 1);
  }
  return STOP;
}

static void take(filter *f, int which) {
  size_t n = envoy_dynamic_module_callback_http_get_body_chunks_size(f->e, which);
  buf chunk[n + 1];
  if (n == 0 || !envoy_dynamic_module_callback_http_get_body_chunks(f->e, which, chunk)) return;
  for (size_t i = 0; i < n; i++) add(&f->body, chunk[i].ptr, chunk[i].len);
}

static bool streams(bytes *b) {
  const char *p = b->p, *last = b->p + b->n;
  while ((p = memmem(p, last - p, "\"stream\"", 8)) != NULL) {
    p += 8;
    while (p < last && strchr(" \t\r\n:", *p) != NULL) p++;
    if (last - p >= 4 && memcmp(p, "true", 4) == 0) return true;
  }
  return false;
}

int envoy_dynamic_module_on_http_filter_request_body(envoy e, filter *f, bool end) {
  if (f->nhead == 0) return CONTINUE;
  if (!end) return STOP;
  take(f, BUFFERED_REQUEST);
  if (!envoy_dynamic_module_callback_http_received_buffered_request_body(e)) take(f, RECEIVED_REQUEST);
  if (!streams(&f->body)) return CONTINUE;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(f->start, sizeof f->start, "%lld", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
  f->phase = FIRST;
  ask(f);
  return STOP_NO_BUFFER;
}
int envoy_dynamic_module_on_http_filter_request_trailers(envoy e, filter *f) { (void)e, (void)f; return CONTINUE; }
int envoy_dynamic_module_on_http_filter_response_headers(envoy e, filter *f, bool end) { (void)e, (void)f, (void)end; return CONTINUE; }
int envoy_dynamic_module_on_http_filter_response_body(envoy e, filter *f, bool end) { (void)e, (void)f, (void)end; return CONTINUE; }
int envoy_dynamic_module_on_http_filter_response_trailers(envoy e, filter *f) { (void)e, (void)f; return CONTINUE; }
void envoy_dynamic_module_on_http_filter_stream_complete(envoy e, filter *f) { (void)e; f->gone = true; }

static bool private_header(header *h) {
  return is(h, "x-baton-retry") || is(h, "x-baton-local-reply") || is(h, "x-envoy-upstream-service-time") ||
         is(h, "x-envoy-attempt-count");
}

static void copy(char *to, size_t cap, header *h) {
  size_t n = h->vlen < cap ? h->vlen : cap - 1;
  memcpy(to, h->v, n), to[n] = 0;
}

void envoy_dynamic_module_on_http_filter_http_stream_headers(envoy e, filter *f, uint64_t id, header *h, size_t n, bool end) {
  (void)e, (void)id, (void)end;
  bool ok = false, events = false;
  header out[64];
  size_t m = 0;
  for (size_t i = 0; i < n; i++) {
    char delivered[24];
    if (is(&h[i], ":status")) copy(f->status, sizeof f->status, &h[i]), ok = starts(&h[i], "200");
    events = events || (is(&h[i], "content-type") && starts(&h[i], "text/event-stream"));
    f->retry = f->retry || (is(&h[i], "x-baton-retry") && f->phase != PLANNING && f->attempt < MAX_ATTEMPTS);
    if (f->phase == PLANNING) {
      f->end = f->end || (is(&h[i], "goeson-do") && starts(&h[i], "end"));
      if (is(&h[i], "goeson-id")) copy(f->id, sizeof f->id, &h[i]);
      if (is(&h[i], "goeson-created")) copy(f->created, sizeof f->created, &h[i]);
      if (is(&h[i], "goeson-delivered")) copy(delivered, sizeof delivered, &h[i]), f->delivered = atol(delivered);
    } else if (!private_header(&h[i]) && m < 64) {
      out[m++] = h[i];
    }
  }
  f->ok = ok && (events || f->phase == PLANNING);
  if (f->phase != FIRST || f->retry) return;
  f->joinable = f->ok, f->started = true;
  envoy_dynamic_module_callback_http_send_response_headers(f->e, out, m, false);
}

void envoy_dynamic_module_on_http_filter_http_stream_data(envoy e, filter *f, uint64_t id, const buf *d, size_t n, bool end) {
  (void)e, (void)id, (void)end;
  if (f->retry || f->gone) return;
  for (size_t i = 0; i < n; i++) {
    if (f->phase == PLANNING) {
      add(&f->next, d[i].ptr, d[i].len);
    } else if (f->phase == NEXT) {
      add(&f->tail, d[i].ptr, d[i].len);  // of a refusal, for the log
    } else if (!f->joinable || f->full) {
      envoy_dynamic_module_callback_http_send_response_data(f->e, d[i], false);
    } else {
      add(&f->said, d[i].ptr, d[i].len);
    }
  }
  if (f->phase == FIRST && f->joinable && !f->full) relay(f);
  if (f->phase == NEXT && f->ok) relay_next(f);
  if (f->phase == FIRST && f->said.n > MAX_KEPT && !f->full) {  // the rest passes as it comes
    buf rest = {f->said.p + f->sent, f->said.n - f->sent};
    f->full = true;
    if (rest.len > 0) envoy_dynamic_module_callback_http_send_response_data(f->e, rest, false);
    free(f->said.p), f->said = (bytes){0}, f->sent = 0;
  }
}
void envoy_dynamic_module_on_http_filter_http_stream_trailers(envoy e, filter *f, uint64_t id, header *h, size_t n) {
  (void)e, (void)f, (void)id, (void)h, (void)n;
}

void envoy_dynamic_module_on_http_filter_http_stream_complete(envoy e, filter *f, uint64_t id) {
  (void)e, (void)id;
  if (f->gone) return;
  if (f->retry) {
    ask(f);
  } else if (f->phase == PLANNING && f->ok && f->end) {
    add(&f->said, f->next.p, f->next.n);
    f->sent = f->said.n;
    envoy_dynamic_module_callback_http_send_response_data(f->e, all(&f->next), false);
    note(f, "ended");
    finish(f);
  } else if (f->phase == PLANNING && f->ok) {
    f->phase = NEXT, f->attempt = 0;
    note(f, "goes on");
    ask(f);
  } else if (f->phase == PLANNING) {
    cut(f, "cannot go on");
  } else if (f->phase == NEXT && !f->ok) {
    cut(f, "no decode takes it");
  } else {
    if (f->phase == FIRST && f->said.n > f->sent)
      envoy_dynamic_module_callback_http_send_response_data(f->e, (buf){f->said.p + f->sent, f->said.n - f->sent}, false);
    finish(f);
  }
}

void envoy_dynamic_module_on_http_filter_http_stream_reset(envoy e, filter *f, uint64_t id, int why) {
  (void)e, (void)id, (void)why;
  if (f->gone) return;
  if (f->retry)
    ask(f);
  else if (f->phase == PLANNING || !f->started || !f->joinable)
    cut(f, "broke off");
  else if (done(f))
    finish(f);
  else
    plan(f);
}

void envoy_dynamic_module_on_http_filter_http_callout_done(envoy e, filter *f, uint64_t id, int r, header *h, size_t n, buf *b,
                                                           size_t m) {
  (void)e, (void)f, (void)id, (void)r, (void)h, (void)n, (void)b, (void)m;
}
void envoy_dynamic_module_on_http_filter_scheduled(envoy e, filter *f, uint64_t id) { (void)e, (void)f, (void)id; }
// A client that reads slowly cannot be told to the leg: the ABI has nothing by which a callout is paused.
void envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(envoy e, filter *f) { (void)e, (void)f; }
void envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(envoy e, filter *f) { (void)e, (void)f; }
int envoy_dynamic_module_on_http_filter_local_reply(envoy e, filter *f, uint32_t code, buf details, bool reset) {
  (void)e, (void)f, (void)code, (void)details, (void)reset;
  return 0;
}
