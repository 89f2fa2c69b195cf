#!/usr/bin/env python3
"""Makes crates/runtime/tests/data: tokenizer.model files as the SentencePiece library writes them, and what AutoTokenizer of
transformers makes of each in a folder without a tokenizer.json.

    python3 crates/runtime/tests/make_sentencepiece.py

A row of sentencepiece.json has the model, the files beside it, the class that transformers chooses, and the ids of `texts`:
alone, without special tokens around them, and two as a pair. `lines` has a sum for each mixed line of the engine's tests, and
`symbols` one for each text of symbols.json, random texts of user-defined symbols, parts of them, spaces and letters: FNV-1a of
the ids, 8 hexadecimal digits each. Rows with `refused` are folders of which transformers makes no tokenizer, or one by a class
that is not made here. Needs sentencepiece, protobuf and transformers.
"""

import io
import json
import random
import tempfile
from pathlib import Path

import sentencepiece
import transformers
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
LINES = HERE.parents[1] / "engine/tests/data/mixed.jsonl"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"

# Symbols that begin, end or contain others, with spaces (never found if they are not U+2581), and of several bytes.
SYMBOLS = ["\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<table>", "<t", "\u00e9", "\u2581the", "a b", " x", "ab", "\u8a9e", "x\u2581",
           "\U0001f642\u2581", "</table>", "(a+b)*", "^.$|[x]{2}"]
OTHERS = [" ", "  ", "the", "a", "b", "x", "q", "<", "table>", "\t", "\u3000", "e\u0301", "\u672c", "\U0001f642", "\u2581", "\r\n", "0", "sea", "\0", "\u00a0"]
# What the character map of a model replaces.
RULES = {"\ufb01": "fi", "\uff21": "A", "\u00a0": " ", "\u0130": "i\u0307"}
TEXTS = [
    "H\u00e9llo the sea, a river", "a <s> the</s>sea x", "\u00e9 <|im_start|>user the sea<|im_end|>\n", "<extra> the  <extra>  a", "light",
    " the sea ", "the<unk>sea<pad>a<mask>", "\ufb01ne \u0130stanbul\u00a0\uff21", "[INST]the<table>a[/INST]", "<extra_id_3> b", "  ", "",
]


def random_texts(n):
    source = random.Random(11)
    parts = SYMBOLS + [symbol.replace("\u2581", " ") for symbol in SYMBOLS] + OTHERS
    return ["".join(source.choice(parts) for _ in range(source.randint(1, 10))) for _ in range(n)]


def train(lines, rules=None, **options):
    out = io.BytesIO()
    usual = {"model_type": "bpe", "vocab_size": 900, "byte_fallback": True, "remove_extra_whitespaces": False}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for old, new in (rules or {}).items():
            file.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (old, new)) + "\n")
        file.flush()
        normalization = {"normalization_rule_tsv": file.name} if rules else {"normalization_rule_name": "identity"}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, character_coverage=0.98, minloglevel=2, num_threads=1,
            **normalization, **usual | options)
    return out.getvalue()


def models(lines):
    yield "llama", train(lines)
    yield "gemma", train(lines, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>",
                         user_defined_symbols=["<mask>", "\n", "\n\n", "\u2581\u2581", "<table>"],
                         control_symbols=["<start_of_turn>"])
    yield "user_defined", train(lines, user_defined_symbols=SYMBOLS)
    yield "control", train(lines, RULES, remove_extra_whitespaces=True, byte_fallback=False, pad_id=3,
                           control_symbols=["[INST]", "[/INST]"], user_defined_symbols=["<table>"])
    # As T5's.
    yield "unigram", train(lines, RULES, model_type="unigram", vocab_size=500, byte_fallback=False, remove_extra_whitespaces=True,
                           pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    yield "unigram_bytes", train(lines, model_type="unigram", vocab_size=700, user_defined_symbols=SYMBOLS[4:8])


def token(content, **properties):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "rstrip": False, "single_word": False,
            "normalized": False} | properties


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
         "add_eos_token": False}
ENDS = {"add_bos_token": True, "add_eos_token": True}


