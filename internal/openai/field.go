package openai

// Field is a member of a request body that this package knows, at the top level unless it
// says otherwise.
type Field uint8

// The fields. Only a router may set those from BootstrapHost to DoRemoteDecode.
const (
	NoField Field = iota
	Model
	Messages
	PromptText // "prompt"
	Text
	InputIDs
	InputEmbeds
	Tools
	ToolChoice
	ChatTemplateKwargs
	ReasoningEffort
	ContinueFinalMessage
	AddGenerationPrompt
	ChatTemplate
	Documents
	AddSpecialTokens
	MMProcessorKwargs
	MediaIOKwargs
	TruncatePromptTokens
	TruncationSide
	Stream
	StreamOptions
	MaxTokens
	MaxCompletionTokens
	MinTokens
	MinCompletionTokens
	PromptTokenIDs    // in TensorRT-LLM's chat: the ids in place of the messages
	PromptTokenIDsB64 // the same, packed
	N
	PromptEmbeds
	CacheSalt
	ExtraKey
	LoRAPath
	SamplingParams
	NVExt
	RequestID // "rid"
	VLLMXArgs
	Input              // of /v1/responses: a text, or items
	Instructions       // of the same: what comes before the input
	System             // of /v1/messages: the same
	TokenIDs           // of /inference/v1/generate
	MaxOutputTokens    // of /v1/responses, in place of max_tokens
	Store              // of the same: whether the engine keeps the response
	Background         // of the same
	PreviousResponseID // of the same: a response that an engine has kept
	ResponseID         // "request_id", which becomes the id of a response
	Stop
	StopTokenIDs
	IgnoreEOS

	BootstrapHost
	BootstrapPort
	BootstrapRoom
	BootstrapPairKey
	KVTransferParams
	DisaggregatedParams
	RoutedDPRank
	DisaggPrefillDPRank
	DataParallelRank
	ECTransferParams
	DecodeTPSize
	KVHints // these five are set by parts of SGLang itself, and name addresses and states of it
	EncoderURLs
	HTTPWorkerIPC
	NeedWaitForMMInputs
	NumItemsAssigned
	DoRemotePrefill // a member of kv_transfer_params
	DoRemoteDecode  // the same

	// MaxNewTokens and MinNewTokens are members of sampling_params, by which /generate
	// sets what max_tokens and min_tokens set elsewhere. On /inference/v1/generate they have
	// the names that they have elsewhere.
	MaxNewTokens
	MinNewTokens

	numFields
)

var fieldNames = [numFields]string{
	Model: "model", Messages: "messages", PromptText: "prompt", Text: "text",
	InputIDs: "input_ids", InputEmbeds: "input_embeds", Tools: "tools",
	ToolChoice: "tool_choice", ChatTemplateKwargs: "chat_template_kwargs",
	ReasoningEffort: "reasoning_effort", ContinueFinalMessage: "continue_final_message",
	AddGenerationPrompt: "add_generation_prompt", ChatTemplate: "chat_template",
	Documents: "documents", AddSpecialTokens: "add_special_tokens",
	MMProcessorKwargs: "mm_processor_kwargs", MediaIOKwargs: "media_io_kwargs",
	TruncatePromptTokens: "truncate_prompt_tokens", TruncationSide: "truncation_side", Stream: "stream",
	StreamOptions: "stream_options", MaxTokens: "max_tokens",
	MaxCompletionTokens: "max_completion_tokens", MinTokens: "min_tokens", N: "n",
	MinCompletionTokens: "min_completion_tokens", PromptTokenIDs: "prompt_token_ids",
	PromptTokenIDsB64: "prompt_token_ids_b64", PromptEmbeds: "prompt_embeds", CacheSalt: "cache_salt", ExtraKey: "extra_key",
	LoRAPath: "lora_path", SamplingParams: "sampling_params", NVExt: "nvext",
	RequestID: "rid", BootstrapHost: "bootstrap_host", BootstrapPort: "bootstrap_port",
	BootstrapRoom: "bootstrap_room", BootstrapPairKey: "bootstrap_pair_key",
	KVTransferParams: "kv_transfer_params", DisaggregatedParams: "disaggregated_params",
	RoutedDPRank: "routed_dp_rank", DisaggPrefillDPRank: "disagg_prefill_dp_rank",
	DataParallelRank: "data_parallel_rank", ECTransferParams: "ec_transfer_params", DecodeTPSize: "decode_tp_size",
	KVHints: "kv_hints", EncoderURLs: "encoder_urls", HTTPWorkerIPC: "http_worker_ipc", NeedWaitForMMInputs: "need_wait_for_mm_inputs",
	NumItemsAssigned: "num_items_assigned",
	DoRemotePrefill:  "do_remote_prefill", DoRemoteDecode: "do_remote_decode",
	VLLMXArgs: "vllm_xargs", Input: "input", Instructions: "instructions", System: "system", TokenIDs: "token_ids",
	MaxOutputTokens: "max_output_tokens", Store: "store", Background: "background", PreviousResponseID: "previous_response_id",
	ResponseID: "request_id", Stop: "stop", StopTokenIDs: "stop_token_ids", IgnoreEOS: "ignore_eos",
	MaxNewTokens: "sampling_params.max_new_tokens", MinNewTokens: "sampling_params.min_new_tokens",
}

// String returns the key as written in a body, or "" for NoField.
func (f Field) String() string { return fieldNames[f] }

// routerOnly reports whether only a router may set the field
// (docs/behaviour.md#router-only).
func (f Field) routerOnly() bool { return f >= BootstrapHost && f <= DoRemoteDecode }

// maxKeyLen is the length of the longest key that lookup knows.
const maxKeyLen = len("need_wait_for_mm_inputs")

// fieldsOf are the fields by the length of their keys. Those of sampling_params are not among
// them: their names are longer.
var fieldsOf = func() (by [maxKeyLen + 1][]Field) {
	for f := NoField + 1; f < numFields; f++ {
		if n := len(fieldNames[f]); n <= maxKeyLen {
			by[n] = append(by[n], f)
		}
	}
	return by
}()

// lookup returns the field with the unescaped key, NoField if there is none. It does not
// allocate.
func lookup(key []byte) Field {
	if len(key) > maxKeyLen {
		return NoField
	}
	for _, f := range fieldsOf[len(key)] {
		if fieldNames[f] == string(key) {
			return f
		}
	}
	return NoField
}
