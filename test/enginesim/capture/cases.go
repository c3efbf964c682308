package capture

import (
	"strconv"
	"strings"
)

const (
	completions = "/v1/completions"
	chat        = "/v1/chat/completions"
)

// one is a case that sends requests one after another.
func one(name string, rs ...Request) Case {
	c := Case{Name: name}
	for _, r := range rs {
		c.Steps = append(c.Steps, []Request{r})
	}
	return c
}

func loose(c Case) Case {
	c.Loose = true
	return c
}

func uneven(c Case) Case {
	c.Uneven = true
	return c
}

func post(path, body string) Request { return Request{Path: path, Body: body} }

// messages begins a chat of one message.
const messages = `{"model":"tiny","messages":[{"role":"user","content":"count to ten"}],"temperature":0,"ignore_eos":true,`

// drawn makes the tokens of answers random: at temperature 0, engines serve no two choices.
func drawn(body string) string { return strings.Replace(body, `"temperature":0`, `"temperature":1`, 1) }

// common are the cases for every aggregated engine. Each prompt has its own seed, unless
// the case is about a repeated prompt.
func common() []Case {
	return []Case{
		one("completion of ids", post(completions, idsBody(1, 70, `"max_tokens":4,"ignore_eos":true`))),
		one("the same again: whole blocks are cached", post(completions, idsBody(1, 70, `"max_tokens":4,"ignore_eos":true`))),
		one("a longer one of the same beginning", post(completions, idsBody(1, 130, `"max_tokens":4,"ignore_eos":true`))),
		one("an answer fills a block", post(completions, idsBody(2, 60, `"max_tokens":8,"ignore_eos":true`))),
		one("streamed", post(completions, idsBody(3, 70, `"max_tokens":4,"ignore_eos":true,"stream":true`))),
		one("streamed with usage", post(completions, idsBody(4, 70,
			`"max_tokens":4,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}`))),
		one("shorter than a block", post(completions, idsBody(5, 7, `"max_tokens":2,"ignore_eos":true`))),
		one("two choices", post(completions, drawn(idsBody(6, 70, `"max_tokens":2,"ignore_eos":true,"n":2`)))),
		uneven(one("a list of prompts", post(completions, `{"model":"tiny","prompt":[$IDS(7,40),$IDS(8,70)],"temperature":0,"max_tokens":2,"ignore_eos":true}`))),
		loose(one("chat", post(chat, messages+`"max_tokens":4}`))),
		loose(one("chat, streamed", post(chat, messages+`"max_tokens":4,"stream":true}`))),
		loose(one("chat, streamed with usage", post(chat, messages+`"max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}`))),
		loose(one("chat, two choices streamed", post(chat, drawn(messages)+`"max_tokens":1,"n":2,"stream":true}`))),
		loose(one("completion of a text", post(completions, `{"model":"tiny","prompt":"count to ten","temperature":0,"max_tokens":2,"ignore_eos":true}`))),
		one("unknown model", post(completions, `{"model":"nope","prompt":$IDS(1,4),"max_tokens":1}`)),
		one("no prompt", post(completions, `{"model":"tiny","max_tokens":1}`)),
		one("no messages", post(chat, `{"model":"tiny","max_tokens":1}`)),
		one("not JSON", post(completions, `{"model":"tiny",`)),
		one("no token asked for", post(completions, idsBody(9, 4, `"max_tokens":0`))),
		one("too long", post(completions, idsBody(10, 4096, `"max_tokens":1`))),
		one("unknown path", post("/v1/nope", `{}`)),
		one("wrong method", Request{Path: completions}),
		one("health", Request{Path: "/health"}),
		one("models", Request{Path: "/v1/models"}),
		loose(one("tokenize messages", post("/tokenize", `{"model":"tiny","messages":[{"role":"user","content":"count to ten"}]}`))),
		loose(one("tokenize a text", post("/tokenize", `{"model":"tiny","prompt":"count to ten"}`))),
		one("tokenize nothing", post("/tokenize", `{"model":"tiny"}`)),
		one("metrics", Request{Path: "/metrics"}),
	}
}

