"""Makes tiny models of random weights, below the folder that is named first.

tiny      two layers of Qwen2, a tokenizer of some 4,000 tokens, a chat template
qwen3     two layers of Qwen3 with its published tokenizer and chat template, from the
          folder that is named second
sliding   four layers of Gemma 3, of which three look at the last 64 tokens only
llava     LLaVA: two layers of CLIP's vision tower before two layers of Llama, with tiny's
          tokenizer; a picture is 100 tokens
adapter   a LoRA adapter for tiny

What they answer is noise; how long it is, and what the engines say of it, is not.
"""

import copy
import json
import os
import pathlib
import sys

out, qwen3_tokenizer = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
root = pathlib.Path(__file__).resolve().parents[3]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The same where a message's content may be parts, in the order in which they are given.
PARTS = TEMPLATE.replace(
    "{{ m['content'] }}",
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}",
)
LENGTH = 8192
HIDDEN, HEADS, KV_HEADS, HEAD = 128, 4, 2, 32


def small_tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    texts = sorted(str(p) for p in [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("pkg/**/*.go")])
    trainer = trainers.BpeTrainer(
        vocab_size=4093,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train(texts, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=LENGTH,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def sizes(tokenizer, vocab, layers):
    return dict(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=LENGTH,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
    )


def save(name, model, tokenizer):
    torch.manual_seed(0)
    model = model.to(torch.bfloat16)
    model.save_pretrained(out / name)
    tokenizer.save_pretrained(out / name)
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens")


def adapter(name, rank=4, layers=2):
    torch.manual_seed(1)
    weights = {}
    for layer in range(layers):
        for part, width in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{key}.lora_A.weight"] = torch.randn(rank, HIDDEN)
            weights[f"{key}.lora_B.weight"] = torch.randn(width, rank)
    os.makedirs(out / name, exist_ok=True)
    save_file(weights, out / name / "adapter_model.safetensors")
    (out / name / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": rank, "lora_alpha": 2 * rank,
        "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj", "v_proj"], "inference_mode": True,
    }))
    print(f"{name}: rank {rank}")


def llava(name, tokenizer, side=80, patch=8):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.chat_template = PARTS
    text = sizes(tokenizer, 4096, 2) | {"tie_word_embeddings": False}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
            projection_dim=HIDDEN, image_size=side, patch_size=patch,
        ),
        text_config=transformers.LlamaConfig(**text),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=(side // patch) ** 2,
        tie_word_embeddings=False,
    )
    save(name, transformers.LlavaForConditionalGeneration(config), tokenizer)
    transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size={"height": side, "width": side}),
        tokenizer, patch_size=patch, vision_feature_select_strategy=config.vision_feature_select_strategy,
        num_additional_image_tokens=1, image_token="<image>", chat_template=PARTS,
    ).save_pretrained(out / name)
    # vLLM knows a vision tower's weights by the names that published models have.
    file, was, now = out / name / "model.safetensors", "vision_tower.", "vision_tower.vision_model."
    weights = load_file(file)
    save_file({k if now in k else k.replace(was, now): v for k, v in weights.items()}, file, {"format": "pt"})


small = small_tokenizer()
save("tiny", transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes(small, 4096, 2))), small)
published = transformers.PreTrainedTokenizerFast.from_pretrained(str(qwen3_tokenizer))
save("qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes(published, 151_936, 2))), published)
gemma = transformers.Gemma3TextConfig(
    **sizes(small, 4096, 4), sliding_window=64,
    layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
)
save("sliding", transformers.Gemma3ForCausalLM(gemma), small)
llava("llava", small)
adapter("adapter")
