package envoyfile

import (
	"slices"
	"strings"
)

// Part is something of Envoy's configuration that Baton needs.
type Part struct {
	ID      string
	Where   string // in words, for people
	What    string
	Without string // what happens if it is missing or differs
	Advised bool   // requests are served right without it

	// at are the places that the part has, as Check names them; the longest that is the
	// beginning of a place owns it.
	at []string
}

// Parts is the list, in the order of a request's way.
func Parts() []Part { return slices.Concat(ofClients(), ofLegs(), ofClusters()) }

// ofClients are those of the bootstrap file and of the listener that clients reach.
func ofClients() []Part {
	return []Part{
		{ID: "internal_listeners", Where: "bootstrap_extensions", What: "internal listeners", at: []string{"bootstrap/bootstrap_extensions"},
			Without: "Envoy does not start: a listener is of an unknown kind."},
		{ID: "overload", Where: "overload_manager, and the legs' bypass of it", What: "bounds of Envoy's memory and connections", Advised: true,
			at:      []string{"bootstrap/overload_manager", "main_leg/listener/bypass_overload_manager", "sync_leg/listener/bypass_overload_manager", "sync_leg/listener/ignore_global_conn_limit", "prefill_leg/listener/bypass_overload_manager"},
			Without: "Envoy's memory grows until the kernel ends Envoy; with an overload manager and without the bypass, admitted requests fail on their way."},
		{ID: "own_replies", Where: "layered_runtime", What: "Envoy before 1.37 shows its own replies to the plugin", at: []string{"bootstrap/layered_runtime"},
			Without: "A refused connection gets no fresh attempt."},

		{ID: "client_listener", Where: "the listener that clients reach", What: "its limits, and how it reads requests", Advised: true, at: []string{"client", "main_leg/http/preserve_external_request_id", "sync_leg/http/preserve_external_request_id", "prefill_leg/http/preserve_external_request_id"},
			Without: "Envoy's defaults hold: paths are not normalized, slow clients are not cut off, buffers are of 1 MiB."},
		{ID: "client_replies", Where: "the listener that clients reach", What: "local_reply_config: Envoy's own errors as JSON", Advised: true, at: []string{"client/http/local_reply_config"},
			Without: "Envoy's own errors are plain text, which clients of OpenAI's API cannot read."},
		{ID: "strip", Where: "the listener that clients reach", What: "early_header_mutation_extensions: removes headers that clients may not set", at: []string{"client/http/early_header_mutation_extensions"},
			Without: "Clients can set headers that workers, their sidecars and the plugin obey, such as x-data-parallel-host-port."},
		{ID: "client_idle", Where: "the listener that clients reach", What: "stream_idle_timeout: 0s", at: []string{"client/http/stream_idle_timeout"},
			Without: "A request that waits longer for its first byte (by Envoy's default: 5 minutes) gets 504, or 503 by local_reply_config."},
		{ID: "attempt_count", Where: "its virtual host", What: "include_request_attempt_count", at: []string{"client/host/include_request_attempt_count"},
			Without: "The plugin counts each attempt as the first: a request whose last attempt has failed counts as retried, and no metric shows the failure."},
		{ID: "body_kept", Where: "all virtual hosts", What: "request_body_buffer_limit, and none below it in a route", at: []string{"client/host/request_body_buffer_limit", "client/route/request_body_buffer_limit", "main_leg/http/route_config/virtual_hosts/all/request_body_buffer_limit", "sync_leg/http/route_config/virtual_hosts/all/request_body_buffer_limit", "prefill_leg/http/route_config/virtual_hosts/all/request_body_buffer_limit"},
			Without: "A body that is larger than a connection's buffer is refused with 413, or gets no fresh attempt."},
		{ID: "cors", Where: "its virtual host and filters", What: "CORS, since you ask for it", at: []string{"client/host/typed_per_filter_config", "client/http/http_filters/envoy.filters.http.cors"},
			Without: "Web pages of other origins are not served."},
		{ID: "client_tracing", Where: "the listener that clients reach", What: "spans of Envoy's own, since you ask for them", at: []string{"client/http/tracing", "cluster/otel_collector"},
			Without: "The spans of the plugin have no parent."},
		{ID: "attempt_start", Where: "its route", What: "request_headers_to_add: x-baton-start, and content-type", at: []string{"client/route/request_headers_to_add"},
			Without: "The deadline of a request begins anew with each fresh attempt; the refusal of a request that claims to be gRPC has status 200."},
		{ID: "private_answers", Where: "its route", What: "response_headers_to_remove", at: []string{"client/route/response_headers_to_remove"},
			Without: "Clients see internal headers of Envoy and the plugin, such as x-baton-retry."},
		{ID: "route", Where: "its route", What: "cluster: main_leg", at: []string{"client/route/route/cluster"},
			Without: "Requests do not reach the plugin."},
		{ID: "route_timeout", Where: "its route", What: "timeout: 0s, and no idle_timeout or max_stream_duration", at: []string{"client/route/route/timeout", "client/route/route/idle_timeout", "client/route/route/max_stream_duration", "client/http/common_http_protocol_options/max_stream_duration"},
			Without: "A request that takes longer (by Envoy's default: 15 s) gets 504, or 503 by local_reply_config. The plugin counts it as left by its client."},
		{ID: "fresh_pick", Where: "its route", What: "retry_policy on x-baton-retry alone", at: []string{"client/route/route/retry_policy"},
			Without: "A request whose worker is dead gets no other worker: 503."},
	}
}

