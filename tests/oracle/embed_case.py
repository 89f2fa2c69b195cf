"""What make_tiny_embed.py needs to know of one checkpoint: the files of its folder, and which settings must matter."""

from dataclasses import dataclass, field

# A reference loads the folder without this key or module.
REMOVED = object()


@dataclass
class Case:
    seed: int
    config: dict  # config.json
    tokenizer: dict  # tokenizer.json
    tokenizer_config: dict
    modules: list | None  # (path, type, which may be the rest of the row) of each module
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
    # Another spelling of the tensors that are stored: {name: tensor} -> {name: tensor}.
    respell: object = None
    activations: tuple = ()  # values of `hidden_act` to give the vector of one text for
    # (file of a dense layer, names of torch.nn to give the vector of one text for)
    dense_activations: tuple = ("", ())
    chunked: bool = False  # late chunking and tanh outputs, as pplx-embed has them
    max_len: int = 0  # tokens; longer texts are cut
    # Which keys a query sees: all, those up to itself, or in sliding layers those at this distance at most. None: BERT.
    causal: bool | None = None
    reach: int = 0


def pooling(width, mode, *, keys=("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"), **more):
    """1_Pooling/config.json as it was spelled before the modes became one key; the first files had four modes."""
    return {"word_embedding_dimension": width} | {f"pooling_mode_{key}": key == mode for key in keys} | more


def torch_name(name):
    """The full name of a class of torch.nn, as sentence-transformers writes it."""
    import torch

    kind = getattr(torch.nn, name)
    return f"{kind.__module__}.{kind.__name__}"


POOLING_KEYS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
POOLING = "1_Pooling/config.json"
CONFIG = "config.json"
MODULES = "modules.json"
NO_NORMALIZE = {MODULES: {"Normalize": REMOVED}}
