"""Keys of tokenizer_config.json and the files beside it, and what they do to tokenizers; for make_keys.py."""

import inspect
import json
import shutil
import tempfile
from pathlib import Path

import transformers
from golden import MODELS
from keys_static import arguments, taken_from
from transformers.models.auto import tokenization_auto
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
FOLDERS = ("tiny-chat", *(f"tiny-embed/{name}" for name in (
    "bert-cls", "distilbert", "embeddinggemma", "mistral-lasttoken", "modernbert-cls", "mpnet", "qwen3-embedding", "roberta",
    "xlm-roberta",
)))
# Files, which are no settings, and objects that only callers can give.
NOT_TRIED = {"vocab", "merges", "tokenizer_object", "tokenizer_file", "gguf_file", "post_processor", "_json_truncation",
             "_json_padding", "_spm_precompiled_charsmap", "vocab_file", "merges_file", "token", "trust_remote_code"}
TEXTS = ["The CAT  sleeps , n't it ?", "\u00c9t\u00e9 na\u00efve \u732b\u304c\u77f3", " leading", "qqx the\ttab [MASK] <mask> <s> </s> </eos> <eos>",
         "def f(x): return x**2 <|im_start|> <|endoftext|>", "long " * 150]
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
TOKEN = {"content": "the", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
VALUES = {
    "added_tokens_decoder": [{"3": TOKEN}, {"9000": TOKEN | {"content": "qqx"}}],
    "additional_special_tokens": [["the", "qqx"]], "extra_special_tokens": [["the", "qqx"], {"own_token": "the"}],
    "model_specific_special_tokens": [{"own_token": "the"}], "chat_template": ["{{ messages[0]['content'] }}"],
    "model_max_length": [9], "max_len": [9], "max_length": [9], "truncation_side": ["left"], "padding_side": ["left"],
    "model_input_names": [["input_ids"]], "tokenizer_class": ["PreTrainedTokenizerFast", "LlamaTokenizer"],
    "backend": ["tokenizers"], "init_inputs": [[]], "never_split": [["the"]],
    "tokenizer_truncation": [{"direction": "Left", "max_length": 9, "strategy": "longest_first", "stride": 0}],
    "tokenizer_padding": [{"direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "x", "length": 40,
                           "pad_to_multiple_of": None}],
    # The code of the model, which transformers asks whether to run.
    "auto_map": [],
    "suffix": ["x"], "chat_control_tokens": [["the"]], "errors": ["ignore"], "vocab_size": [9], "sp_model_kwargs": [{"enable_sampling": True}],
}


def keys(model_types):
    """{key: classes}"""
    base = Path(inspect.getfile(transformers.PreTrainedTokenizerBase))
    fast = Path(inspect.getfile(transformers.PreTrainedTokenizerFast))
    found = {}

    def add(names, kind):
        for name in names:
            found.setdefault(name, set()).add(kind)

    add(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES, "PreTrainedTokenizerBase")
    add(taken_from(base, "kwargs", "PreTrainedTokenizerBase", {"__init__"}), "PreTrainedTokenizerBase")
    add(taken_from(base, "init_kwargs", None, {"_from_pretrained"}), "PreTrainedTokenizerBase")
    add(taken_from(fast, "kwargs", "TokenizersBackend", {"__init__"}), "TokenizersBackend")
    add(taken_from(fast, "local_kwargs", "TokenizersBackend"), "TokenizersBackend")
    add(taken_from(Path(inspect.getfile(tokenization_auto)), "tokenizer_config"), "AutoTokenizer")
    for name in sorted({TOKENIZER_MAPPING_NAMES.get(model_type) or "" for model_type in model_types}):
        kind = getattr(transformers, name, None)
        if kind is not None and issubclass(kind, transformers.PreTrainedTokenizerFast) and "__init__" in vars(kind):
            add(arguments(kind.__init__), name)
    return {key: kinds for key, kinds in found.items() if not key.endswith("_file") and key not in NOT_TRIED | {"self"}}


def values(key, value):
    if key in VALUES:
        return VALUES[key]
    if isinstance(value, bool):
        return [not value]
    if key.endswith("_token") and not key.startswith("add_"):
        return ["the", "qqx"]
    return [True, False, 3]


def answers(folder):
    """What a tokenizer does; or the error."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        texts = [text.lower() if "uncased" in folder else text for text in TEXTS]
        ids = [tokenizer(text, add_special_tokens=special, truncation=True)["input_ids"] for text in texts for special in (True, False)]
        pair = tokenizer("the cat", "a sea", truncation=True)["input_ids"]
        # Nobody decodes the tokens of embedding models.
        decoded = [*ids, [5, 6, 7, 0, 1, 2, 3]] if tokenizer.chat_template else []
        words = [tokenizer.decode(row, skip_special_tokens=skip) for row in decoded for skip in (True, False)]
        chat = tokenizer.apply_chat_template(MESSAGES, tokenize=False) if tokenizer.chat_template else None
        return ids, pair, words, chat
    except Exception as error:
        return error


def row(folder, usual, file, key, tried):
    """(value, effect) of the first value that changes anything, or else of the first that is accepted."""
    best = None
    path = Path(folder) / file
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    for value in tried:
        path.write_text(json.dumps(json.loads(before or "{}") | {key: value}), encoding="utf-8")
        found = answers(folder)
        effect = "refused" if isinstance(found, Exception) else "same" if found == usual else "differs"
        if best is None or effect == "differs" or (best[1], effect) == ("refused", "same"):
            best = value, effect
        if effect == "differs":
            break
    path.unlink() if before is None else path.write_text(before, encoding="utf-8")
    return best


def rows(model_types):
    known = keys(model_types)
    found = [(CONFIG, key, "known", "", sorted(kinds)) for key, kinds in sorted(known.items())]
    effects = {}
    for name in FOLDERS:
        with tempfile.TemporaryDirectory() as folder:
            for source in (MODELS / name).iterdir():
                if source.suffix == ".json":
                    shutil.copy(source, folder)
            config = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
            usual = answers(folder)
            if isinstance(usual, Exception):
                raise usual
            tried = [(CONFIG, key) for key in sorted({*known, *config})]
            tried += [(MAP, key) for key in [*transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
                                             "additional_special_tokens", "extra_special_tokens"]]
            for file, key in tried:
                result = row(folder, usual, file, key, values(key, config.get(key)))
                if result is None:
                    continue
                effects.setdefault((file, key, json.dumps(result[0]), result[1]), []).append(name)
            # Its keys are tokens.
            result = row(folder, usual, ADDED, "qqx", [9000])
            effects.setdefault((ADDED, "qqx", json.dumps(result[0]), result[1]), []).append(name)
        print(f"{name}: {len(tried)} keys of tokenizers", flush=True)
    return found + [(file, key, effect, value, names) for (file, key, value, effect), names in sorted(effects.items())]