// ofLegs are those of the legs' listeners.
func ofLegs() []Part {
	return []Part{
		{ID: "main_leg", Where: "listeners", What: "main_leg, an internal listener: one attempt", at: []string{"main_leg"},
			Without: "Every request gets 503."},
		{ID: "header_room", Where: "all legs' listeners", What: "max_request_headers_kb, max_headers_count: more than your own listener lets in",
			at:      []string{"main_leg/http/max_request_headers_kb", "main_leg/http/common_http_protocol_options/max_headers_count", "sync_leg/http/max_request_headers_kb", "sync_leg/http/common_http_protocol_options/max_headers_count", "prefill_leg/http/max_request_headers_kb", "prefill_leg/http/common_http_protocol_options/max_headers_count"},
			Without: "The plugin adds headers, so a request with many headers that your listener admits gets 431."},
		{ID: "leg_idle", Where: "all legs' listeners", What: "stream_idle_timeout: 0s", at: []string{"main_leg/http/stream_idle_timeout", "sync_leg/http/stream_idle_timeout", "prefill_leg/http/stream_idle_timeout"},
			Without: "Envoy ends a leg that waits longer for its first byte (by default: 5 minutes)."},
		{ID: "local_replies", Where: "all legs' listeners", What: "local_reply_config", at: []string{"main_leg/http/local_reply_config", "sync_leg/http/local_reply_config", "prefill_leg/http/local_reply_config"},
			Without: "The plugin counts Envoy's own refusals as a worker's, and clients get errors as plain text."},
		{ID: "access_log", Where: "main_leg", What: "both access logs to the plugin", at: []string{"main_leg/http/access_log", "main_leg/http/access_log_options"},
			Without: "The plugin does not learn how answers end: they are counted as unfinished, and their load stays booked for too long."},
		{ID: "leg_routes", Where: "main_leg", What: "its routes: large bodies are streamed", at: []string{"main_leg/http/route_config"},
			Without: "Requests cannot reach decode workers, or a body of several MiB or of unknown size delays other requests."},
		{ID: "gap", Where: "main_leg", What: "baton.gap and its routes", at: []string{"main_leg/http/http_filters/baton.gap", "main_leg/http/http_filters/baton.gap_route", "main_leg/http/route_config/virtual_hosts/all/routes/gap_"},
			Without: "A streamed answer that stands still waits for the request's deadline."},
		{ID: "usage", Where: "main_leg", What: "baton.usage", at: []string{"main_leg/http/http_filters/baton.usage"},
			Without: "The plugin does not learn how many tokens streamed answers had."},
		{ID: "picker", Where: "main_leg", What: "the other picker's filter and cluster", at: []string{"main_leg/http/http_filters/picker", "cluster/picker"},
			Without: "The other picker is not asked, and no request is served."},
		{ID: "filter", Where: "main_leg", What: "the ext_proc filter", at: []string{"main_leg/http/http_filters/envoy.filters.http.ext_proc", "main_leg/http/http_filters/envoy.filters.http.header_mutation"},
			Without: "Envoy does not start: routes name the filter."},
		{ID: "filter_time", Where: "its ext_proc filter", What: "message_timeout, max_message_timeout", at: []string{"main_leg/http/http_filters/envoy.filters.http.ext_proc/typed_config/message_timeout", "main_leg/http/http_filters/envoy.filters.http.ext_proc/typed_config/max_message_timeout", "main_leg/http/http_filters/baton.first_token/typed_config/message_timeout", "main_leg/http/http_filters/baton.first_token/typed_config/max_message_timeout"},
			Without: "A prefill that takes longer gets 503 or 504, long before its deadline."},
		{ID: "plugin_retries", Where: "its ext_proc filter", What: "retry_policy of its grpc_service", at: []string{"main_leg/http/http_filters/envoy.filters.http.ext_proc/typed_config/grpc_service/retry_policy"},
			Without: "While the plugin restarts, requests get 503 and do not wait."},
		{ID: "errors_shown", Where: "its ext_proc filter", What: "allow_mode_override: the plugin reads workers' errors", at: []string{"main_leg/http/http_filters/envoy.filters.http.ext_proc/typed_config/allow_mode_override"},
			Without: "The plugin does not know why a worker failed."},
		{ID: "first_token", Where: "main_leg", What: "the filter baton.first_token", at: []string{"main_leg/http/http_filters/baton.first_token"},
			Without: "Envoy does not start: routes name the filter. Without those routes, too, an answer that breaks off before its first token gets no fresh attempt."},

		{ID: "sync_leg", Where: "listeners", What: "sync_leg, a socket for the plugin alone", at: []string{"sync_leg"},
			Without: "Requests that two workers serve get 503: the plugin cannot send prefill's leg."},
		{ID: "prefill_leg", Where: "listeners", What: "prefill_leg, an internal listener for mirrored legs", at: []string{"prefill_leg", "cluster/prefill_leg"},
			Without: "Requests that two workers serve get 503: nothing sends prefill's leg."},
	}
}

