"""The tiny decoders that embed: Qwen3 causal and seeing both ways, Gemma 3 seeing both ways."""

import embed_tokenizers
from embed_case import CONFIG, MODULES, NO_NORMALIZE, POOLING, POOLING_KEYS, REMOVED, Case, pooling


def qwen_config(vocab, **changes):
    config = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": vocab - 2, "eos_token_id": vocab - 2,
        "head_dim": 10, "hidden_act": "silu", "hidden_size": 44, "initializer_range": 0.02, "intermediate_size": 57,
        "max_window_layers": 2, "num_attention_heads": 6, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "rms_norm_eps": 3e-3, "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None,
        "vocab_size": vocab,
    }
    return config | changes


QWEN_SPECIALS = ["<|endoftext|>", "<|im_end|>"]
QWEN_TOKENIZER = {
    "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False,
    "errors": "replace", "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
    "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
}


def qwen3_embedding():
    """Qwen3-Embedding: causal, last token, which the tokenizer appends and which is not its `eos_token`."""
    tokenizer = embed_tokenizers.qwen(QWEN_SPECIALS, 60, end="<|endoftext|>")
    return Case(
        seed=305,
        config=qwen_config(
            embed_tokenizers.size(tokenizer), architectures=["Qwen3ForCausalLM"], model_type="qwen3", rope_theta=600.0,
            rope_scaling=None, max_position_embeddings=72, torch_dtype="bfloat16", transformers_version="4.51.3",
            use_cache=True, hidden_size=38, intermediate_size=61, num_hidden_layers=3),
        tokenizer=tokenizer,
        tokenizer_config=QWEN_TOKENIZER | {"eos_token": "<|im_end|>"},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(38, "lasttoken", keys=POOLING_KEYS, include_prompt=True)},
        sentence={
            "prompts": {
                "query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
                "document": "",
            },
            "default_prompt_name": None, "similarity_fn_name": "cosine",
        },
        bert=None,
        dtype="bfloat16",
        mutations={
            "rms_norm_eps": {CONFIG: {"rms_norm_eps": 1e-6}},
            "theta": {CONFIG: {"rope_theta": 800.0}},
            "causal": {CONFIG: {"is_causal": False}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}},
            "normalize": NO_NORMALIZE,
            "length": {CONFIG: {"max_position_embeddings": 70}},
        },
        dimensions=(32, 9),
        prompts=("query", "document"),
        max_len=72,
        causal=True,
    )


def pplx_config(vocab, kind, **changes):
    return qwen_config(
        vocab, architectures=["PPLXQwen3Model"],
        auto_map={"AutoConfig": "configuration.PPLXQwen3Config", "AutoModel": f"modeling.{kind}"}, dtype="float32",
        layer_types=["full_attention"] * 2, max_position_embeddings=120, model_type="bidirectional_pplx_qwen3",
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"}, transformers_version="4.57.1",
        use_bidirectional_attention=True, use_cache=False) | changes


# The real folders bring their own Python, of which nothing runs here: a Qwen3 that is not causal is the same.
PPLX_REFERENCE = {CONFIG: {"model_type": "qwen3", "auto_map": REMOVED, "is_causal": False}}
PPLX_TOKENIZER = QWEN_TOKENIZER | {"eos_token": "<|endoftext|>"}
PPLX_MUTATIONS = {
    "rms_norm_eps": {CONFIG: {"rms_norm_eps": 1e-6}},
    "theta": {CONFIG: {"rope_parameters": {"rope_theta": 700.0, "rope_type": "default"}}},
    "causal": {CONFIG: {"is_causal": True}},
    "length": {CONFIG: {"max_position_embeddings": 116}},
}


def qwen3_pplx():
    """pplx-embed-v1: Qwen3 that sees both ways, mean, not normalized, a quantizer of its own as the last module."""
    tokenizer = embed_tokenizers.qwen(QWEN_SPECIALS, 60)
    quantizer = {"type": "st_quantize.FlexibleQuantizer", "kwargs": ["quantization"]}
    return Case(
        seed=306,
        # 42 bits do not fill their bytes.
        config=pplx_config(
            embed_tokenizers.size(tokenizer), "PPLXQwen3Model", hidden_size=42, intermediate_size=51),
        tokenizer=tokenizer,
        tokenizer_config=PPLX_TOKENIZER | {"sep_token": "<|endoftext|>"},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("", quantizer)],
        folders={"1_Pooling": pooling(42, "mean_tokens", keys=POOLING_KEYS, include_prompt=True)},
        sentence=None,
        bert=None,
        reference=PPLX_REFERENCE | {MODULES: {"FlexibleQuantizer": REMOVED}},
        mutations=PPLX_MUTATIONS | {
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}},
        },
        dimensions=(20, 8),
        chunked=True,
        max_len=120,
        causal=False,
    )