def keys():
    """What the files beside a tokenizer.model may say, with a label."""
    n = 900
    extra = {"content": "<extra>", "special": True}
    for label, changes in [
        ("no prefix space", {"add_prefix_space": False}), ("legacy", {"legacy": True}), ("not legacy", {"legacy": False}),
        ("legacy null", {"legacy": None}), ("both ends", {"add_eos_token": True}), ("no ends", {"add_bos_token": None}),
        ("no first token", {"bos_token": None, "eos_token": None, "add_eos_token": True}),
        ("another first token", {"bos_token": token("</s>", lstrip=True)}), ("a pad token", {"pad_token": "light"}),
        ("further tokens, old key", {"additional_special_tokens": ["light"]}),
        ("further tokens", {"extra_special_tokens": ["light"], "additional_special_tokens": ["sea"]}),
        ("no further tokens", {"extra_special_tokens": []}), ("further tokens null", {"extra_special_tokens": None}),
        ("further tokens by name", {"extra_special_tokens": {"image_token": "light"}, "additional_special_tokens": ["sea"]}),
        ("a token of another name", {"image_token": "light"}), ("an object", {"image_token": token("light")}),
        ("an object without type", {"image_token": {"content": "light", "lstrip": True}}),
        ("special tokens split", {"split_special_tokens": True}),
        ("tokens by ids", {"added_tokens_decoder": {str(n): extra, "2": token("</s>", rstrip=True)}}),
        ("tokens by ids, no special ones", {"added_tokens_decoder": {str(n): extra | {"special": False, "single_word": True}}}),
        ("tokens by ids, normalized", {"added_tokens_decoder": {str(n): extra | {"normalized": True, "lstrip": True}}}),
        ("other names of pieces", {"added_tokens_decoder": {"300": extra, "301": {"content": "<s>"}, "5": {"content": "light"}}}),
    ]:
        yield label, {CONFIG: LLAMA | changes}
    yield "objects of further tokens", {CONFIG: LLAMA | {"extra_special_tokens": [token("light", normalized=True), token("sea", special=True)]}}
    yield "the class alone", {CONFIG: {"tokenizer_class": "LlamaTokenizer"}}
    yield "a map", {CONFIG: LLAMA, MAP: {"bos_token": "</s>", "pad_token": token("<s>"), "image_token": {"content": "light", "lstrip": True}}}
    yield "a map of further tokens", {CONFIG: LLAMA, MAP: {"additional_special_tokens": ["light"]}}
    yield "a map of further tokens, new key", {CONFIG: LLAMA | {"additional_special_tokens": ["a b"]},
                                                   MAP: {"extra_special_tokens": ["light", {"content": "sea", "lstrip": True}]}}
    yield "added tokens", {CONFIG: LLAMA, ADDED: {"<|im_end|>": n, "<|im_start|>": n + 1},
                           MAP: {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}}
    yield "added tokens, named", {CONFIG: LLAMA | {"additional_special_tokens": ["<extra>"]}, ADDED: {"<extra>": n}}


