package openai

import (
	"slices"
	"strings"
)

// Control reports whether a path may reach an engine's own control: paths that make the
// engine sleep, change its weights or its role, drop its cache, load adapters, profile
// it, or show its configuration; or Envoy's admin. Such a request is never passed on. Any
// segment counts, since an engine may serve its paths below a prefix. A path that an engine
// might read differently counts, too. internal/extproc/testdata/routes lists the engines'
// paths.
func Control(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	if !strings.HasPrefix(path, "/") || path == "/" || strings.ContainsAny(path, "%\\;#") || strings.Contains(path, "//") {
		return true
	}
	for s := range strings.SplitSeq(strings.ToLower(path), "/") {
		s = strings.ReplaceAll(s, "-", "_")
		if s == "." || s == ".." || strings.HasPrefix(s, "_") && s != "_" || slices.Contains(controlNames[:], s) {
			return true
		}
		if slices.ContainsFunc(controlVerbs[:], func(v string) bool { return strings.HasPrefix(s, v) }) {
			return true
		}
	}
	return false
}

// controlNames are segments of the control paths of vLLM, SGLang and TensorRT-LLM, of the
// simulated engines, and of Envoy's admin.
var controlNames = [...]string{
	// vLLM
	"sleep", "wake_up", "collective_rpc", "server_info", "pause", "resume", "is_paused", "is_sleeping",
	"kv_event_sources", "load", "rpc", "tokenizer_info", "fault_tolerance",
	// SGLang
	"freeze_gc", "slow_down", "post_process_weights", "continue_generation", "pause_generation",
	"loads", "hicache", "dumper", "open_session", "close_session", "engine_metrics", "remote_instance_transfer_engine_info",
	"generate_from_file", "configure_logging", "pd_role_switch", "gate", "send", "stats",
	// TensorRT-LLM
	"kv_cache_events", "perf_metrics", "cluster_info", "steady_clock_offset",
	// Envoy's admin, as its /help lists it, but for /ready: a worker may have been listed
	// with its address
	"allocprofiler", "certs", "clusters", "config_dump", "contention", "cpuprofiler", "drain_listeners", "healthcheck",
	"heap_dump", "heapprofiler", "help", "hot_restart_version", "listeners", "logging", "memory", "peak_heap_dump",
	"quitquitquit", "reopen_logs", "runtime", "runtime_modify",
	// all of them, what they are built on, and the simulators
	"metrics", "prometheus", "docs", "redoc", "openapi.json", "static", "debug", "admin", "sim", "weight", "weights",
}

// controlVerbs are beginnings of such segments; segments that later versions add begin
// so, too.
var controlVerbs = [...]string{
	"abort_request", "add_", "attach_", "begin_", "clear_", "destroy_", "detach_", "dump_", "end_", "finish_weight", "flush_",
	"get_", "init_", "is_scaling", "list_", "load_lora", "merge_", "register_", "release_", "remove_", "reset_", "resume_",
	"scale_", "scheduler_", "send_", "set_", "shutdown_", "start_", "stop_", "unload_", "unmerge_", "unregister_", "update_",
	"weight_", "weights_",
}
