"""The tiny encoders that descend from BERT: RoBERTa, XLM-RoBERTa, DistilBERT, MPNet, and Nomic BERT in both spellings."""

import embed_tokenizers
from embed_case import CONFIG, NO_NORMALIZE, POOLING, POOLING_KEYS, REMOVED, Case, pooling
from embed_encoders import BERT_NAMES, BERT_TOKENIZER

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
NAMES = {
    "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "pad_token": "<pad>",
    "sep_token": "</s>", "unk_token": "<unk>",
}
# All that transformers can do without weights of the activation's own, but for those that are another name of one here.
ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh",
    "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu",
    "swish", "tanh",
)


def roberta_config(vocab, **changes):
    config = {
        "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 33, "initializer_range": 0.02,
        "intermediate_size": 46, "layer_norm_eps": 3e-2, "max_position_embeddings": 514, "model_type": "roberta",
        "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 1, "position_embedding_type": "absolute",
        "transformers_version": "4.10.0", "type_vocab_size": 1, "use_cache": True, "vocab_size": vocab,
    }
    return config | changes


def roberta():
    """all-distilroberta-v1: bytes, positions behind the padding token, mean; names with `roberta.`, a head that is idle."""
    tokenizer = embed_tokenizers.roberta(SPECIALS, "<mask>", 40)
    vocab = embed_tokenizers.size(tokenizer)
    return Case(
        seed=401,
        config=roberta_config(vocab, architectures=["RobertaForMaskedLM"]),
        tokenizer=tokenizer,
        tokenizer_config=NAMES | {
            "add_prefix_space": False, "errors": "replace", "model_max_length": 512, "tokenizer_class": "RobertaTokenizer",
            "trim_offsets": True,
        },
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(33, "mean_tokens")},
        sentence={"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}},
        bert={"max_seq_length": 64, "do_lower_case": False},
        prefix="roberta.",
        idle={
            "roberta.embeddings.position_ids": ((1, 514), "int64"), "lm_head.bias": ((vocab,), "float32"),
            "lm_head.dense.weight": ((33, 33), "float32"),
        },
        unused=("pooler.dense", "self.key.bias"),
        absent=("pooler.",),
        mutations={
            "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
            "activation": {CONFIG: {"hidden_act": "quick_gelu"}},
            "heads": {CONFIG: {"num_attention_heads": 1}},
            # Positions begin elsewhere.
            "padding": {CONFIG: {"pad_token_id": 0}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
            "normalize": NO_NORMALIZE,
            "shorter": {"sentence_bert_config.json": {"max_seq_length": 40}},
        },
        texts={"padding within": "the sea <pad> and the stone<pad><pad>", "mask": "the <mask> sleeps"},
        activations=ACTIVATIONS,
        max_len=64,
    )


def xlm_roberta():
    """multilingual-e5 and bge-m3: SentencePiece unigrams, bare names, first token, prompts."""
    tokenizer = embed_tokenizers.unigram(SPECIALS, "<mask>", 120)
    return Case(
        seed=402,
        config=roberta_config(
            embed_tokenizers.size(tokenizer), architectures=["XLMRobertaModel"], model_type="xlm-roberta", hidden_size=40,
            intermediate_size=51, num_attention_heads=5, layer_norm_eps=1e-2,
            classifier_dropout=None, output_past=True, torch_dtype="float32"),
        tokenizer=tokenizer,
        tokenizer_config=NAMES | {
            "clean_up_tokenization_spaces": True, "model_max_length": 80, "tokenizer_class": "PreTrainedTokenizerFast",
        },
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(40, "cls_token")},
        sentence={
            "__version__": {"sentence_transformers": "2.2.2", "transformers": "4.33.0", "pytorch": "2.1.2+cu121"},
            "prompts": {"query": "query: ", "passage": "passage: "},
        },
        bert={"max_seq_length": 80, "do_lower_case": False},
        unused=("pooler.dense", "self.key.bias"),
        mutations={
            "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
            "heads": {CONFIG: {"num_attention_heads": 4}},
            "padding": {CONFIG: {"pad_token_id": 0}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}},
            "normalize": NO_NORMALIZE,
        },
        prompts=("query", "passage"),
        texts={"padding within": "the sea <pad> and the stone"},
        max_len=80,
    )