def rows():
    """(model, type of the model, files, what is summed)"""
    for model_type, model in [("llama", "llama"), ("llama", "control"), ("mistral", "control"), ("mistral", "user_defined")]:
        for label, files in keys():
            yield f"{model_type}, {model}: {label}", model, model_type, files, ""
    both, none = {CONFIG: LLAMA}, {}
    for model_type, model, files, sums in [
        ("llama", "llama", none, "lines"), ("llama", "llama", both, "lines"), ("mistral", "user_defined", none, "lines symbols"),
        ("llama", "user_defined", both, "lines symbols"), ("mistral", "control", both, "lines symbols"),
        ("gemma", "gemma", none, "lines symbols"), ("gemma3_text", "gemma", {CONFIG: {"tokenizer_class": "GemmaTokenizer"} | ENDS}, ""),
        ("mistral", "gemma", none, "lines symbols"), ("phi3", "llama", both, "lines"), ("qwen2", "llama", both, "lines"),
        ("mistral", "unigram", none, "lines"), ("mistral", "unigram_bytes", none, "lines symbols"),
        ("xlm-roberta", "unigram", none, "lines"), ("camembert", "unigram", none, "lines"),
        ("bert", "unigram", {CONFIG: {"tokenizer_class": "T5Tokenizer"}}, "lines"),
        ("llama", "unigram", both, ""), ("xlm-roberta", "unigram_bytes", none, ""), ("bert", "llama", both, ""),
    ]:
        label = files.get(CONFIG, {}).get("tokenizer_class", "no file")
        yield f"{model_type}, {model}: {label}", model, model_type, files, sums
    for name, model in [("CodeLlama", "control"), ("Gemma", "llama"), ("GPT2", "llama"), ("Roberta", "control"), ("GPTNeoX", "llama"),
                        ("Cohere", "control"), ("Qwen3_5", "llama"), ("XLMRoberta", "llama"), ("T5", "llama"), ("MPNet", "llama"),
                        ("Camembert", "llama"), ("Albert", "unigram"), ("DebertaV2", "unigram")]:
        name = f"{name}Tokenizer"
        yield f"{model}: {name}", model, "llama", {CONFIG: {"tokenizer_class": name} | ENDS}, ""
    yield "bert, llama: no class", "llama", "bert", none, ""
    yield "CodeLlama, no first token", "llama", "llama", {CONFIG: {"tokenizer_class": "CodeLlamaTokenizer", "add_bos_token": False}}, ""
    for name, changes in [
        ("T5", {"extra_ids": 5}), ("T5", {"extra_ids": None}), ("T5", {"pad_token": None}), ("T5", {"extra_special_tokens": ["light"]}),
        ("Camembert", {"add_prefix_space": False}), ("XLMRoberta", {"extra_special_tokens": ["light"]}),
        ("XLMRoberta", {"bos_token": "<a>", "pad_token": "<b>", "eos_token": "<c>", "unk_token": "<d>", "mask_token": "<e>"}),
        ("Camembert", {"bos_token": "<a>", "pad_token": "<b>", "eos_token": "<c>", "unk_token": "<d>", "mask_token": "<e>"}),
    ]:
        files = {CONFIG: {"tokenizer_class": f"{name}Tokenizer"} | changes}
        yield f"unigram: {name}Tokenizer, {json.dumps(changes)}", "unigram", "bert", files, ""


def sums(rows):
    def one(ids):
        value = 0x811C9DC5
        for byte in b"".join(i.to_bytes(4, "little") for i in ids):
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
        return f"{value:08x}"
    return "".join(map(one, rows))


# Classes that make a tokenizer in transformers, and are not made here.
NOT_MADE = ["AlbertTokenizer", "DebertaV2Tokenizer"]


def answer(label, model, model_type, files, summed, data, texts):
    found = {"label": label, "model": model, "model_type": model_type, "files": files}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (files | {"config.json": {"model_type": model_type}}).items():
            (Path(folder) / name).write_text(json.dumps(content), encoding="utf-8")
        (Path(folder) / "tokenizer.model").write_bytes(data)
        if files.get(CONFIG, {}).get("tokenizer_class") in NOT_MADE:
            return found | {"refused": True}
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (TypeError, ValueError):
            return found | {"refused": True}
    plain = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    found |= {
        "class": type(tokenizer).__name__,
        "n_tokens": max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1),
        "ids": [tokenizer(text)["input_ids"] for text in TEXTS], "plain": plain,
        "pair": tokenizer(TEXTS[0], TEXTS[1])["input_ids"], "names": tokenizer.special_tokens_map,
        "decoded": tokenizer.decode(plain[0], clean_up_tokenization_spaces=False),
    }
    return found | {name: sums(tokenizer(text)["input_ids"] for text in texts[name]) for name in summed.split()}


def main():
    transformers.logging.set_verbosity_error()
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").split("\n") if line]
    texts = {"lines": lines, "symbols": random_texts(1500)}
    folder = HERE / "data"
    folder.mkdir(exist_ok=True)
    files = dict(models(lines))
    for name, model in files.items():
        (folder / f"{name}.model").write_bytes(model)
    compact = lambda part: json.dumps(part, ensure_ascii=False, separators=(",", ":"))
    (folder / "symbols.json").write_text(compact(texts["symbols"]) + "\n", encoding="utf-8")
    found = [answer(*row, files[row[1]], texts) for row in rows()]
    head = f'"transformers": {compact(transformers.__version__)},\n"texts": {compact(TEXTS)}'
    text = "{" + head + ',\n"rows": [\n' + ",\n".join(map(compact, found)) + "]}\n"
    (folder / "sentencepiece.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
