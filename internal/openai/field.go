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
	DoRemotePrefill // a member of kv_transfer_params
	DoRemoteDecode  // the same

	// MaxNewTokens and MinNewTokens are members of sampling_params, by which /generate
	// sets what max_tokens and min_tokens set elsewhere.
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
	DoRemotePrefill: "do_remote_prefill", DoRemoteDecode: "do_remote_decode",
	VLLMXArgs: "vllm_xargs", MaxNewTokens: "sampling_params.max_new_tokens", MinNewTokens: "sampling_params.min_new_tokens",
}

// String returns the key as written in a body, or "" for NoField.
func (f Field) String() string {
	if f >= numFields {
		return ""
	}
	return fieldNames[f]
}

// routerOnly reports whether only a router may set the field
// (docs/behaviour.md#router-only).
func (f Field) routerOnly() bool { return f >= BootstrapHost && f <= DoRemoteDecode }

// maxKeyLen is the length of the longest key that lookup knows.
const maxKeyLen = len("continue_final_message")

// lookup returns the field with the unescaped key, NoField if there is none. The switch
// compiles to a search by length and text, and does not allocate.
func lookup(key []byte) Field {
	switch string(key) {
	case "model":
		return Model
	case "messages":
		return Messages
	case "prompt":
		return PromptText
	case "text":
		return Text
	case "input_ids":
		return InputIDs
	case "input_embeds":
		return InputEmbeds
	case "tools":
		return Tools
	case "tool_choice":
		return ToolChoice
	case "chat_template_kwargs":
		return ChatTemplateKwargs
	case "reasoning_effort":
		return ReasoningEffort
	case "continue_final_message":
		return ContinueFinalMessage
	case "add_generation_prompt":
		return AddGenerationPrompt
	case "stream":
		return Stream
	case "stream_options":
		return StreamOptions
	case "max_tokens":
		return MaxTokens
	case "max_completion_tokens":
		return MaxCompletionTokens
	case "min_tokens":
		return MinTokens
	case "min_completion_tokens":
		return MinCompletionTokens
	case "prompt_token_ids":
		return PromptTokenIDs
	case "prompt_token_ids_b64":
		return PromptTokenIDsB64
	case "n":
		return N
	case "cache_salt":
		return CacheSalt
	case "extra_key":
		return ExtraKey
	case "lora_path":
		return LoRAPath
	case "sampling_params":
		return SamplingParams
	case "nvext":
		return NVExt
	case "rid":
		return RequestID
	}
	return lookupRest(key)
}

func lookupRest(key []byte) Field {
	switch string(key) {
	case "chat_template":
		return ChatTemplate
	case "documents":
		return Documents
	case "add_special_tokens":
		return AddSpecialTokens
	case "mm_processor_kwargs":
		return MMProcessorKwargs
	case "media_io_kwargs":
		return MediaIOKwargs
	case "truncate_prompt_tokens":
		return TruncatePromptTokens
	case "truncation_side":
		return TruncationSide
	case "vllm_xargs":
		return VLLMXArgs
	case "prompt_embeds":
		return PromptEmbeds
	}
	return lookupRouterOnly(key)
}

func lookupRouterOnly(key []byte) Field {
	switch string(key) {
	case "bootstrap_host":
		return BootstrapHost
	case "bootstrap_port":
		return BootstrapPort
	case "bootstrap_room":
		return BootstrapRoom
	case "bootstrap_pair_key":
		return BootstrapPairKey
	case "kv_transfer_params":
		return KVTransferParams
	case "disaggregated_params":
		return DisaggregatedParams
	case "routed_dp_rank":
		return RoutedDPRank
	case "disagg_prefill_dp_rank":
		return DisaggPrefillDPRank
	case "data_parallel_rank":
		return DataParallelRank
	case "ec_transfer_params":
		return ECTransferParams
	case "decode_tp_size":
		return DecodeTPSize
	case "do_remote_prefill":
		return DoRemotePrefill
	case "do_remote_decode":
		return DoRemoteDecode
	}
	return NoField
}