def distilbert():
    """multi-qa-distilbert-cos: no token types, sines as positions, which the file has; a masked-LM head is idle."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 50)
    vocab = embed_tokenizers.size(tokenizer)
    return Case(
        seed=403,
        config={
            "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 36,
            "dropout": 0.1, "hidden_dim": 55, "initializer_range": 0.02, "max_position_embeddings": 512,
            "model_type": "distilbert", "n_heads": 4, "n_layers": 3, "pad_token_id": 0, "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": True, "tie_weights_": True, "torch_dtype": "float16",
            "transformers_version": "4.30.0", "vocab_size": vocab,
        },
        tokenizer=tokenizer,
        tokenizer_config=BERT_TOKENIZER | {"model_max_length": 512, "tokenizer_class": "DistilBertTokenizer"},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling")],
        folders={"1_Pooling": pooling(36, "max_tokens")},
        sentence={
            "__version__": {"sentence_transformers": "2.2.2", "transformers": "4.30.0", "pytorch": "2.0.1"},
            "prompts": {}, "default_prompt_name": None,
        },
        bert={"max_seq_length": 60, "do_lower_case": False},
        dtype="float16",
        prefix="distilbert.",
        idle={
            "vocab_transform.weight": ((36, 36), "float16"), "vocab_layer_norm.bias": ((36,), "float16"),
            "vocab_projector.bias": ((vocab,), "float16"),
        },
        unused=("k_lin.bias",),
        mutations={
            "activation": {CONFIG: {"activation": "gelu_new"}},
            "heads": {CONFIG: {"n_heads": 3}},
            "pooling": {POOLING: {"pooling_mode_max_tokens": False, "pooling_mode_cls_token": True}},
        },
        max_len=60,
    )


def mpnet():
    """all-mpnet-base-v2: a bias by distance, and texts that are long enough for its last bucket. The table has more rows than
    there are buckets."""
    tokenizer = embed_tokenizers.wordpiece(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], 40, around=("<s>", "</s>"))
    return Case(
        seed=404,
        config={
            "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
            "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 21,
            "initializer_range": 0.02, "intermediate_size": 34, "layer_norm_eps": 1e-2, "max_position_embeddings": 514,
            "model_type": "mpnet", "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 1,
            "relative_attention_num_buckets": 40, "torch_dtype": "float32", "transformers_version": "4.29.2",
            "vocab_size": embed_tokenizers.size(tokenizer),
        },
        tokenizer=tokenizer,
        tokenizer_config=NAMES | {
            "do_lower_case": True, "model_max_length": 512, "strip_accents": None, "tokenize_chinese_chars": True,
            "tokenizer_class": "MPNetTokenizer", "unk_token": "[UNK]",
        },
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(21, "mean_tokens")},
        sentence={"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}},
        bert={"max_seq_length": 512, "do_lower_case": False},
        unused=("pooler.dense", "attn.k.bias"),
        mutations={
            "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
            "activation": {CONFIG: {"hidden_act": "gelu_new"}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
            "normalize": NO_NORMALIZE,
            "shorter": {"sentence_bert_config.json": {"max_seq_length": 480}},
        },
        texts={"padding within": "the sea <pad> and the stone"},
        max_len=512,
    )


NOMIC_TOKENIZER = BERT_NAMES | {
    "clean_up_tokenization_spaces": True, "do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True,
    "tokenizer_class": "BertTokenizer",
}
NOMIC_PROMPTS = {"query": "search_query: ", "document": "search_document: "}


def nomic_config(vocab, **changes):
    config = {
        "architectures": ["NomicBertModel"], "attention_probs_dropout_prob": 0.0, "head_dim": None,
        "hidden_act": "silu", "hidden_dropout_prob": 0.0, "hidden_size": 36, "initializer_range": 0.02,
        "intermediate_size": 47, "layer_norm_eps": 1e-2, "max_position_embeddings": 90, "model_type": "nomic_bert",
        "num_attention_heads": 3, "num_hidden_layers": 2, "pad_token_id": 0,
        "rope_parameters": {"rope_theta": 150.0, "rope_type": "default"}, "type_vocab_size": 2, "vocab_size": vocab,
    }
    return config | changes


def theta(value):
    return {"rope_parameters": {"rope_theta": value, "rope_type": "default"}}


def nomic_names(tensors):
    """Nomic's own names: one product for query, key and value, and the opposite order of up and gate."""
    import torch

    names = {
        "layers.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2",
        "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
    }
    stored = {}
    for name, tensor in tensors.items():
        if "self_attn.q_proj" in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            name, tensor = name.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts)
        elif "self_attn.k_proj" in name or "self_attn.v_proj" in name:
            continue
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        stored[name] = tensor
    return stored