// ofClusters are those of the clusters.
func ofClusters() []Part {
	return []Part{
		{ID: "plugin_cluster", Where: "clusters", What: "extproc: where the plugin is", at: []string{"cluster/extproc"},
			Without: "Every request gets 503, also if the address is not the plugin's."},
		{ID: "plugin_connection", Where: "cluster extproc", What: "HTTP/2 with its limits, outlier_detection, health_checks, connect_timeout",
			at:      []string{"cluster/extproc/typed_extension_protocol_options", "cluster/extproc/outlier_detection", "cluster/extproc/health_checks", "cluster/extproc/common_lb_config", "cluster/extproc/connect_timeout"},
			Without: "Without HTTP/2 every request gets 503; without the rest a plugin that hangs holds requests for ever, and thousands of streams that end at once break its connection."},
		{ID: "limits", Where: "all of these clusters", What: "circuit_breakers", at: []string{"cluster/extproc/circuit_breakers", "cluster/main_leg/circuit_breakers", "cluster/decode/circuit_breakers", "cluster/prefill/circuit_breakers", "cluster/prefill_leg/circuit_breakers"},
			Without: "Envoy refuses requests while 1,024 are in flight."},
		{ID: "main_cluster", Where: "clusters", What: "main_leg: the way to the internal listener", at: []string{"cluster/main_leg"},
			Without: "Envoy does not start: a route names a cluster that is not there."},
		{ID: "workers", Where: "clusters", What: "decode and prefill: they send to the address in a header of the plugin", at: []string{"cluster/decode", "cluster/prefill"},
			Without: "Envoy does not start: a route names a cluster that is not there."},
		{ID: "worker_filters", Where: "clusters decode and prefill", What: "http_filters that remove headers of requests and answers",
			at: []string{"cluster/decode/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/http_filters", "cluster/prefill/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/http_filters",
				"cluster/decode/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/http_filters/envoy.filters.http.header_mutation", "cluster/prefill/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/http_filters/envoy.filters.http.header_mutation"},
			Without: "Workers see internal headers of Envoy and the plugin, and can send headers that only the plugin may send."},
		{ID: "worker_idle", Where: "clusters decode and prefill", What: "idle_timeout: 4s",
			at:      []string{"cluster/decode/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/common_http_protocol_options", "cluster/prefill/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/common_http_protocol_options"},
			Without: "An engine closes an idle connection (vLLM and SGLang: after 5 s) just when Envoy sends a request on it, and the request fails."},
		{ID: "worker_tls", Where: "clusters decode and prefill", What: "TLS to workers, since you ask for it", at: []string{"cluster/decode/transport_socket", "cluster/prefill/transport_socket"},
			Without: "Envoy speaks plain HTTP to workers that expect TLS: 503."},
	}
}

// Owner returns the part that has a place, or nil.
func Owner(parts []Part, place string) *Part {
	var best *Part
	longest := -1
	for i := range parts {
		for _, at := range parts[i].at {
			if len(at) > longest && strings.HasPrefix(place, at) && (len(place) == len(at) || place[len(at)] == '/' || at[len(at)-1] == '_') {
				best, longest = &parts[i], len(at)
			}
		}
	}
	return best
}
