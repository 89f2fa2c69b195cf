"""Tokenizer files: ones whose parts are of the right kind and hold anything, and vocabularies of GGUF files."""

import base64
import json
import struct

from . import formats
from .mutate import INTEGERS

REGEXES = [
    "",
    "a*",
    "(a+)+$",
    "(?:a|a)*b",
    "(a|aa)+$",
    "\\p{L}+",
    "(?=x)*",
    "(?<=a{0,99})b",
    "[",
    "(",
    "\\",
    "(?i)",
    "\\b",
    "x{0,99999}",
]
REGEXES += [
    "((((a{0,99}){0,99}){0,99}){0,99})",
    "(" * 3000 + ")" * 3000,
    "a" * 20000,
    "(?:" * 300 + "a" + ")*" * 300,
    "$",
    "^",
    ".",
    "\\1(a)",
]
REGEXES += [
    "(?<n>a)\\k<n>",
    "(?R)",
    "\\G",
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+",
    "(.*)*(.*)*(.*)*x",
    "(?s).*",
    "\\X",
    "(?>a*)b",
]
STRINGS = [
    "",
    "a",
    " ",
    "▁",
    "##",
    "</w>",
    "<unk>",
    "[UNK]",
    "é",
    "\0",
    "𝔘",
    "a" * 3000,
    "<0x41>",
    "Ġ",
    "日",
    "\n",
]


SIZES = [0, 1, 2, 1000, 10**6, 2**31, 2**40, 2**63, 2**64 - 1]
IDS = [0, 1, 2, 3, 280, 281, 282, 300, 65536, 2**31 - 1, 2**31, 2**32 - 1]


def _pattern(rng):
    kind = rng.random()
    return (
        {"Regex": rng.choice(REGEXES)}
        if kind < 0.5
        else {"String": rng.choice(STRINGS)}
        if kind < 0.95
        else rng.choice([None, "a", {}])
    )


def _charsmap_bytes(rng):
    """`size of the trie, trie, texts`, of which each may be wrong."""
    units = [
        rng.choice([0, 0, 2**32 - 1, 0x80000000, rng.getrandbits(32)])
        for _ in range(rng.choice([0, 1, 2, 256, 1024]))
    ]
    trie = struct.pack(f"<{len(units)}I", *units)
    size = len(trie) if rng.random() < 0.6 else rng.choice(INTEGERS) % 2**32
    data = struct.pack("<I", size) + trie + rng.choice([b"", b"a\0b\0", b"\xff\xfe", b"abc"])
    return rng.choice([data, data, data, b"", data[:3], data[:5]])


def _charsmap(rng):
    return base64.b64encode(_charsmap_bytes(rng)).decode()[rng.choice([0, 0, 0, 1]) :]


def _normalizer(rng, depth=0):
    kind = rng.randrange(16)
    if kind == 0 and depth < 3:
        inner = _normalizer(rng, depth + 1)
        return {
            "type": "Sequence",
            "normalizers": rng.choice(
                [
                    [],
                    [inner] * rng.choice([1, 8, 40, 300]),
                    [_normalizer(rng, depth + 1) for _ in range(3)],
                ]
            ),
        }
    if kind < 5:
        return {
            "type": "Replace",
            "pattern": _pattern(rng),
            "content": rng.choice([*STRINGS, "aa", "b" * 100000]),
        }
    if kind == 5:
        return {"type": "Prepend", "prepend": rng.choice([*STRINGS, "x" * 100000])}
    if kind < 9:
        return {"type": "Precompiled", "precompiled_charsmap": _charsmap(rng)}
    if kind == 9:
        return {
            "type": "BertNormalizer",
            "clean_text": rng.random() < 0.5,
            "handle_chinese_chars": True,
            "strip_accents": rng.choice([None, True]),
            "lowercase": True,
        }
    if kind == 10:
        return {"type": "Strip", "strip_left": True, "strip_right": True}
    if kind == 11:
        # Each doubles what the one before gave.
        double = {
            "type": "Replace",
            "pattern": {"Regex": "."},
            "content": rng.choice(["aa", "aaaa", "a" * 1000]),
        }
        return {"type": "Sequence", "normalizers": [double] * rng.choice([3, 12, 32, 64])}
    return {
        "type": rng.choice(
            [
                "NFC",
                "NFD",
                "NFKC",
                "NFKD",
                "Lowercase",
                "StripAccents",
                "Nmt",
                "ByteLevel",
                "Nothing",
            ]
        )
    }


