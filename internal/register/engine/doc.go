// Package engine reads over HTTP the facts that a serving engine gives of itself: its
// role, what it serves, how its KV cache is cut, whether it is healthy, and how many
// requests it holds.
//
// # What is read
//
//	            SGLang                         vLLM                    TensorRT-LLM
//	role        /server_info                   not told                not told
//	            disaggregation_mode
//	models      /server_info                   /v1/models              /v1/models
//	            served_model_name, else
//	            model_path; and /v1/models
//	ranks       /server_info dp_size           /metrics: engines that  not told
//	                                           cache_config_info names
//	block size  /server_info page_size         /metrics                /server_info tokens_per_block,
//	                                           cache_config_info       of newer versions
//	capacity    /server_info                   /metrics                not told
//	            max_total_num_tokens           cache_config_info
//	length      /v1/models max_model_len       the same                the same, if told
//	bootstrap   /server_info host,             not told                has none
//	            disaggregation_bootstrap_port
//	KV events   /server_info kv_events         /kv_event_sources       not told
//	running     /v1/loads                      /metrics                not told
//	the life    /metrics                       /metrics                not told
//	            process_start_time_seconds,    process_start_time_seconds
//	            /server_info random_seed
//	in flight   /v1/loads, else /metrics       /metrics                not told
//
// /get_server_info is asked if /server_info is missing, as in older engines. Fields may be
// absent or null, and are then zero in [Facts]; a field of the wrong type is an error that names
// the field. Only /server_info (SGLang), or /version and /v1/models (vLLM, TensorRT-LLM),
// must be there. If another page is missing, its facts are not known. If one is there and
// fails, [Facts].Unread names it, and [Facts.Keeping] takes its facts from the last
// reading (TensorRT-LLM's /server_info fails the whole reading).
//
// Auto recognizes TensorRT-LLM by disaggregated_params in its /server_info. It never
// takes an engine for vLLM whose models are owned by tensorrt_llm.
//
// # Contract
//
// [Client] methods are safe for concurrent use and return when their context ends. Each
// answer is bounded in size, each request in time. [Client.Lost] receives a message when
// the engine has closed the connection for health: a process that dies closes it at once,
// long before the next question.
//
// What this package does not do: it does not decide what happens to a worker, retries
// nothing and logs nothing.
package engine
