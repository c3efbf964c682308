// Package engine reads over HTTP what a serving engine tells of itself: which
// role it has, what it serves, how its KV cache is cut, whether it is well and
// how many requests it holds.
//
// # What is read
//
//	            SGLang                                   vLLM
//	role        /server_info disaggregation_mode         not told
//	models      /server_info served_model_name, else     /v1/models
//	            model_path; and /v1/models
//	ranks       /server_info dp_size                     /metrics: engines that
//	                                                     cache_config_info names
//	block size  /server_info page_size                   /metrics cache_config_info
//	capacity    /server_info max_total_num_tokens        /metrics cache_config_info
//	bootstrap   /server_info host,                       not told
//	            disaggregation_bootstrap_port
//	KV events   /server_info kv_events                   not told
//	the life    /metrics process_start_time_seconds,     /metrics process_start_time_seconds
//	            /server_info random_seed
//	in flight   /v1/loads, else /metrics                 /metrics
//
// /get_server_info stands in for /server_info, which older engines lack. Fields
// may be absent or null, in which case they are zero in [Facts]; a field of the
// wrong type is an error that names it. Only /server_info (SGLang), or
// /version and /v1/models (vLLM), must be there. Another page that is missing
// leaves unknown what it would tell; one that is there and fails is named in
// [Facts].Unread, and [Facts.Keeping] takes what it told before.
//
// # Contract
//
// [Client] methods are safe for concurrent use and return when their context
// ends. Each answer is bounded in size, each request in time. [Client.Lost]
// tells when the connection that health is asked over was closed by the other
// side: a process that dies closes it at once, long before the next question.
//
// What this package does not do: it does not decide what becomes of a worker,
// retries nothing and logs nothing.
package engine