def _pre_tokenizer(rng, depth=0):
    kind = rng.randrange(12)
    if kind == 0 and depth < 3:
        return {
            "type": "Sequence",
            "pretokenizers": [_pre_tokenizer(rng, depth + 1)] * rng.choice([0, 1, 3, 300]),
        }
    if kind < 5:
        behavior = rng.choice(
            ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "x"]
        )
        return {
            "type": "Split",
            "pattern": _pattern(rng),
            "behavior": behavior,
            "invert": rng.random() < 0.3,
        }
    if kind == 5:
        scheme = rng.choice(["always", "never", "first", "x"])
        return {
            "type": "Metaspace",
            "replacement": rng.choice(["▁", "", "ab", "\0"]),
            "prepend_scheme": scheme,
            "split": rng.random() < 0.7,
        }
    if kind == 6:
        return {
            "type": "ByteLevel",
            "add_prefix_space": rng.random() < 0.5,
            "trim_offsets": True,
            "use_regex": rng.random() < 0.7,
        }
    if kind == 7:
        return {"type": "CharDelimiterSplit", "delimiter": rng.choice(["a", "", "ab"])}
    if kind == 8:
        return {"type": "FixedLength", "length": rng.choice([0, 1, 2**63])}
    return {
        "type": rng.choice(
            ["Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts", "Nothing"]
        )
    }


def _post_processor(rng):
    kind = rng.randrange(7)
    piece = lambda: rng.choice(
        [
            {
                "SpecialToken": {
                    "id": rng.choice(["[CLS]", "", "nothing"]),
                    "type_id": rng.choice(IDS),
                }
            },
            {"Sequence": {"id": rng.choice(["A", "B", "C"]), "type_id": 0}},
        ]
    )
    if kind < 4:
        special = {
            "id": "[CLS]",
            "ids": [rng.choice(IDS) for _ in range(rng.choice([0, 1, 2]))],
            "tokens": ["[CLS]"] * rng.choice([0, 1, 3]),
        }
        single = [piece() for _ in range(rng.choice([0, 1, 3, 3000]))]
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [piece()],
            "special_tokens": rng.choice([{"[CLS]": special}, {}, {"x": special}]),
        }
    pair = [rng.choice(STRINGS), rng.choice(IDS)]
    if kind == 4:
        return {"type": "BertProcessing", "sep": pair, "cls": ["a", 0]}
    if kind == 5:
        return {
            "type": "RobertaProcessing",
            "sep": pair,
            "cls": ["a", 0],
            "trim_offsets": True,
            "add_prefix_space": True,
        }
    return {"type": "Sequence", "processors": [_post_processor(rng)] * rng.choice([0, 1, 2])}


def _vocabulary(rng):
    tokens = list(
        dict.fromkeys(
            [
                *map(chr, range(33, 127)),
                *(rng.choice(STRINGS) for _ in range(20)),
                "ab",
                "abc",
                "th",
                "the",
            ]
        )
    )
    ids = {token: i for i, token in enumerate(tokens)}
    if rng.random() < 0.5:
        ids[rng.choice(tokens)] = rng.choice(IDS)
    if rng.random() < 0.3:
        ids = {token: rng.choice([0, 1, i]) for token, i in ids.items()}
    return ids