def nomic_bert():
    """nomic-embed-text-v1.5 as published: the keys and names of Nomic's code."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 40)
    vocab = embed_tokenizers.size(tokenizer)
    config = {
        "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
        "auto_map": {
            "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
            "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
        },
        "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
        "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-2,
        "max_trained_positions": 40, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
        "n_embd": 36, "n_head": 3, "n_inner": 47, "n_layer": 2, "n_positions": 90, "pad_vocab_size_multiple": 64,
        "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 150, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_activation": None,
        "summary_first_dropout": 0.0, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "torch_dtype": "float32", "transformers_version": "4.37.2", "type_vocab_size": 2,
        "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": vocab,
    }
    # transformers reads its own keys; what it does not have goes.
    ours = nomic_config(vocab)
    return Case(
        seed=405,
        config=config,
        tokenizer=tokenizer,
        tokenizer_config=NOMIC_TOKENIZER | {"model_max_length": 8192},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling")],
        folders={"1_Pooling": pooling(36, "mean_tokens")},
        sentence={
            "__version__": {"sentence_transformers": "2.4.0.dev0", "transformers": "4.37.2", "pytorch": "2.1.0+cu121"},
            "prompts": NOMIC_PROMPTS,
        },
        bert={"max_seq_length": 84, "do_lower_case": False},
        reference={CONFIG: {key: REMOVED for key in config if key not in ours} | ours},
        respell=nomic_names,
        mutations={
            "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
            "activation": {CONFIG: {"hidden_act": "gelu"}},
            "theta": {CONFIG: theta(1000.0)},
            "heads": {CONFIG: {"num_attention_heads": 6}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
        },
        prompts=("query", "document"),
        max_len=84,
    )


def nomic_bert_new():
    """The same family as transformers 5 saves it."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 30)
    return Case(
        seed=406,
        config=nomic_config(
            embed_tokenizers.size(tokenizer), dtype="bfloat16", hidden_size=40, num_attention_heads=5, intermediate_size=49,
            num_hidden_layers=3, tie_word_embeddings=True, transformers_version="5.24.0", **theta(220.0)),
        tokenizer=tokenizer,
        tokenizer_config=NOMIC_TOKENIZER | {"model_max_length": 88},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(40, "mean_tokens", keys=POOLING_KEYS, include_prompt=True)},
        sentence={"prompts": NOMIC_PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"},
        bert=None,
        dtype="bfloat16",
        mutations={
            "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
            "theta": {CONFIG: theta(1000.0)},
            "normalize": NO_NORMALIZE,
            "length": {"tokenizer_config.json": {"model_max_length": 60}},
        },
        prompts=("query",),
        max_len=88,
    )


CASES = {
    "roberta": roberta, "xlm-roberta": xlm_roberta, "distilbert": distilbert, "mpnet": mpnet, "nomic-bert": nomic_bert,
    "nomic-bert-new": nomic_bert_new,
}
