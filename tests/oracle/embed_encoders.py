"""The tiny encoders: BERT as all-MiniLM-L6-v2, bge and sentence-transformers 6 have it, ModernBERT in both spellings."""

import embed_tokenizers
from embed_case import CONFIG, NO_NORMALIZE, POOLING, POOLING_KEYS, Case, pooling, torch_name


def bert_config(vocab, **changes):
    config = {
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 42, "initializer_range": 0.02,
        "intermediate_size": 59, "layer_norm_eps": 1e-2, "max_position_embeddings": 96, "model_type": "bert",
        "num_attention_heads": 6, "num_hidden_layers": 2, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.8.2", "type_vocab_size": 2, "use_cache": True, "vocab_size": vocab,
    }
    return config | changes


BERT_SPECIALS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_NAMES = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}
BERT_TOKENIZER = BERT_NAMES | {
    "do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None, "do_basic_tokenize": True,
    "never_split": None, "tokenizer_class": "BertTokenizer",
}
BERT_MUTATIONS = {
    "layer_norm_eps": {CONFIG: {"layer_norm_eps": 1e-12}},
    "activation": {CONFIG: {"hidden_act": "gelu_new"}},
    "heads": {CONFIG: {"num_attention_heads": 3}},
}
# The bias of the keys adds the same to all scores of a row.
BERT_UNUSED = ("pooler.dense", "self.key.bias")


def bert_mean():
    """all-MiniLM-L6-v2: mean, Normalize, no prompts. tokenizer.json cuts and pads by itself, which nobody asks for."""
    tokenizer = embed_tokenizers.wordpiece(BERT_SPECIALS, 96)
    tokenizer["truncation"] = {"direction": "Right", "max_length": 40, "strategy": "LongestFirst", "stride": 0}
    tokenizer["padding"] = {
        "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    return Case(
        seed=301,
        config=bert_config(embed_tokenizers.size(tokenizer)),
        tokenizer=tokenizer,
        tokenizer_config=BERT_TOKENIZER | {"model_max_length": 80},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(42, "mean_tokens")},
        sentence={"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}},
        bert={"max_seq_length": 64, "do_lower_case": False},
        idle={"embeddings.position_ids": ((1, 96), "int64")},
        unused=BERT_UNUSED,
        mutations=BERT_MUTATIONS | {
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
            "normalize": NO_NORMALIZE,
            "longer": {"sentence_bert_config.json": {"max_seq_length": 80}},
            "shorter": {"sentence_bert_config.json": {"max_seq_length": 40}},
            "case": {"tokenizer_config.json": {"do_lower_case": False}},
        },
        dimensions=(24, 5),
        pool_all=True,
        texts={"one long word": "sea " + "m" * 101 + " sea", "a hundred letters": "m" * 100},
        max_len=64,
    )