func vllmCases() []Case {
	ranked := func(rank string) Request {
		r := post(completions, idsBody(12, 40, `"max_tokens":1`))
		r.Headers = map[string]string{"X-Data-Parallel-Rank": rank}
		return r
	}
	cut := func(seed, n int, more string) Request {
		return post(completions, idsBody(seed, n, `"max_tokens":2,"ignore_eos":true`+more))
	}
	cases := append(common(),
		one("stream options without a stream", post(completions, idsBody(11, 4, `"max_tokens":1,"stream_options":{"include_usage":true}`))),
		one("at least more than at most", post(completions, idsBody(11, 4, `"max_tokens":1,"min_tokens":3`))),
		one("a rank that it has", ranked("0")),
		one("a rank that it has not", ranked("7")),
		one("a rank that is no number", ranked("x")),
		one("a list of prompts to tokenize", post("/tokenize", `{"model":"tiny","prompt":["count","to ten"]}`)),
		one("a prompt is cut to its first tokens", cut(13, 200, `,"truncate_prompt_tokens":70,"truncation_side":"right"`), cut(13, 70, "")),
		one("a prompt is cut to its last tokens", cut(14, 200, `,"truncate_prompt_tokens":70`), cut(14, 70, "")),
		one("a prompt is cut to the model's whole length", cut(17, 4200, `,"truncate_prompt_tokens":4096`)),
		one("a prompt is cut to more than that", cut(17, 4, `,"truncate_prompt_tokens":4097`)),
		one("a prompt is cut to nothing", cut(17, 4, `,"truncate_prompt_tokens":0`)),
		one("version", Request{Path: "/version"}),
		one("load", Request{Path: "/load"}),
		one("sources of KV events", Request{Path: "/kv_event_sources"}),
	)
	reset := Request{Method: "POST", Path: "/reset_prefix_cache"}
	return append(append(cases, emptied(reset)...),
		one("the cache is emptied for a long prompt", reset),
		// Each of these prompts is short enough, beyond what is cached, to be computed in one step.
		one("a prompt is cut to what fits", cut(15, 2000, ""), cut(15, 3900, ""), cut(15, 4200, `,"truncate_prompt_tokens":-1,"truncation_side":"right"`)),
		one("an answer is cut to what is left", cut(15, 4095, "")),
	)
}

// Blocks is how many blocks the cache of a captured engine has.
const Blocks = 256

// emptied are cases about an emptied cache. The cases about a full cache follow, since
// the content of the cache is then known.
func emptied(reset Request) []Case {
	// A prompt shorter than what an engine computes in one step.
	long := func(seed int) Request { return post(completions, idsBody(seed, 2000, `"max_tokens":1`)) }
	return []Case{
		one("the cache is emptied", post(completions, idsBody(60, 70, `"max_tokens":1`)), reset),
		one("after it nothing is cached", post(completions, idsBody(60, 70, `"max_tokens":1`))),
		one("the cache is emptied again", reset),
		one("blocks are evicted", long(61), long(62), long(63), long(64), long(65), post(completions, idsBody(61, 130, `"max_tokens":1`))),
	}
}

