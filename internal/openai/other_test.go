package openai

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const jsonType = "application/json"

// formOf writes a form of pairs; a name that ends with @ is a file's.
func formOf(t testing.TB, pairs ...string) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		name, file := strings.CutSuffix(pairs[i], "@")
		h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="` + name + `"`}}
		if file {
			h.Set("Content-Disposition", h.Get("Content-Disposition")+`; filename="a.wav"`)
		}
		p, err := w.CreatePart(h)
		require.NoError(t, err)
		_, err = p.Write([]byte(pairs[i+1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return w.FormDataContentType(), b.Bytes()
}

func TestOfAnotherPathsBodyTheModelIsRead(t *testing.T) {
	var r Request
	for _, c := range []struct{ kind, body, model string }{
		{jsonType, `{"model":"m","input":"x"}`, "m"},
		{jsonType, ` {"input":["kv_transfer_params"],"mod\u0065l":"m"} `, "m"},
		{jsonType, `{"input":"x"}`, ""},
		{jsonType, "", ""},
		{jsonType, `{"model":null}`, ""},
		{"", `{"model":"m","stream":"yes","n":-1,"messages":1,"input_ids":["a"]}`, "m"}, // whose meaning is not known here
		{"text/plain", `{"model":"m","a":{"text":"\"bootstrap_room\":1"}}`, "m"},
	} {
		require.NoError(t, ScanOther(c.kind, []byte(c.body), &r), c.body)
		require.Equal(t, c.model, string(r.Model), c.body)
		require.Equal(t, Other, r.Path)
	}
	kind, body := formOf(t, "file@", "RIFF\x00{\"kv_transfer_params\":1}", "model", "whisper", "timestamps[]", "word", "options", `{"a":[1]}`, "prompt", `{no json`)
	require.NoError(t, ScanOther(kind, body, &r))
	require.Equal(t, "whisper", string(r.Model))
	kind, body = formOf(t, "file@", "RIFF")
	require.NoError(t, ScanOther(kind, body, &r))
	require.Empty(t, r.Model, "nothing of the form before")
}

// What only a router may set is refused at any depth and in any spelling: which of the
// objects inside an engine reads as a request is not known.
func TestNoBodyOfAnotherPathSetsWhatOnlyARouterMay(t *testing.T) {
	var r Request
	refused := func(kind string, body []byte, want Kind, field string) {
		t.Helper()
		err := ScanOther(kind, body, &r)
		var e *Error
		require.ErrorAs(t, err, &e, "%s", body)
		require.Equal(t, want, e.Kind, "%s", body)
		require.Equal(t, field, e.Field, "%s", body)
	}
	for f := BootstrapHost; f.routerOnly(); f++ {
		name := f.String()
		for _, body := range []string{
			`{"model":"m","` + name + `":1}`, `{"model":"m","a":{"b":[{"` + name + `" : {}}]}}`, `{"` + name + `":null,"model":"m"}`,
			fmt.Sprintf(`{"model":"m","x":["y",{"\u%04x%s":1}]}`, name[0], name[1:]),
		} {
			refused(jsonType, []byte(body), ForbiddenField, name)
		}
		kind, form := formOf(t, "model", "m", name+"[a]", "1")
		refused(kind, form, ForbiddenField, name)
		kind, form = formOf(t, "model", "m", "extra", `[{"`+name+`":1}]`)
		refused(kind, form, ForbiddenField, name)
	}
	refused(jsonType, []byte(`{"model":"m","do_remote_prefill":true}`), ForbiddenField, "do_remote_prefill")
	refused(jsonType, []byte(`{"model":"m","model":"n"}`), DuplicateField, "model")
	kind, form := formOf(t, "model", "m", "model", "n")
	refused(kind, form, DuplicateField, "model")
	kind, form = formOf(t, "model@", "m")
	refused(kind, form, WrongType, "model")
}

// Python reads JSON of other encodings, too: what is not read here is not passed on.
func TestABodyThatIsNotReadIsNotPassedOn(t *testing.T) {
	var r Request
	for _, body := range []string{
		"[]", `"model"`, "x=1&model=m", "{\x00\"\x00m\x00\"\x00", "\xff\xfe{\x00", `{"model":"m"} {}`, `{"model":1}`, "\x1f\x8b",
	} {
		require.Error(t, ScanOther(jsonType, []byte(body), &r), "%q", body)
		require.Error(t, ScanOther("application/octet-stream", []byte(body), &r), "%q", body)
	}
	kind, form := formOf(t, "model", "m")
	for name, c := range map[string]struct {
		kind string
		body []byte
	}{
		"cut":              {kind, form[:len(form)-10]},
		"no boundary":      {"multipart/form-data", form},
		"another kind":     {"multipart/mixed; boundary=x", form},
		"another border":   {"multipart/form-data; boundary=x", form},
		"two of a header":  {"multipart/form-data; boundary=x; boundary=y", form},
		"no name":          {"multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data\r\n\r\nm\r\n--x--\r\n")},
		"names twice":      {"multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=a; name=kv_transfer_params\r\n\r\nm\r\n--x--\r\n")},
		"two dispositions": {"multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=kv_transfer_params\r\n\r\nm\r\n--x--\r\n")},
		"a large value":    {"multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=a\r\n\r\n" + strings.Repeat("m", maxFormValue+1) + "\r\n--x--\r\n")},
		"many parts":       {"multipart/form-data; boundary=x", []byte(strings.Repeat("--x\r\nContent-Disposition: form-data; name=a\r\n\r\nm\r\n", maxFormParts+1) + "--x--\r\n")},
	} {
		require.Error(t, ScanOther(c.kind, c.body, &r), name)
	}
}

func TestEnginesControlPathsAreKnown(t *testing.T) {
	for _, path := range []string{
		"/sleep", "/sleep?level=2", "/sleep/", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
		"/collective_rpc", "/server_info", "/get_server_info", "/start_profile", "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
		"/scale_elastic_ep", "/pause", "/resume", "/init_weight_transfer_engine", "/update_weights", "/abort_requests", "/metrics", "/load",
		"/kv_event_sources", "/flush_cache", "/update_weights_from_disk", "/update_weights_from_tensor", "/init_weights_update_group",
		"/destroy_weights_update_group", "/get_weights_by_name", "/release_memory_occupation", "/resume_memory_occupation", "/slow_down",
		"/load_lora_adapter", "/unload_lora_adapter", "/open_session", "/close_session", "/configure_logging", "/abort_request", "/freeze_gc",
		"/pause_generation", "/continue_generation", "/set_internal_state", "/get_load", "/v1/loads", "/clear_hicache_storage_backend",
		"/config_dump", "/config_dump?include_eds", "/quitquitquit", "/logging?level=off", "/clusters", "/stats/recentlookups/clear", "/runtime_modify",
		"/drain_listeners", "/healthcheck/fail", "/healthcheck/ok", "/memory", "/memory/tcmalloc", "/heap_dump", "/help", "/stats/prometheus",
		"/hicache/storage-backend", "/add_external_corpus", "/start_expert_distribution_record", "/kv_cache_events", "/sim/state",
		"/api/v1/sleep", "/SLEEP", "//sleep", "/v1/../sleep", "/v1/./x", "/%73leep", "/v1/a%2fb", "/x;sleep", "/_internal/tokenize", `/a\b`, "sleep", "*", "", "/", "/?model=m",
	} {
		require.True(t, Control(path), path)
	}
	for _, path := range []string{
		"/v1/responses", "/v1/responses/resp_1/cancel", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/rerank",
		"/v2/rerank", "/tokenize", "/detokenize", "/v1/tokenize", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech",
		"/v1/images/generations", "/v1/images/edits", "/classify", "/pooling", "/score", "/v1/score", "/invocations", "/inference/v1/generate",
		"/v1/chat/completions/render", "/health", "/ping", "/version", "/model_info", "/v1/files", "/v1/embeddings?x=/sleep", "/weighted-two-pools-test",
	} {
		require.False(t, Control(path), path)
	}
}

func FuzzScanOther(f *testing.F) {
	f.Add(jsonType, []byte(`{"model":"m","a":[{"b":"\u006b"}]}`))
	f.Add("multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--x--\r\n"))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		var r Request
		if ScanOther(kind, body, &r) != nil || r.End() == 0 {
			return
		}
		require.Equal(t, byte('}'), body[r.End()])
	})
}
