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
    modules: list  # (path, type) of each module after the first, or the whole row
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


CASES = {"bert-mean": bert_mean, "bert-cls": bert_cls}
