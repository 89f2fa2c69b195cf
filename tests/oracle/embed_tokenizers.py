"""Tokenizers of the tiny embedding checkpoints: tokenizer.json as the real models have it, with a few hundred tokens.

Nothing is trained by a library, so that the same corpus gives the same file everywhere: words are counted, ties go to the
alphabet. Each function answers the content of tokenizer.json.
"""

import itertools
import json
from collections import Counter

from golden import MODELS

# What no English prose has, but the texts of make_tiny_embed.py do. Emoji and Arabic are left out: they are unknown.
OTHER_TEXT = """
ein kätzchen schläft über den dächern; naïve café, où est le fichier? un château près de la forêt.
кошка спит на тёплом камне и видит море. станция стояла на холме над деревней.
猫が暖かい石の上で眠る。 東京は日本の首都です。
def f(x): return x ** 2 # code_with_underscores = [1, 2.5]
task: search result | query: title: none | text: Instruct: Given a web search query, retrieve relevant passages that
answer the query Query: Represent this sentence for searching relevant passages: 0123456789
"""
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus():
    return (MODELS / "perplexity.txt").read_text(encoding="utf-8") + OTHER_TEXT


def by_count(counter):
    """The most frequent first, equal ones by the alphabet."""
    return [key for key, _ in sorted(counter.items(), key=lambda item: (-item[1], item[0]))]


def added(tokens):
    """Control tokens as tokenizer.json lists them: {token: id}."""
    return [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for token, i in tokens.items()
    ]


def template(before, after, ids):
    """A post-processor that puts control tokens around a text; a second text gets type id 1."""
    special = [{"SpecialToken": {"id": token, "type_id": 0}} for token in (*before, *after)]
    first, last = special[: len(before)], special[len(before):]
    single = [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last]
    second = [{"SpecialToken": {"id": token, "type_id": 1}} for token in after]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}, *second],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in sorted({*before, *after})
        },
    }


def document(**parts):
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0"} | empty | {"added_tokens": []} | parts