def bert_cls():
    """bge-small-en-v1.5: first token, Normalize, a prompt for queries; names with `bert.`, as a masked-LM head leaves them."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 72)
    vocab = embed_tokenizers.size(tokenizer)
    return Case(
        seed=302,
        config=bert_config(
            vocab, architectures=["BertForMaskedLM"], hidden_size=35, num_attention_heads=5, intermediate_size=53,
            num_hidden_layers=3, max_position_embeddings=70, classifier_dropout=None, torch_dtype="float32",
            id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, transformers_version="4.30.0"),
        tokenizer=tokenizer,
        tokenizer_config=BERT_TOKENIZER | {"clean_up_tokenization_spaces": True, "model_max_length": 70},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(35, "cls_token")},
        sentence={
            "__version__": {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0+cu117"},
            "prompts": {"query": "Represent this sentence for searching relevant passages: ", "document": ""},
            "default_prompt_name": None, "similarity_fn_name": "cosine",
        },
        bert={"max_seq_length": 52, "do_lower_case": True},
        prefix="bert.",
        idle={
            "bert.embeddings.position_ids": ((1, 70), "int64"), "cls.predictions.bias": ((vocab,), "float32"),
            "cls.predictions.transform.dense.weight": ((35, 35), "float32"),
            "cls.predictions.transform.dense.bias": ((35,), "float32"),
        },
        unused=BERT_UNUSED,
        absent=("pooler.",),
        mutations=BERT_MUTATIONS | {
            "heads": {CONFIG: {"num_attention_heads": 7}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}},
            "normalize": NO_NORMALIZE,
            "prompt": {"config_sentence_transformers.json": {"prompts": {"query": "", "document": ""}}},
            "shorter": {"sentence_bert_config.json": {"max_seq_length": 50}},
        },
        dimensions=(24,),
        prompts=("query", "document"),
        max_len=52,
    )


def bert_weighted():
    """As sentence-transformers 6 saves: new keys and types, the length in tokenizer_config.json, the prompt not pooled."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 40, lowercase=False)
    base = "sentence_transformers.base.modules"
    return Case(
        seed=319,
        config=bert_config(
            embed_tokenizers.size(tokenizer), hidden_size=33, num_attention_heads=3, intermediate_size=47,
            max_position_embeddings=512, transformers_version="5.23.0", dtype="float32", add_cross_attention=False,
            bos_token_id=None, classifier_dropout=None, eos_token_id=None, is_decoder=False, tie_word_embeddings=True),
        tokenizer=tokenizer,
        tokenizer_config=BERT_TOKENIZER | {"backend": "tokenizers", "do_lower_case": False, "model_max_length": 44},
        modules=[
            ("", {"type": f"{base}.transformer.Transformer"}),
            ("1_Pooling", {"type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"}),
            ("2_Dense", {"type": f"{base}.dense.Dense"}),
        ],
        folders={
            "1_Pooling": {"embedding_dimension": 33, "pooling_mode": ["weightedmean", "max"], "include_prompt": False},
            "2_Dense": {
                "in_features": 66, "out_features": 29, "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh", "module_input_name": "sentence_embedding",
                "module_output_name": "sentence_embedding",
            },
        },
        sentence={
            "__version__": {"pytorch": "2.15.0", "sentence_transformers": "6.2.0", "transformers": "5.23.0"},
            "default_prompt_name": "query", "model_type": "SentenceTransformer",
            "prompts": {"document": "", "query": "Query: ", "passage": "text: title: "}, "similarity_fn_name": "dot",
        },
        bert={
            "transformer_task": "feature-extraction", "do_lower_case": True,
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
        unused=BERT_UNUSED,
        mutations={
            "pooling": {POOLING: {"pooling_mode": ["max", "weightedmean"]}},
            "include_prompt": {POOLING: {"include_prompt": True}},
            "dense activation": {"2_Dense/config.json": {"activation_function": "torch.nn.modules.linear.Identity"}},
            "default prompt": {"config_sentence_transformers.json": {"default_prompt_name": None}},
            "case": {"sentence_bert_config.json": {"do_lower_case": False}},
            "length": {"tokenizer_config.json": {"model_max_length": 42}},
        },
        prompts=("document", "passage"),
        max_len=44,
    )


# All that can be made without arguments. PReLU has a weight of its own, and GLU halves a vector.
TORCH_ACTIVATIONS = (
    "AlphaDropout", "CELU", "Dropout", "ELU", "FeatureAlphaDropout", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish",
    "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU",
    "Sigmoid", "Softmax", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
)


def dense(n_in, n_out, activation, **more):
    return {"in_features": n_in, "out_features": n_out, "bias": True, "activation_function": torch_name(activation)} | more


def bert_steps():
    """All modules that change a vector, before the pooling and behind it; a vector of which a part is kept."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 40)
    module = "sentence_transformers.sentence_transformer.modules"
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    return Case(
        seed=321,
        config=bert_config(
            embed_tokenizers.size(tokenizer), hidden_size=34, num_attention_heads=2, intermediate_size=45,
            max_position_embeddings=512),
        tokenizer=tokenizer,
        tokenizer_config=BERT_TOKENIZER | {"model_max_length": 60},
        modules=[
            ("", "Transformer"), ("1_Dense", "Dense"), ("2_Normalize", "Normalize"), ("3_Pooling", "Pooling"),
            ("4_LayerNorm", {"type": f"{module}.layer_norm.LayerNorm"}), ("5_Dense", "Dense"), ("6_Dropout", "Dropout"),
            ("7_Dense", "Dense"), ("8_Normalize", "Normalize"), ("9_Dense", "Dense"), ("10_Normalize", "Normalize"),
        ],
        folders={
            "1_Dense": dense(34, 26, "SELU", **tokens), "2_Normalize": tokens,
            "3_Pooling": {"embedding_dimension": 26, "pooling_mode": "mean", "include_prompt": True},
            "4_LayerNorm": {"dimension": 26}, "5_Dense": dense(26, 26, "Mish", use_residual=True),
            "6_Dropout": {"dropout": 0.5},
            # What is between norms must not be scaled away.
            "7_Dense": dense(26, 42, "PReLU", use_residual=True), "8_Normalize": {},
            "9_Dense": dense(42, 38, "Tanh"), "10_Normalize": {},
        },
        sentence={
            "__version__": {"pytorch": "2.15.0", "sentence_transformers": "6.2.0", "transformers": "5.24.0"},
            "default_prompt_name": None, "model_type": "SentenceTransformer", "prompts": {"document": "", "query": ""},
            "similarity_fn_name": "cosine", "truncate_dim": 19,
        },
        bert=None,
        unused=BERT_UNUSED,
        mutations={
            "normalized tokens": {"2_Normalize/config.json": {"module_input_name": "sentence_embedding"}},
            "residual": {"5_Dense/config.json": {"use_residual": False}},
            "normalized within": {"8_Normalize/config.json": {"module_input_name": "token_embeddings"}},
        },
        dense_activations=("9_Dense/config.json", TORCH_ACTIVATIONS),
        dimensions=(30, 11),
        max_len=60,
    )


def bert_prompt():
    """Prompts whose tokens are not pooled, by every mode of pooling, in a model that keeps a part of its vectors."""
    tokenizer = embed_tokenizers.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 40)
    return Case(
        seed=322,
        config=bert_config(
            embed_tokenizers.size(tokenizer), hidden_size=42, num_attention_heads=3, intermediate_size=39,
            max_position_embeddings=512),
        tokenizer=tokenizer,
        tokenizer_config=BERT_TOKENIZER | {"model_max_length": 52},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(42, "mean_tokens", keys=POOLING_KEYS, include_prompt=False)},
        sentence={
            "prompts": {"query": "Represent the question for retrieval: ", "document": "", "unknown": "the 🙂"},
            "default_prompt_name": "query", "similarity_fn_name": "dot", "truncate_dim": 40,
        },
        bert=None,
        unused=BERT_UNUSED,
        mutations={
            "include_prompt": {POOLING: {"include_prompt": True}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
        },
        dimensions=(41, 24),
        pool_all=True,
        prompts=("query", "document", "unknown"),
        max_len=52,
    )


MODERNBERT_SPECIALS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def modernbert_ids(tokenizer):
    """config.json has the ids of the control tokens, which come last in the vocabulary."""
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    cls, sep = ids["[CLS]"], ids["[SEP]"]
    names = {"bos_token_id": cls, "cls_token_id": cls, "eos_token_id": sep, "sep_token_id": sep}
    return names | {"pad_token_id": ids["[PAD]"], "vocab_size": embed_tokenizers.size(tokenizer)}


def modernbert_config(tokenizer, **changes):
    config = {
        "architectures": ["ModernBertModel"], "attention_bias": False, "attention_dropout": 0.0,
        "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
        "classifier_pooling": "mean", "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0, "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 30,
        "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 23, "local_attention": 10,
        "max_position_embeddings": 128, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert",
        "norm_bias": False, "norm_eps": 1e-2, "num_attention_heads": 3, "num_hidden_layers": 5,
        "position_embedding_type": "absolute", "sparse_pred_ignore_index": -100, "sparse_prediction": False,
    }
    return config | modernbert_ids(tokenizer) | changes


MODERNBERT_TOKENIZER = BERT_NAMES | {
    "clean_up_tokenization_spaces": True, "model_input_names": ["input_ids", "attention_mask"],
    "tokenizer_class": "PreTrainedTokenizerFast",
}


def modernbert_mean():
    """modernbert-embed-base: every third layer sees all, the first one too, which has no norm before its attention."""
    tokenizer = embed_tokenizers.modernbert(MODERNBERT_SPECIALS, 60)
    return Case(
        seed=303,
        config=modernbert_config(
            tokenizer, global_attn_every_n_layers=3, global_rope_theta=4000.0, local_rope_theta=150.0,
            layer_norm_eps=1e-5, reference_compile=False, repad_logits_with_grad=False, torch_dtype="float32",
            transformers_version="4.48.0"),
        tokenizer=tokenizer,
        tokenizer_config=MODERNBERT_TOKENIZER | {"model_max_length": 128},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        folders={"1_Pooling": pooling(30, "mean_tokens", keys=POOLING_KEYS, include_prompt=True)},
        sentence={
            "__version__": {"sentence_transformers": "3.3.1", "transformers": "4.48.0.dev0", "pytorch": "2.5.1+cu124"},
            "prompts": {"query": "search_query: ", "document": "search_document: "}, "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        bert={"max_seq_length": 60, "do_lower_case": False},
        mutations={
            "norm_eps": {CONFIG: {"norm_eps": 1e-5}},
            "activation": {CONFIG: {"hidden_activation": "gelu_new"}},
            "window longer": {CONFIG: {"local_attention": 12}},
            "window shorter": {CONFIG: {"local_attention": 8}},
            "global layers": {CONFIG: {"global_attn_every_n_layers": 2}},
            "global theta": {CONFIG: {"global_rope_theta": 150.0}},
            "local theta": {CONFIG: {"local_rope_theta": 4000.0}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
            "normalize": NO_NORMALIZE,
        },
        dimensions=(17,),
        prompts=("query", "document"),
        max_len=60,
        causal=False,
        reach=5,
    )


def modernbert_cls():
    """gte-modernbert-base: first token, no Normalize; as transformers 5 saves a masked-LM model, its head is idle."""
    tokenizer = embed_tokenizers.modernbert(MODERNBERT_SPECIALS, 30)
    vocab = embed_tokenizers.size(tokenizer)
    sliding, full = "sliding_attention", "full_attention"
    ropes = {
        full: {"rope_theta": 3000.0, "rope_type": "default"}, sliding: {"rope_theta": 90.0, "rope_type": "default"},
    }
    return Case(
        seed=304,
        config=modernbert_config(
            tokenizer, architectures=["ModernBertForMaskedLM"], hidden_size=32, num_attention_heads=4,
            intermediate_size=27, local_attention=6, num_hidden_layers=4, max_position_embeddings=48,
            layer_types=[sliding, full, sliding, sliding], rope_parameters=ropes, dtype="float16",
            tie_word_embeddings=True, transformers_version="5.2.0"),
        tokenizer=tokenizer,
        tokenizer_config=MODERNBERT_TOKENIZER | {"model_max_length": 8192},
        modules=[("", "Transformer"), ("1_Pooling", "Pooling")],
        folders={"1_Pooling": pooling(32, "cls_token", keys=POOLING_KEYS, include_prompt=True)},
        sentence={
            "__version__": {"sentence_transformers": "3.3.1", "transformers": "4.47.1", "pytorch": "2.5.1+cu121"},
            "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine",
        },
        # No max_seq_length: the lesser of model_max_length and max_position_embeddings.
        bert={"do_lower_case": False},
        dtype="float16",
        prefix="model.",
        idle={
            "head.dense.weight": ((32, 32), "float16"), "head.norm.weight": ((32,), "float16"),
            "decoder.bias": ((vocab,), "float16"),
        },
        mutations={
            "window longer": {CONFIG: {"local_attention": 8}},
            "window shorter": {CONFIG: {"local_attention": 4}},
            "layer order": {CONFIG: {"layer_types": [full, sliding, full, sliding]}},
            "global theta": {CONFIG: {"rope_parameters": ropes | {full: ropes[sliding]}}},
            "local theta": {CONFIG: {"rope_parameters": ropes | {sliding: ropes[full]}}},
            "pooling": {POOLING: {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}},
            "length": {CONFIG: {"max_position_embeddings": 46}},
        },
        max_len=48,
        causal=False,
        reach=3,
    )


CASES = {
    "bert-mean": bert_mean, "bert-cls": bert_cls, "bert-weighted": bert_weighted, "bert-steps": bert_steps,
    "bert-prompt": bert_prompt, "modernbert-mean": modernbert_mean,
    "modernbert-cls": modernbert_cls,
}