// The prefill and decode legs of vLLM, as Baton sends them.
func vllmPrefill(seed, n int, more string) Request {
	return post(completions, idsBody(seed, n, `"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,`+
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`+more))
}

func vllmDecode(seed, n int, handoff, more string) Request {
	r := post(completions, idsBody(seed, n, `"max_tokens":4,"ignore_eos":true,"kv_transfer_params":`+handoff+more))
	r.To = Second
	return r
}

func vllmApartCases() []Case {
	end := func(seed int) Request { return vllmDecode(seed, 70, "$HANDOFF", "") }
	return []Case{
		one("a pair", vllmPrefill(20, 70, ""), vllmDecode(20, 70, "$HANDOFF", "")),
		one("the same again: both have it cached", vllmPrefill(20, 70, ""), vllmDecode(20, 70, "$HANDOFF", "")),
		one("a longer one of the same beginning", vllmPrefill(20, 130, ""), vllmDecode(20, 130, "$HANDOFF", "")),
		one("decode streamed", vllmPrefill(21, 70, ""), vllmDecode(21, 70, "$HANDOFF", `,"stream":true,"stream_options":{"include_usage":true}`)),
		one("shorter than a block", vllmPrefill(22, 7, ""), vllmDecode(22, 7, "$HANDOFF", "")),
		one("prefill streamed", vllmPrefill(23, 70, `,"stream":true`)),
		one("prefill ends by itself", vllmPrefill(24, 70, `,"logit_bias":{"2":100}`), end(24)),
		one("decode without a hand-off", vllmDecode(25, 70, "null", "")),
		one("decode with an empty hand-off", vllmDecode(26, 70, "{}", "")),
		one("a hand-off used twice", vllmPrefill(27, 70, ""), vllmDecode(27, 70, "$HANDOFF", ""), vllmDecode(27, 70, "$HANDOFF", "")),
		one("nobody at the side channel", vllmPrefill(28, 70, ""), vllmDecode(28, 70, "$SPOILT", "")),
		one("nobody at the side channel, streamed", vllmPrefill(29, 70, ""), vllmDecode(29, 70, "$SPOILT", `,"stream":true`)),
		one("prefill refuses", vllmPrefill(30, 4096, "")),
		one("prefill's metrics", Request{Path: "/metrics"}),
		one("decode's metrics", Request{To: Second, Path: "/metrics"}),
	}
}

// server asks an SGLang server for the facts that matter to routing.
func server(name string, to Leg) Case {
	c := one(name, Request{To: to, Path: "/server_info"})
	c.Only = []string{
		"model_path", "served_model_name", "version", "host", "port", "disaggregation_mode", "disaggregation_bootstrap_port",
		"disaggregation_transfer_backend", "dp_size", "tp_size", "page_size", "max_total_num_tokens", "max_running_requests",
		"random_seed", "load_balance_method", "speculative_algorithm", "kv_events",
	}
	return c
}

func sglangCases() []Case {
	generate := func(seed int, more string) Request {
		return post("/generate", strings.NewReplacer("SEED", strconv.Itoa(seed), "MORE", more).Replace(
			`{"input_ids":$IDS(SEED,70),"sampling_params":{"temperature":0,"max_new_tokens":4,"ignore_eos":true}MORE}`))
	}
	cases := append(common(),
		one("its own way", generate(40, "")),
		one("its own way, streamed", generate(41, `,"stream":true`)),
		server("what the server is", First),
		one("loads", Request{Path: "/v1/loads"}),
	)
	return append(cases, emptied(Request{Method: "POST", Path: "/flush_cache"})...)
}

func sglangApartCases() []Case {
	both := func(name string, seed, n int, more string) Case {
		return Case{Name: name, Steps: [][]Request{pair(idsBody(seed, n, more))}}
	}
	without := post(completions, idsBody(50, 40, `"max_tokens":1`))
	second := without
	second.To = Second
	return []Case{
		both("a pair", 51, 70, `"max_tokens":4,"ignore_eos":true`),
		both("the same again", 51, 70, `"max_tokens":4,"ignore_eos":true`),
		both("streamed", 52, 70, `"max_tokens":4,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}`),
		both("shorter than a page", 53, 7, `"max_tokens":2,"ignore_eos":true`),
		one("prefill without a room", without),
		one("decode without a room", second),
		one("a room that is no number", post(completions, idsBody(55, 40, `"max_tokens":1,"bootstrap_host":"$HOST","bootstrap_port":$PORT,"bootstrap_room":"x"`))),
		one("prefill's metrics", Request{Path: "/metrics"}),
		one("decode's metrics", Request{To: Second, Path: "/metrics"}),
		server("what prefill is", First),
		server("what decode is", Second),
	}
}
