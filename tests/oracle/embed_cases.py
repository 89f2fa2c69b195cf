"""What make_tiny_embed.py makes: for each tiny embedding checkpoint the files of its folder, and which settings must matter."""

from dataclasses import dataclass, field

import embed_tokenizers

TRANSFORMER = "sentence_transformers.models.Transformer"
# A reference loads the folder without this key or module.
REMOVED = object()


@dataclass
class Case:
    seed: int
    config: dict  # config.json
    tokenizer: dict  # tokenizer.json
    tokenizer_config: dict
    modules: list | None  # (path, type) of each module after the first, or the rest of the row
    folders: dict  # {path of a module: its config.json}
    sentence: dict | None  # config_sentence_transformers.json
    bert: dict | None  # sentence_bert_config.json
    dtype: str = "float32"
    prefix: str = ""  # of every tensor of the transformer
    # Tensors that are in the file and say nothing: {name: (shape, dtype)}; an int64 one counts from 0, as position ids do.
    idle: dict = field(default_factory=dict)
    # Parts of the names of parameters that no embedding depends on.
    unused: tuple = ()
    # How names of parameters begin that are not in the file: the reference makes them up.
    absent: tuple = ("-",)
    # What the reference must read differently: {file: {key: value}}.
    reference: dict = field(default_factory=dict)
    mutations: dict = field(default_factory=dict)  # {label: {file: {key: value}}}
    dimensions: tuple = ()  # Matryoshka lengths to cut to
    pool_all: bool = False  # give the vector of every pooling mode
    prompts: tuple = ()  # names of prompts to use on some texts
    texts: dict = field(default_factory=dict)  # {name: text} beside those that all have
    chunked: bool = False  # late chunking and tanh outputs, as pplx-embed has them
    max_len: int = 0  # tokens; longer texts are cut
    # Which keys a query sees: all, those up to itself, or in sliding layers those at this distance at most. None: BERT.
    causal: bool | None = None
    reach: int = 0


def pooling(width, mode, *, keys=("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"), **more):
    """1_Pooling/config.json as it was spelled before the modes became one key; the first files had four modes."""
    return {"word_embedding_dimension": width} | {f"pooling_mode_{key}": key == mode for key in keys} | more


POOLING_KEYS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
POOLING = "1_Pooling/config.json"
CONFIG = "config.json"
MODULES = "modules.json"


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
NO_NORMALIZE = {MODULES: {"Normalize": REMOVED}}
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
        modules=[("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
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
        modules=[("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
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
        modules=[("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
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
        modules=[("1_Pooling", "Pooling")],
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
        modules=[("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
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
    """pplx-embed-v1: Qwen3 that sees both ways, mean, not normalised, a quantiser of its own as the last module."""
    tokenizer = embed_tokenizers.qwen(QWEN_SPECIALS, 60)
    quantizer = {"type": "st_quantize.FlexibleQuantizer", "kwargs": ["quantization"]}
    return Case(
        seed=306,
        # 42 bits do not fill their bytes.
        config=pplx_config(
            embed_tokenizers.size(tokenizer), "PPLXQwen3Model", hidden_size=42, intermediate_size=51),
        tokenizer=tokenizer,
        tokenizer_config=PPLX_TOKENIZER | {"sep_token": "<|endoftext|>"},
        modules=[("1_Pooling", "Pooling"), ("", quantizer)],
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
        modules=[("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")],
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


CASES = {
    "bert-mean": bert_mean, "bert-cls": bert_cls, "modernbert-mean": modernbert_mean, "modernbert-cls": modernbert_cls,
    "qwen3-embedding": qwen3_embedding, "qwen3-pplx": qwen3_pplx, "qwen3-pplx-context": qwen3_pplx_context,
    "embeddinggemma": embeddinggemma,
}