def qwen3_pplx_context():
    """pplx-embed-context-v1: told from the plain one by `auto_map` alone; no modules.json, the chunks are its own rule."""
    tokenizer = embed_tokenizers.qwen(QWEN_SPECIALS, 40)
    return Case(
        seed=307,
        config=pplx_config(
            embed_tokenizers.size(tokenizer), "PPLXQwen3ContextualModel", hidden_size=34, num_attention_heads=4,
            num_key_value_heads=2, head_dim=12, intermediate_size=47),
        tokenizer=tokenizer,
        tokenizer_config=PPLX_TOKENIZER | {"sep_token": "<|endoftext|>"},
        modules=None,
        folders={},
        sentence=None,
        bert=None,
        prefix="model.",
        reference=PPLX_REFERENCE,
        mutations=PPLX_MUTATIONS,
        dimensions=(20, 8),
        chunked=True,
        max_len=120,
        causal=False,
    )


GEMMA_PROMPTS = {
    "query": "task: search result | query: ", "document": "title: none | text: ",
    "BitextMining": "task: search result | query: ", "Clustering": "task: clustering | query: ",
    "Classification": "task: classification | query: ", "InstructionRetrieval": "task: code retrieval | query: ",
    "MultilabelClassification": "task: classification | query: ",
    "PairClassification": "task: sentence similarity | query: ", "Reranking": "task: search result | query: ",
    "Retrieval": "task: search result | query: ", "Retrieval-query": "task: search result | query: ",
    "Retrieval-document": "title: none | text: ", "STS": "task: sentence similarity | query: ",
    "Summarization": "task: summarization | query: ",
}


def identity_dense(n_in, n_out):
    return {
        "in_features": n_in, "out_features": n_out, "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }


def embeddinggemma():
    """EmbeddingGemma: Gemma 3 that sees both ways. `sliding_window` is the whole width: half of it to each side."""
    tokenizer = embed_tokenizers.gemma(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], 60)
    sliding, full = "sliding_attention", "full_attention"
    return Case(
        seed=308,
        config={
            "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
            "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32",
            "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 14,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 36, "initializer_range": 0.02,
            "intermediate_size": 29, "layer_types": [sliding, sliding, full, sliding], "max_position_embeddings": 96,
            "model_type": "gemma3_text", "num_attention_heads": 3, "num_hidden_layers": 4, "num_key_value_heads": 1,
            "pad_token_id": 0, "query_pre_attn_scalar": 23, "rms_norm_eps": 1e-2, "rope_local_base_freq": 300.0,
            "rope_scaling": None, "rope_theta": 5000.0, "sliding_window": 10, "transformers_version": "4.57.0.dev0",
            "use_bidirectional_attention": True, "use_cache": True, "vocab_size": embed_tokenizers.size(tokenizer),
        },
        tokenizer=tokenizer,
        tokenizer_config={
            "add_bos_token": True, "add_eos_token": True, "bos_token": "<bos>", "clean_up_tokenization_spaces": False,
            "eos_token": "<eos>", "mask_token": "<mask>", "model_max_length": 2048, "pad_token": "<pad>",
            "padding_side": "right", "sp_model_kwargs": None, "spaces_between_special_tokens": False,
            "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False,
        },
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")],
        folders={
            "1_Pooling": pooling(36, "mean_tokens", keys=POOLING_KEYS, include_prompt=True),
            "2_Dense": identity_dense(36, 74), "3_Dense": identity_dense(74, 31),
        },
        sentence={
            "model_type": "SentenceTransformer",
            "__version__": {"sentence_transformers": "5.1.0", "transformers": "4.57.0.dev0", "pytorch": "2.8.0+cu128"},
            "prompts": GEMMA_PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine",
        },
        bert={"max_seq_length": 56, "do_lower_case": False},
        mutations={
            "rms_norm_eps": {CONFIG: {"rms_norm_eps": 1e-6}},
            "activation": {CONFIG: {"hidden_activation": "gelu"}},
            "window longer": {CONFIG: {"sliding_window": 12}},
            "window shorter": {CONFIG: {"sliding_window": 8}},
            "causal": {CONFIG: {"use_bidirectional_attention": False}},
            "layer order": {CONFIG: {"layer_types": [sliding, full, sliding, sliding]}},
            "scale by head_dim": {CONFIG: {"query_pre_attn_scalar": 14}},
            "local theta": {CONFIG: {"rope_local_base_freq": 5000.0}},
            "global theta": {CONFIG: {"rope_theta": 300.0}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
            "dense activation": {"2_Dense/config.json": {"activation_function": "torch.nn.modules.activation.Tanh"}},
            "normalize": NO_NORMALIZE,
            "length": {"sentence_bert_config.json": {"max_seq_length": 54}},
        },
        dimensions=(24, 13),
        prompts=("query", "document", "STS"),
        max_len=56,
        causal=False,
        reach=5,
    )


def causal_decoder(seed, model_type, kind, mode, mutations, **changes):
    """A causal decoder that embeds by one pooling, as e5-mistral and gte-Qwen2 do; the tokenizer ends each text."""
    tokenizer = embed_tokenizers.qwen(QWEN_SPECIALS, 60, end="<|endoftext|>")
    config = qwen_config(
        embed_tokenizers.size(tokenizer), architectures=[kind], model_type=model_type, rope_theta=600.0,
        rope_scaling=None, max_position_embeddings=72, torch_dtype="float32", transformers_version="4.51.3",
        use_cache=True) | changes
    config = {key: value for key, value in config.items() if value is not REMOVED}
    modes = {"lasttoken": "pooling_mode_lasttoken", "mean_tokens": "pooling_mode_mean_tokens"}
    other = next(name for name in modes if name != mode)
    return Case(
        seed=seed,
        config=config,
        tokenizer=tokenizer,
        tokenizer_config=QWEN_TOKENIZER | {"eos_token": "<|im_end|>"},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(config["hidden_size"], mode, keys=POOLING_KEYS, include_prompt=True)},
        sentence=None,
        bert=None,
        mutations={
            "rms_norm_eps": {CONFIG: {"rms_norm_eps": 1e-6}},
            "theta": {CONFIG: {"rope_theta": 800.0}},
            "pooling": {POOLING: {modes[other]: True, modes[mode]: False}},
            "normalize": NO_NORMALIZE,
            "length": {CONFIG: {"max_position_embeddings": 70}},
        } | mutations,
        dimensions=(32, 9),
        max_len=72,
        causal=True,
    )