def wordpiece(specials, n_words, lowercase=True, around=("[CLS]", "[SEP]")):
    """BERT: letters, endings of two and three letters, and the most frequent words, behind the control tokens."""
    from tokenizers import normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    words = Counter(
        word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(corpus())))
    letters = sorted({letter for word in words for letter in word})
    endings = Counter()
    for word, count in words.items():
        endings.update({f"##{word[-n:]}": count for n in (2, 3) if len(word) > n})
    tokens = [*specials, *letters, *(f"##{letter}" for letter in letters), *by_count(endings)[: n_words // 3]]
    known = set(tokens)
    tokens += [word for word in by_count(words) if word not in known][:n_words]
    ids = {token: i for i, token in enumerate(tokens)}
    return document(
        added_tokens=added({token: ids[token] for token in specials if not token.startswith("[unused")}),
        normalizer={
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=template(around[:1], around[1:], ids),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        model={
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    )


def merges_of(words, n_merges):
    """Byte-pair encoding of {tuple of symbols: count}: the pairs to merge, in order."""
    merges = []
    for _ in range(n_merges):
        pairs = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = by_count(pairs)[0]
        merges.append(best)
        merged = Counter()
        for word, count in words.items():
            merged[apply_merge(word, best)] += count
        words = merged
    return merges


def apply_merge(word, pair):
    out = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return tuple(out)


def byte_letters():
    """GPT-2's letter for each byte, in its order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]


def bpe_model(vocab, merges, **settings):
    defaults = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }
    return defaults | settings | {"vocab": vocab, "merges": [list(pair) for pair in merges]}


def byte_level(specials, n_merges, pre_tokenizer, post_processor, first=()):
    """ModernBERT and Qwen: bytes, merges, then the control tokens at the end of the vocabulary, but for the `first`."""
    from tokenizers import Tokenizer, normalizers

    probe = Tokenizer.from_str(json.dumps(document(pre_tokenizer=pre_tokenizer, model=bpe_model({}, []))))
    text = normalizers.NFC().normalize_str(corpus())
    words = Counter(tuple(word) for word, _ in probe.pre_tokenizer.pre_tokenize_str(text))
    merges = merges_of(words, n_merges)
    tokens = [*first, *byte_letters(), *("".join(pair) for pair in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    ids = {token: vocab[token] for token in first} | {token: len(tokens) + i for i, token in enumerate(specials)}
    return document(
        added_tokens=added(ids),
        normalizer={"type": "NFC"},
        pre_tokenizer=pre_tokenizer,
        post_processor=post_processor(ids),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=bpe_model(vocab, merges),
    )


def modernbert(specials, n_merges):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return byte_level(specials, n_merges, level, lambda ids: template(["[CLS]"], ["[SEP]"], ids))


def roberta(first, mask, n_merges):
    """RoBERTa: GPT-2's bytes behind the control tokens, and a mask at the end that takes the space before it."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

    def post_processor(ids):
        return {
            "type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]], "trim_offsets": True,
            "add_prefix_space": False,
        }

    tokenizer = byte_level([mask], n_merges, level, post_processor, first) | {"normalizer": None}
    tokenizer["added_tokens"][-1]["lstrip"] = True
    return tokenizer


def unigram(specials, mask, n_words):
    """XLM-RoBERTa: words and letters with the logarithms of their shares, behind the control tokens."""
    import math

    from tokenizers import normalizers

    text = normalizers.NFKC().normalize_str(corpus())
    counts = Counter(f"▁{word}" for word in text.split())
    letters = Counter(letter for word in counts.elements() for letter in word)
    words = [word for word in by_count(counts) if len(word) > 2][:n_words]
    total = counts.total() + letters.total()
    pieces = {word: counts[word] for word in words} | {letter: letters[letter] for letter in by_count(letters)}
    scores = [[token, 0.0] for token in specials]
    scores += [[piece, round(math.log(count / total), 6)] for piece, count in pieces.items()]
    ids = {token: i for i, (token, _) in enumerate([*scores, [mask, 0.0]])}
    tokenizer = document(
        added_tokens=added({token: ids[token] for token in [*specials, mask]}),
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            ],
        },
        post_processor=pair_template(ids),
        decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        model={"type": "Unigram", "unk_id": ids["<unk>"], "vocab": [*scores, [mask, 0.0]], "byte_fallback": False},
    )
    tokenizer["added_tokens"][-1]["lstrip"] = True
    return tokenizer


def pair_template(ids):
    """RoBERTa's: two separators between two texts, and one type for all."""
    special = {token: {"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>")}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    single = [special["<s>"], first, special["</s>"]]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, special["</s>"], second, special["</s>"]],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in special},
    }


def qwen(specials, n_merges, end=None):
    """`end` is the control token that the post-processor appends, as in Qwen3-Embedding; Qwen3 itself appends none."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, level]}

    def post_processor(ids):
        return {"type": "Sequence", "processors": [level, template([], [end], ids)]} if end else level

    return byte_level(specials, n_merges, pre_tokenizer, post_processor)


def gemma(specials, n_merges):
    """Gemma: control tokens first, 256 tokens for bytes, letters and merges over text whose spaces are `▁`."""
    marked = corpus().replace(" ", "▁")
    # Merges do not cross words here only because the words were cut before they were counted: the rule is none.
    words = Counter(tuple(word) for word in marked.replace("▁", " ▁").split())
    letters = sorted({letter for word in words for letter in word} | {"\n"})
    merges = merges_of(words, n_merges)
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *("".join(pair) for pair in merges)]
    ids = {token: i for i, token in enumerate(tokens)}
    return document(
        added_tokens=added({token: ids[token] for token in specials}),
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        pre_tokenizer={
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        },
        post_processor=template(["<bos>"], ["<eos>"], ids),
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        model=bpe_model(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    )


def size(tokenizer):
    """Rows that the embedding needs."""
    vocab = tokenizer["model"]["vocab"]
    ids = [*(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))]
    return max([*ids, *(token["id"] for token in tokenizer["added_tokens"])]) + 1