def _model(rng):
    kind = rng.choice(["BPE", "BPE", "WordPiece", "WordLevel", "Unigram", "Unigram", "Nothing"])
    unk = rng.choice([None, "<unk>", "[UNK]", "nothing", ""])
    if kind == "Unigram":
        score = lambda: rng.choice([0.0, -1.5, 1e308, -1e308, -1e-320, float("nan"), 0])
        vocab = [[token, score()] for token in _vocabulary(rng)] * rng.choice([0, 1, 1, 1, 2])
        return {
            "type": kind,
            "unk_id": rng.choice([None, 0, *SIZES]),
            "vocab": vocab,
            "byte_fallback": rng.random() < 0.5,
        }
    vocab = _vocabulary(rng) if rng.random() < 0.95 else {}
    if kind == "BPE":
        merges = rng.choice(
            [
                [["a", "b"]],
                ["a b"],
                ["ab c", "a b"],
                [["a"]],
                ["a"],
                ["a b c"],
                [["", ""]],
                [["x", "y"]],
                [["a", "b"]] * 3000,
                [],
            ]
        )
        model = {
            "type": kind,
            "vocab": vocab,
            "merges": merges,
            "unk_token": unk,
            "dropout": rng.choice([None, 0.0, 1.0, -1, 2, 0.5]),
        }
        for key in ["fuse_unk", "byte_fallback", "ignore_merges"]:
            model[key] = rng.random() < 0.4
        model["continuing_subword_prefix"] = rng.choice([None, None, "##", "", "a"])
        model["end_of_word_suffix"] = rng.choice([None, None, "</w>", "", "b"])
        return model
    model = {"type": kind, "vocab": vocab, "unk_token": unk}
    if kind == "WordPiece":
        model |= {
            "continuing_subword_prefix": rng.choice(["##", "", "a"]),
            "max_input_chars_per_word": rng.choice([0, 1, 100, *SIZES]),
        }
    return model


def _added(rng):
    count = rng.choice([0, 1, 3, 3, 500])
    content = lambda: rng.choice(
        [*STRINGS, "<|x|>", "a" * 1000, "a" * 100000] if count < 9 else [*STRINGS, "<|x|>"]
    )
    flag = lambda: rng.random() < 0.4
    names = ["special", "single_word", "lstrip", "rstrip", "normalized"]
    return [
        {
            "id": rng.choice([0, i, 282 + i, rng.choice(IDS)]),
            "content": content(),
            **{n: flag() for n in names},
        }
        for i in range(count)
    ]


def _truncation(rng):
    return {
        "direction": rng.choice(["Right", "Left"]),
        "max_length": rng.choice([0, 1, 2, *SIZES]),
        "strategy": "LongestFirst",
        "stride": rng.choice([0, 1, 2**63]),
    }


def _padding(rng):
    strategy = rng.choice(["BatchLongest", {"Fixed": rng.choice([0, 8, *SIZES])}])
    return {
        "strategy": strategy,
        "direction": "Right",
        "pad_to_multiple_of": rng.choice([None, 0, 8, 2**62]),
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }


def _decoder(rng):
    kinds = [
        {"type": "ByteLevel"},
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    kinds += [
        {"type": "Strip", "content": " ", "start": rng.choice(SIZES), "stop": rng.choice(SIZES)}
    ]
    kinds += [
        {"type": "Replace", "pattern": _pattern(rng), "content": "x" * 99999},
        {"type": "BPEDecoder", "suffix": ""},
    ]
    kinds += [{"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}]
    kind = rng.choice(kinds)
    return rng.choice([kind, {"type": "Sequence", "decoders": [kind] * rng.choice([0, 1, 300])}])


def _same_vocabulary(rng, model):
    """The model of a valid file with other settings, so that its tokens are still those that the checkpoint has."""
    made, vocab = _model(rng), model.get("vocab")
    if isinstance(made.get("vocab"), dict) and isinstance(vocab, dict) and rng.random() < 0.9:
        tokens = list(vocab)
        made["vocab"] = vocab
        if rng.random() < 0.5 and "merges" in made:
            made["merges"] = rng.choice(
                [
                    model.get("merges", []),
                    [[rng.choice(tokens), rng.choice(tokens)] for _ in range(20)],
                ]
            )
    elif isinstance(made.get("vocab"), list) and isinstance(vocab, dict) and rng.random() < 0.9:
        made["vocab"] = [[token, -1.0] for token in vocab]
        made["unk_id"] = rng.choice([None, 0, 5, *SIZES])
    return made


PARTS = {
    "truncation": _truncation,
    "padding": _padding,
    "added_tokens": _added,
    "normalizer": _normalizer,
    "pre_tokenizer": _pre_tokenizer,
    "post_processor": _post_processor,
    "decoder": _decoder,
}


def random(rng, valid):
    """A valid `tokenizer.json` in which some parts are of the right form and hold anything."""
    whole = json.loads(valid)
    names = ["normalizer", "normalizer", "pre_tokenizer", "model", *PARTS]
    for name in {rng.choice(names) for _ in range(rng.choice([1, 1, 2, 3]))}:
        if name == "model":
            whole["model"] = _same_vocabulary(rng, whole["model"])
        elif name == "added_tokens":
            whole[name] = whole[name] + _added(rng)
        else:
            whole[name] = PARTS[name](rng)
    return json.dumps(whole, ensure_ascii=rng.random() < 0.5)


def vocabulary_keys(rng, file):
    """Changes the tokenizer of a GGUF file: lists of other lengths, odd tokens, ids that no list has."""
    n = rng.choice([0, 1, 3, 282, 282, 282, 300, 5000])
    tokens = [
        chr(33 + i) if i < 94 else rng.choice([*STRINGS, f"t{i}", f"<0x{i % 256:02X}>"])
        for i in range(n)
    ]
    kinds = ["gpt2", "llama", "bert", "t5", "rwkv", "none", "", "plamo2", "no_such"]
    prefix = b"tokenizer.ggml."
    lists = {
        b"tokens": lambda: (
            9,
            formats.array(
                8, [formats.string(t) for t in tokens], rng.choice([None] * 9 + INTEGERS)
            ),
        ),
        b"scores": lambda: (
            9,
            formats.array(
                6,
                [
                    struct.pack("<I", rng.choice([0, 0x7FC00000, 0xFF800000, rng.getrandbits(32)]))
                    for _ in range(rng.choice([n, n, 0, n + 1]))
                ],
            ),
        ),
        b"token_type": lambda: (
            9,
            formats.array(
                5,
                [
                    struct.pack("<i", rng.choice([1, 1, 1, 2, 3, 4, 5, 6, 0, 7, -1]))
                    for _ in range(rng.choice([n, n, 0, n + 1]))
                ],
            ),
        ),
        b"merges": lambda: (
            9,
            formats.array(
                8,
                [
                    formats.string(
                        rng.choice(
                            ["a b", "ab c", "a", "", " ", "a  b", "x y z", "é è", "a " * 500]
                        )
                    )
                    for _ in range(rng.choice([0, 3, 20, 5000]))
                ],
            ),
        ),
        b"model": lambda: (8, formats.string(rng.choice(kinds[:3] + kinds))),
        b"pre": lambda: (
            8,
            formats.string(
                rng.choice(
                    ["default", "smollm", "llama-bpe", "qwen2", "gpt-2", "", "no_such", "\0"]
                )
            ),
        ),
        b"bos_token_id": lambda: (4, struct.pack("<I", rng.choice(INTEGERS) % 2**32)),
        b"eos_token_id": lambda: (4, struct.pack("<I", rng.choice(INTEGERS) % 2**32)),
        b"unknown_token_id": lambda: (4, struct.pack("<I", rng.choice(INTEGERS) % 2**32)),
        b"padding_token_id": lambda: (4, struct.pack("<I", rng.choice(INTEGERS) % 2**32)),
        b"add_bos_token": lambda: (7, bytes([rng.choice([0, 1, 2, 255])])),
        b"add_space_prefix": lambda: (7, bytes([rng.choice([0, 1])])),
        b"precompiled_charsmap": lambda: (
            9,
            formats.array(0, [bytes([b]) for b in _charsmap_bytes(rng)]),
        ),
    }
    for name in rng.sample(list(lists), rng.choice([1, 1, 2, 3, 6])):
        if rng.random() < 0.1:
            file.keys = [key for key in file.keys if key[0] != prefix + name]
        else:
            file.set(prefix + name, *lists[name]())