QWEN_ONLY = {"max_window_layers": REMOVED, "use_sliding_window": REMOVED, "sliding_window": REMOVED}


def llama_embedding():
    """Llama: causal, mean."""
    return causal_decoder(
        341, "llama", "LlamaModel", "mean_tokens", {}, hidden_size=42, intermediate_size=61, mlp_bias=False,
        num_hidden_layers=3, **QWEN_ONLY)


def mistral_embedding():
    """Mistral: causal, mean; a last token would move too much where weights are rounded to fp16."""
    changes = QWEN_ONLY | {"attention_bias": REMOVED, "sliding_window": None}
    return causal_decoder(
        342, "mistral", "MistralModel", "mean_tokens", {}, hidden_size=42, intermediate_size=53, num_attention_heads=4,
        head_dim=12, **changes)


def mistral_lasttoken():
    """e5-mistral: causal, last token. tokenizer_config.json says that `<eos>` ends each text, and tokenizer.json puts
    nothing there. transformers before version 5 followed the former, as the model was trained; version 5 does not."""
    tokenizer = embed_tokenizers.gemma(["<unk>", "<bos>", "<eos>"], 60)
    ids = tokenizer["model"]["vocab"]
    ended, tokenizer["post_processor"] = tokenizer["post_processor"], embed_tokenizers.template(["<bos>"], [], ids)
    changes = QWEN_ONLY | {"attention_bias": REMOVED, "sliding_window": None}
    case = causal_decoder(
        346, "mistral", "MistralModel", "lasttoken", {}, hidden_size=58, intermediate_size=67, num_attention_heads=4,
        head_dim=12, vocab_size=embed_tokenizers.size(tokenizer), bos_token_id=1, eos_token_id=2, **changes)
    case.mutations["end"] = {"tokenizer.json": {"post_processor": tokenizer["post_processor"]}}
    case.reference = {"tokenizer.json": {"post_processor": ended}}
    case.tokenizer, case.tokenizer_config = tokenizer, {
        "add_bos_token": True, "add_eos_token": True, "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<eos>",
        "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 1000000000000000019884624838656,
        "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False,
    }
    return case


def qwen2_embedding():
    """gte-Qwen2: causal, last token, with biases."""
    return causal_decoder(
        343, "qwen2", "Qwen2Model", "lasttoken", {}, hidden_size=36, intermediate_size=47, num_attention_heads=3,
        num_key_value_heads=1, head_dim=REMOVED, attention_bias=REMOVED)


def qwen2_both_ways():
    """gte-Qwen2 as transformers 5 computes it: each token sees all others."""
    case = causal_decoder(
        352, "qwen2", "Qwen2Model", "lasttoken", {"causal": {CONFIG: {"is_causal": True}}}, hidden_size=36,
        intermediate_size=47, num_attention_heads=3, num_key_value_heads=1, head_dim=REMOVED, attention_bias=REMOVED,
        is_causal=False)
    case.causal = False
    return case


CASES = {
    "qwen3-embedding": qwen3_embedding, "qwen3-pplx": qwen3_pplx, "qwen3-pplx-context": qwen3_pplx_context,
    "embeddinggemma": embeddinggemma, "llama-embedding": llama_embedding, "mistral-embedding": mistral_embedding,
    "mistral-lasttoken": mistral_lasttoken,
    "qwen2-embedding": qwen2_embedding, "qwen2-both-ways": qwen2_both_ways,
}
