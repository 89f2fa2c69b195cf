#!/usr/bin/env python3
"""Goldens of the text tests, from references that share no code with the engine.

    python3 make_goldens.py [FOLDER] [--compare]

writes tests/data. FOLDER (or $THANE_MODELS) holds SmolLM2-135M-Instruct.Q4_1.gguf and
gemma-3-270m-q4_k_m.gguf; without them the goldens of the two files are left as they are.

References:
  SmolLM2   the tokenizer that transformers makes of the GGUF file, with the pre-tokenizer of the model's
            published tokenizer.json (single digits, then GPT-2's rule), which transformers does not know by
            the name "smollm"
  Gemma 3   the sentencepiece library on a model file with the pieces, scores and types of the GGUF file;
            --compare prints where the tokenizer of transformers differs from it
  small     tokenizers trained here by `sentencepiece` and `tokenizers`, answered by these libraries
  controls  `apply_chat_template` of transformers, with control tokens in messages as text
  chat      jinja2 as transformers sets it up
  sampling  numpy, in float64

Needs: numpy gguf transformers tokenizers sentencepiece protobuf jinja2
"""

import io
import json
import os
import random
import re
import struct
import sys
import unicodedata
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
SPACE = "\u2581"


# ---------------------------------------------------------------- mixed text

WORDS = """the of and to in is that it was for on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some
Thane neural engine tokens don't I'll WE'RE he's they'd HTTPServer camelCase snake_case UPPER naïve café""".split()
CJK = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈"
KANA = "あいうえおかきくけこさしすせそたちつてとナニヌネノハヒフヘホマミムメモヤユヨラリルレロワンーっゃュ"
HANGUL = "가나다라마바사아자차카타파하한국어문장을토큰으로나눕니다"
RTL = "שלוםעולם مرحبابالعالم فارسی אבגדה"
OTHER = "ДобрыйденьΚαλημέραनमस्तेสวัสดีამოდიბარև"
EMOJI = ["🙂", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇯🇵", "❤️", "🧑🏿‍🚀", "☕", "🤷‍♀️", "1️⃣", "🫠"]
CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n}",
    "#include <vector>\r\nint main() { return 0; }\r\n",
    "let v: Vec<Option<&'a str>> = vec![None; 10];",
    'print(f"{x!r:>10}\\n")',
    "SELECT * FROM t WHERE a <> 'b' AND c >= 1.5e-3;",
    "<div class=\"a\"><table><tr><td>1</td></tr></table><h1>x</h1></div>",
    "if [ -z \"$X\" ]; then echo ${Y:-0} | sed 's/a/b/g'; fi",
    "{\"k\": [1, 2.0, null, true], \"é\": \"\\u00e9\"}",
]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>",
           "<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "<|im_start|", "<|im_end |>", "[INST]", "<start_of_image>",
           "<unused1>", "<unused10>", "<unused100>", "<|file_sep|>", "<file_sep>", "<repo_name>", "<mask>", "<b>"]
URLS = ["https://example.org/a/b?c=1&d=%20#frag", "user.name+tag@mail.example.co.uk", "C:\\Temp\\x.txt",
        "/usr/local/lib/python3.12/", "ftp://[::1]:21/"]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "—", "“", "”", "‘", "’", "«", "»", "、", "。", "！", "…", "€", "±"]
CONTROL = [chr(c) for c in range(1, 32)] + ["\x7f", "\x85", "\xa0", "\xad", "\u200b", "\u200d", "\u2028", "\ufeff",
                                             "\u3000", "\ufffd", "\u202e", "\U000e0001", "\U0010ffff", "\ue000", SPACE]
SPACES = [" ", "  ", "   ", "\t", "\t\t", " \t ", "\n", "\n\n", "\n\n\n", " \n", "\n ", "\r\n", " " * 7, " " * 33,
          "\n" * 35, "\t" * 34]


class Rng:
    """Python's generator, used only where it is the same in every version."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def below(self, n):
        return int(self.random() * n)

    def pick(self, items):
        return items[self.below(len(items))]

    def run(self, items, low, high):
        return "".join(self.pick(items) for _ in range(low + self.below(high - low + 1)))


def words(r):
    out = []
    for _ in range(2 + r.below(8)):
        word = r.pick(WORDS)
        kind = r.below(12)
        word = word.capitalize() if kind == 0 else word + r.pick(PUNCT) if kind == 1 else word
        out.append(word)
    return " ".join(out)


def number(r):
    digits = "0123456789"
    plain = r.run(digits, 1, 12)
    return r.pick([plain, "-" + plain, plain + "." + r.run(digits, 1, 6), "1,234,567.89", "3½", "x²", "Ⅻ", "٣٤٥",
                   "12:34:56", "2026-02-29", "1e-10", "0xDEADbeef", "一百", "१२३"])


def accents(r):
    text = r.pick(["Ångström Crème brûlée", "Việt Nam phở", "ÀÉÎÕÜ ñ ç ß", "ǅ ŉ ﬁ ﬂ", "Zürich–Straße"])
    return unicodedata.normalize(r.pick(["NFC", "NFD", "NFKD"]), text)


def piece(r):
    make = [
        lambda: words(r), lambda: words(r), lambda: number(r), lambda: r.run(EMOJI, 1, 4),
        lambda: r.run(CJK, 1, 12), lambda: r.run(KANA, 1, 12), lambda: r.run(HANGUL, 1, 10),
        lambda: r.pick(RTL.split()), lambda: r.run(OTHER, 1, 12), lambda: r.pick(CODE), lambda: accents(r),
        lambda: r.pick(SPECIAL), lambda: r.pick(URLS), lambda: r.run(PUNCT, 1, 6), lambda: r.run(CONTROL, 1, 3),
        lambda: r.run(SPACES, 1, 3), lambda: chr(0x20 + r.below(0x3000)), lambda: r.run("ab", 1, 40),
    ]
    return r.pick(make)()


def mixed_lines(n, seed):
    r = Rng(seed)
    lines = []
    while len(lines) < n:
        parts = [piece(r) for _ in range(1 + r.below(5))]
        line = r.pick(["", " "]).join(parts)
        line = r.pick(["", "", "", " ", "  "]) + line + r.pick(["", "", "", " ", "  "])
        lines.append(line)
    return lines


# ---------------------------------------------------------------- storage

def write_json(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (DATA / name).write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {len(text.encode())} bytes")


def write_lines(name, values):
    text = "".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) + "\n" for v in values)
    (DATA / name).write_text(text, encoding="utf-8")
    print(f"{name}: {len(text.encode())} bytes")


def write_ids(name, lists):
    """Per list: its length, then the ids, all as LEB128."""
    out = bytearray()

    def put(n):
        while n >= 0x80:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)

    for ids in lists:
        put(len(ids))
        for i in ids:
            put(i)
    (DATA / name).write_bytes(bytes(out))
    print(f"{name}: {len(out)} bytes")


# ---------------------------------------------------------------- references

def gguf_fields(path):
    from gguf import GGUFReader
    return {key: field.contents() for key, field in GGUFReader(str(path)).fields.items()}


def smollm2_reference(path):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    # Ids that a public port of this model states for its self-check.
    assert backend.encode("Hello world! 123", add_special_tokens=False).ids == [19556, 905, 17, 216, 33, 34, 35]

    def encode(text, parse_special):
        backend.encode_special_tokens = not parse_special
        return backend.encode(text, add_special_tokens=False).ids
    return encode


def id_sum(ids):
    """FNV-1a of the ids, 32 bits little-endian each."""
    value = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def write_sums(name, lines, encoders):
    """The sum of the ids of each line, of one encoder after the other."""
    sums = [id_sum(encode(line)) for encode in encoders for line in lines]
    (DATA / name).write_bytes(struct.pack(f"<{len(sums)}I", *sums))


def sentencepiece_of(pieces, scores, types, prefix):
    """A sentencepiece model with these pieces."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb
    model = pb.ModelProto()
    for text, score, kind in zip(pieces, scores, types):
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.model_type = pb.TrainerSpec.BPE
    model.trainer_spec.vocab_size = len(pieces)
    model.trainer_spec.byte_fallback = 6 in types
    model.trainer_spec.unk_id = types.index(2)
    model.trainer_spec.unk_piece = pieces[types.index(2)]
    model.trainer_spec.bos_id = model.trainer_spec.eos_id = model.trainer_spec.pad_id = -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def with_control(encode, control):
    """`encode` on the text between control tokens: the longest at each place, from the left."""
    ids = dict(control)
    pattern = re.compile("|".join(re.escape(t) for t in sorted(ids, key=len, reverse=True)))

    def encode_special(text, parse_special):
        if not parse_special:
            return encode(text)
        out, start = [], 0
        for match in pattern.finditer(text):
            out += encode(text[start:match.start()]) + [ids[match.group()]]
            start = match.end()
        return out + encode(text[start:])
    return encode_special


def gemma_reference(fields):
    types = list(fields["tokenizer.ggml.token_type"])
    control = [(t, i) for i, t in enumerate(fields["tokenizer.ggml.tokens"]) if types[i] == 3]
    # The file spells user-defined runs of spaces with spaces; sentencepiece has U+2581 there. It marks <unk>
    # as control; sentencepiece wants exactly one unknown piece.
    pieces = [t.replace(" ", SPACE) for t in fields["tokenizer.ggml.tokens"]]
    types[fields["tokenizer.ggml.unknown_token_id"]] = 2
    sp = sentencepiece_of(pieces, fields["tokenizer.ggml.scores"], types, prefix=False)
    return with_control(lambda text: sp.encode(text), control)


def compare_gemma_with_transformers(path, lines, expected):
    """For the record: where the tokenizer that transformers makes of the file differs."""
    from transformers import AutoTokenizer
    backend = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).backend_tokenizer
    differ = [line for line, ids in zip(lines, expected)
              if backend.encode(line, add_special_tokens=False).ids != ids]
    runs = [line for line in differ if " " * 32 in line.replace(SPACE, " ")]
    print(f"transformers differs from sentencepiece on {len(differ)} lines, {len(runs)} with runs of > 31 spaces")
    for line in [line for line in differ if line not in runs][:10]:
        print("   ", repr(line))


def file_goldens(name, lines, encode):
    special = [encode(line, True) for line in lines]
    plain = [encode(line, False) for line in lines]
    write_ids(f"{name}.ids", special)
    write_json(f"{name}.plain.json", {str(i): p for i, (s, p) in enumerate(zip(special, plain)) if s != p})
    return special


# ---------------------------------------------------------------- small tokenizers

def small_sentencepiece(lines):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    def train(**options):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, model_type="bpe", normalization_rule_name="identity",
            remove_extra_whitespaces=False, character_coverage=0.98, bos_id=1, eos_id=2, unk_id=0, minloglevel=2,
            num_threads=1, **options)
        proto = pb.ModelProto()
        proto.ParseFromString(out.getvalue())
        return [p.piece for p in proto.pieces], [p.score for p in proto.pieces], [p.type for p in proto.pieces]

    def case(name, model, text, prefix):
        pieces, scores, types = model
        sp = sentencepiece_of(pieces, scores, types, prefix)
        control = [(t, i) for i, t in enumerate(pieces) if types[i] == 3]
        encode = with_control(lambda t: sp.encode(t), control)
        encoders.append(lambda t: encode(t, False))
        return {"name": name, "tokens": [t.replace(SPACE, " ") if k == 4 else t for t, k in zip(pieces, types)],
                "scores": scores, "token_types": types, "unk": types.index(2), "bos": 1, "eos": 2,
                "add_space_prefix": prefix, "lines": text,
                "ids": [encode(t, True) for t in text], "plain": [encode(t, False) for t in text]}

    gemma_like = train(vocab_size=1700, byte_fallback=True,
                       user_defined_symbols=["\n", "\n\n", "\n\n\n", SPACE * 2, SPACE * 3, "<b>", "<table>", "ab"])
    llama_like = train(vocab_size=1600, byte_fallback=True)
    pieces, scores, types = llama_like
    unused = [5 if t == 1 and i % 7 == 0 and len(pieces[i]) > 2 else t for i, t in enumerate(types)]
    no_bytes = train(vocab_size=1400)
    text, encoders = lines[:160], []
    cases = [case("gemma_like", gemma_like, text, False), case("llama_like", llama_like, text, True),
             case("unused", (pieces, scores, unused), text, True), case("no_bytes", no_bytes, text, False)]
    write_sums("sentencepiece.sums", lines, encoders)
    return cases


def small_byte_level(lines):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import trainers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = byte_level
    trained.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"]))
    model = json.loads(trained.to_str())["model"]
    # A token that no merge makes: only a tokenizer that ignores merges for whole words finds it.
    vocab = dict(model["vocab"], zebrafish=len(model["vocab"]))
    merges = [tuple(m) for m in model["merges"]]
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1])]
    text = lines[160:300] + ["zebrafish zebrafish", "it'S I'LL 1234567 ½²", "cafe\u0301 e\u0301"]
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])

    def split(name):
        return pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def make(pre, nfc=False, ignore_merges=False):
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre
        tokenizer.decoder = decoders.ByteLevel()
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens[:4]])
        return tokenizer

    rules = {"gpt-2": make(byte_level), "smollm": make(digits), "command-r": make(digits, nfc=True),
             "llama-bpe": make(split("llama-bpe"), ignore_merges=True), "smaug-bpe": make(split("smaug-bpe")),
             "qwen2": make(split("qwen2"), nfc=True), "tekken": make(split("tekken"), ignore_merges=True),
             "gpt-4o": make(split("gpt-4o")), "qwen35": make(split("qwen35"), nfc=True)}
    ids = {name: [t.encode(line).ids for line in text] for name, t in rules.items()}
    write_sums("byte_level.sums", lines, [lambda t, e=rules[name]: e.encode(t).ids for name in sorted(rules)])
    with_json = rules["llama-bpe"]
    with_json.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    with_json.enable_truncation(4)
    with_json.enable_padding(length=8)
    (DATA / "byte_level.tokenizer.json").write_text(with_json.to_str() + "\n", encoding="utf-8")
    return {"tokens": tokens, "token_types": [3 if i < 4 else 1 for i in range(len(tokens))],
            "merges": [" ".join(m) for m in merges], "lines": text, "ids": ids}


def small_gemma4(lines):
    """Tokens and merges as Gemma has them, and ids of its class in transformers."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import GemmaTokenizer
    marked = [line.replace(" ", SPACE) for line in lines]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>"]
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator(marked, trainers.BpeTrainer(vocab_size=1300, show_progress=False, limit_alphabet=300))
    model = json.loads(trained.to_str())["model"]
    # The texts have "<bos>" so often that it is a word too.
    words = [token for token in model["vocab"] if token not in specials]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "<b>", *words]
    assert len(set(tokens)) == len(tokens)
    merges = [tuple(m) for m in model["merges"]]
    reference = GemmaTokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    reference.add_tokens(specials[5:], special_tokens=True)
    reference.add_tokens(["<b>"])
    text = lines[300:420] + ["<b>bold<b> <|turn>user\nhi<turn|>\n", "  two  spaces\n\n", "\U0001f600 \u0e01"]
    write_sums("gemma4.sums", lines, [lambda t: reference.encode(t, add_special_tokens=False)])
    return {"tokens": tokens, "merges": [" ".join(m) for m in merges], "lines": text,
            "token_types": [3 if i < 7 else 6 if i < 263 else 4 if i == 263 else 1 for i in range(len(tokens))],
            "ids": [reference.encode(line, add_special_tokens=False) for line in text],
            "decoded": [reference.decode(reference.encode(line, add_special_tokens=False)) for line in text]}


def small_json_sentencepiece(case):
    """The tokenizer.json that Hugging Face makes of a SentencePiece model with a space prefix."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers.tokenization_utils_base import generate_merges
    vocab = {t: i for i, t in enumerate(case["tokens"])}
    scores = {t: case["scores"][i] for t, i in vocab.items() if case["token_types"][i] == 1}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=generate_merges(vocab, scores), unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    (DATA / "sentencepiece.tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    text = case["lines"]
    ids = [tokenizer.encode(t).ids for t in text]
    return {"lines": text, "ids": ids, "decoded": [tokenizer.decode(i, skip_special_tokens=True) for i in ids]}


# ---------------------------------------------------------------- control tokens in messages

# Parts in brackets come with messages.
CONTROL_CHATS = [
    "<s>user\n[the sea]</s>\n<s>bot", "<s>user\n[the </s> sea]</s>\n<s>bot", "<s>[<s>sea</s>]</s>\nthe sea",
    "user: [the </s>]</s>bot: [sea]</s>", "user: [<s> the  ]</s> [ sea <s>]  </s>the", "<s>[  <s>sea]</s>[\n</s>the\n]</s>",
    "<s>[ \n the ]</s>[ sea ]</s>",
]
UNKNOWN_CHATS = ["<s>user\n[the \u2605 sea]</s>\n<s>bot", "the [\u2605]</s>\u2605 the"]


def control_tokenizers():
    """Tokenizers by what they ask of the text around a control token: which word is the first, and which spaces go."""
    import string
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    letters = ["<unk>", "<s>", "</s>", SPACE, "\n", *string.ascii_lowercase, *"</>:", " "]
    vocab = {t: i for i, t in enumerate([*letters, "th", "the", SPACE + "the", "se", "sea", SPACE + "sea"])}
    merges = [("t", "h"), ("th", "e"), (SPACE, "the"), ("s", "e"), ("se", "a"), (SPACE, "sea")]
    # No text of the Unigram model spells a control token.
    pieces = [(t, -50.0 if t in letters[:3] else -4.0 if len(t) == 1 else -2.0) for t in vocab]
    bpe = lambda: Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True))
    unigram = lambda: Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    for name, make, scheme, properties in (
        ("first", bpe, "first", {}), ("never", bpe, "never", {}), ("unigram", unigram, "first", {}),
        ("lstrip", bpe, "first", {"lstrip": True}), ("rstrip", bpe, "first", {"rstrip": True}),
        ("both", bpe, "never", {"lstrip": True, "rstrip": True}),
    ):
        tokenizer = make()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
        tokenizer.add_special_tokens(
            [AddedToken(t, special=True, normalized=False, **(properties if t == "</s>" else {})) for t in ("<unk>", "<s>", "</s>")])
        yield name, tokenizer


def control_goldens():
    from transformers import PreTrainedTokenizerFast
    found = []
    for name, tokenizer in control_tokenizers():
        # No key names the unknown token.
        reference = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
        ids = []
        for chat in (chats := CONTROL_CHATS + (UNKNOWN_CHATS if name == "unigram" else [])):
            parts = re.split(r"[\[\]]", chat)
            template = "".join("{{ messages[%d].content }}" % (i // 2) if i % 2 else part for i, part in enumerate(parts))
            messages = [{"role": "user", "content": part} for part in parts[1::2]]
            ids.append(reference.apply_chat_template(
                messages, chat_template=template, sanitize_control_tokens=True, return_dict=True)["input_ids"])
        found.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "chats": chats, "ids": ids})
    return found


# ---------------------------------------------------------------- chat templates

LLAMA3_LIKE = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content | tojson + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA_LIKE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate: " ~ message['role']) }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

THINKING_LIKE = """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and reasoning is defined and reasoning %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

FEATURES = """{# a comment #}
{% macro turn(role, text='') %}
[{{ role | upper }}] {{ text }}
{% endmacro %}
{% set ns = namespace(n=0) %}
{% for m in messages if m.role != 'system' %}
  {% set ns.n = ns.n + 1 %}
  {{ turn(m.role, m.content) -}}
  {% if loop.last %}last of {{ loop.length }}{% elif not loop.first %}{{ loop.index }}{% endif %}

    {%- if m.content.split(' ')|length > 3 %}{% break %}{% endif %}
{% else %}
nothing
{% endfor %}
{{ ns.n }} {{ add_generation_prompt }} {{ tools }} {{ missing }} {{ messages[-1].get('content', 'x')[:3] }}
{{ messages[0] | tojson }} {{ {'a': [1, 2.5, none, true], 'b<': 'é"'} | tojson }}
{{ ['x', 'y'] | join('+') }} {{ 'a,b'.replace(',', ';').title() }} {{ messages | map(attribute='role') | list | tojson }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 7 // 2 }} {{ 7 % 2 }} {{ 'ab' * 2 }} {{ "%s" | format('q') }}
{{ messages[0].role in ['user', 'system'] }} {{ (messages | first).role ~ 1 }} {{ [1, 2, 3][1:] | sum }} {{ 'x' if tools else 'y' }}
{{ {'a': 1}.items() | list | tojson }} {{ "  pad " | trim }}|{{ messages | length > 1 and not tools }}
"""

GENERATION = """{% for m in messages %}
{% if m.role == 'assistant' %}
A: {% generation %}{{ m.content }}{% endgeneration %}

{%- generation -%}   !   {%- endgeneration %}

{% else %}
U: {{ m.content }}
{% endif %}
{% endfor %}"""


def chat_goldens(smollm2_template):
    import datetime
    from transformers.utils.chat_template_utils import _compile_jinja_template
    # 2026-02-03 04:05:06 UTC
    now = 1770091506
    clock = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
    user, answer = {"role": "user", "content": " Hi <b>\"you\"</b> é\n"}, {"role": "assistant", "content": "Hello!"}
    system = {"role": "system", "content": "Be brief. "}
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}
    tool = {"role": "tool", "content": "{\"a\": 1}"}
    long = {"role": "user", "content": "one two three four five"}
    talks = [[user], [system, user], [user, answer, user], [system, user, answer, long, thought], [user, user],
             [user, thought], [user, tool, long, answer]]
    cases = []
    templates = {"llama3": LLAMA3_LIKE, "gemma": GEMMA_LIKE, "thinking": THINKING_LIKE, "features": FEATURES,
                 "generation": GENERATION}
    if smollm2_template:
        templates = {"smollm2": smollm2_template, **templates}
    for name, source in templates.items():
        template = _compile_jinja_template(source)
        for talk in talks:
            for prompt in (False, True):
                case = {"name": name, "messages": talk, "add_generation_prompt": prompt}
                try:
                    case["text"] = template.render(
                        messages=talk, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>", tools=None,
                        documents=None, strftime_now=lambda f: clock.strftime(f))
                except Exception as error:  # a template that refuses
                    case["error"] = str(error)
                cases.append(case)
    return {"now": now, "templates": templates, "cases": cases}


# ---------------------------------------------------------------- tools

# How templates of families with tools are written: JSON of tools, calls in a loop, results in turns of their own.
TOOLS_JSON = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n<tool_call>\n{\"name\": <f>, \"arguments\": <a>}\n</tool_call><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response id="' + message.tool_call_id + '">\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
TOOLS_BRACES = r"""{%- macro argument(value) -%}
    {%- if value is string -%}<escape>{{ value }}<escape>
    {%- elif value is boolean -%}{{ 'true' if value else 'false' }}
    {%- elif value is mapping -%}{ {%- for k, v in value | dictsort %}{{ k }}:{{ argument(v) }}{{ ',' if not loop.last }}{% endfor -%} }
    {%- elif value is sequence -%}[{%- for v in value %}{{ argument(v) }}{{ ',' if not loop.last }}{% endfor -%}]
    {%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{{ bos_token }}{% for tool in tools or [] %}{% set f = tool['function'] %}declaration:{{ f['name'] }}
{%- for name, p in f['parameters']['properties'] | dictsort %} {{ name }}:{{ p['type'] | upper }}{{ p }}{% endfor %}
{% endfor %}{% for m in messages %}{{ m['role'] }}:{{ m['content'] | trim }}
{%- for c in m.get('tool_calls') or [] %}call:{{ c['function']['name'] }}{{ argument(c['function']['arguments']) }}{{ c.id }}{% endfor %}
{% endfor %}{{ depth | default('none') }}{{ extra | tojson(indent=2) if extra is defined }}"""


def tool_goldens():
    from transformers.utils.chat_template_utils import _compile_jinja_template
    tools = [{"type": "function", "function": {
        "name": "get_weather", "description": "It's \"hot\" or <cold>: \u00e9", "strict": None, "parameters": {
            "type": "object", "required": ["city"], "properties": {
                "days": {"type": "integer", "minimum": -1.5, "default": 3},
                "city": {"type": "string", "enum": ["Paris", "R\u00f6m"]}}}}}]
    arguments = {"city": "Paris <|im_end|>", "days": 3, "deep": {"b": [1, -2.5, True, None], "a": {}}, "t": 1e20}
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    user = {"role": "user", "content": "Rain?"}
    asks = {"role": "assistant", "content": "", "reasoning_content": "\nhm\n", "tool_calls": [call, call]}
    result = {"role": "tool", "content": "{\"rain\": true}", "tool_call_id": "call_1"}
    talks = [[user], [{"role": "system", "content": "Be brief."}, user], [user, asks, result],
             [user, asks, result, {**result, "tool_call_id": "call_2"}, {"role": "assistant", "content": "Yes"}, user]]
    cases = []
    templates = {"json": TOOLS_JSON, "braces": TOOLS_BRACES}
    variants = [([], {}), (tools, {}), (tools, {"enable_thinking": False}),
                (tools * 2, {"enable_thinking": True, "depth": 3, "extra": {"a": ["x", 1], "b": None}})]
    for name, source in templates.items():
        template = _compile_jinja_template(source)
        for talk in talks:
            for given, variables in variants:
                text = template.render(messages=talk, add_generation_prompt=True, bos_token="<s>", eos_token="</s>",
                                       tools=given or None, documents=None, **variables)
                cases.append({"name": name, "messages": talk, "tools": given, "variables": variables, "text": text})
    return {"templates": templates, "cases": cases}


# ---------------------------------------------------------------- Jinja

# Each line is a template; what jinja2 refuses is to be refused.
JINJA = r"""
{{ 1 }} {{ 1.0 }} {{ 1e20 }} {{ 1.5e-7 }} {{ -0.0 }} {{ 1/3 }} {{ 10/2 }} {{ 1e16 }} {{ 123456789.0 }} {{ 1_000 }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ -2 ** 2 }}
{{ (-2) | abs }} {{ -2|abs }} {{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}
{{ true + 1 }} {{ true and 0 }} {{ 0 or 'x' }} {{ not 0 }} {{ not not 1 }} {{ '' or none }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' in 'abc' }} {{ 3 not in [1, 2] }}
{{ 1 if 0 else 2 }} {{ 1 if 0 }}| {{ 1 if 1 else 2 if 1 else 3 }}
{{ 'x' in {'x': 1} }} {{ 1 in (1, 2) }} {{ none is none }} {{ none == none }} {{ undefined_thing == none }}
{{ [1, 'a', none, true, 1.5, [2], (1,), (1, 2), {}, {'k': 'v'}] }} {{ () }} {{ [] }} {{ {} }}
{{ "it's" }} {{ ["it's", 'a"b', 'n\nl', 'back\\slash', "both'\""] }}
{{ 'a\tb\x41\u00e9\\n' }} {{ "q\"q" }} {{ 'q\'q' }} {{ '\d' }}
{{ 'a' 'b' "c" }} {{ 'abc'[0] }} {{ 'abc'[-1] }} {{ 'abc'[5] }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[::2] }} {{ 'abcdef'[-3:] }} {{ 'abcdef'[:-2] }} {{ 'héllo'[1:3] }}
{{ [1,2,3,4][1:] }} {{ [1,2,3,4][:-1] }} {{ [1,2,3,4][::-1] }} {{ [1,2,3,4][-2:] }} {{ [1,2,3][10:] }} {{ [1,2,3][3:0:-1] }} {{ (1,2,3)[1:] }}
{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].role }} {{ messages[7] }}| {{ messages[0].nope }}| {{ messages[0]['nope'] }}|
{{ messages[0].nope.deeper }}
{{ nope.deeper }}
{{ nope }}| {{ nope is defined }} {{ nope is undefined }} {{ nope or 'x' }} {{ nope | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ nope | d }}|
{{ nope + 1 }}
{{ nope() }}
{{ 1() }}
{{ nope | length }} {{ nope | list }} {{ nope | join }}| {% for x in nope %}x{% else %}none{% endfor %}
{% for x in 5 %}{% endfor %}
{{ 'abc' | upper }} {{ 'ABC' | lower }} {{ 'hello world' | title }} {{ 'hELLO wORLD' | capitalize }} {{ "they're bill's" | title }}
{{ '  x y ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 'a b c' | replace('b', 'X') }} {{ 'aaaa' | replace('a', 'b', 2) }} {{ 'abc' | reverse }} {{ [1,2,3] | reverse | list }}
{{ [3,1,2] | sort }} {{ [3,1,2] | sort(reverse=true) }} {{ ['b','A','c'] | sort }} {{ ['b','A','c'] | sort(case_sensitive=true) }} {{ [{'n': 2}, {'n': 1}] | sort(attribute='n') }}
{{ [1,2,3] | sum }} {{ [1,2,3] | first }} {{ [1,2,3] | last }} {{ [] | first }}| {{ [3,1,2] | min }} {{ [3,1,2] | max }} {{ [1,2,2,1] | unique | list }} {{ 'abc' | first }} {{ 'abc' | last }}
{{ ['a','b'] | join }} {{ ['a','b'] | join(', ') }} {{ [1,2] | join('-') }} {{ messages | join(', ', attribute='role') }}
{{ messages | map(attribute='role') | list }} {{ ['a','b'] | map('upper') | list }} {{ [1,2] | map('string') | join }} {{ messages | map(attribute='x', default='d') | list }}
{{ [1,2,3,4] | select('even') | list }} {{ [1,2,3,4] | reject('even') | list }} {{ [0,1,''] | select | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }} {{ messages | selectattr('role') | list | length }} {{ [1,5] | select('>', 2) | list }} {{ [1,5] | select('gt', 2) | list }}
{{ [1,2,3,4,5] | batch(2) | list }} {{ [1,2,3,4,5] | batch(2, 0) | list }} {{ [1,2,3,4,5] | slice(3) | list }} {{ [1,2,3,4,5] | slice(3, 'x') | list }}
{{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | items | list }} {{ {'b': 1, 'a': 2}.items() | list }} {{ {'b': 1}.keys() | list }} {{ {'b': 1}.values() | list }} {{ {'b': 1}.get('b') }} {{ {'b': 1}.get('c') }} {{ {'b': 1}.get('c', 5) }}
{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %} {% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %} {% for k, v in {'x': 1} | items %}{{ k }}{{ v }}{% endfor %}
{{ [{'t': 1, 'n': 'a'}, {'t': 2, 'n': 'b'}, {'t': 1, 'n': 'c'}] | groupby('t') }}
{{ [{'t': 'B'}, {'t': 'a'}, {'t': 'b'}, {}] | groupby('t', default='C') }} {{ [{'t': 'B'}, {'t': 'b'}] | groupby('t', case_sensitive=true) }}
{% for g in [{'t': 'B'}, {'t': 'b'}] | groupby('t') %}{{ g.grouper }}{{ g.list | length }}{{ g[0] }}{% endfor %} {{ [{'x': 1}] | map(attribute='y', default=none) | list }}
{{ ['a\u00a0b\u3000c\u200b\u2028d\u00ade', 'x\U0001f600\ue000\U000e0001', 'é語٣'] }} {{ {'k\u00a0': 'v'} }}
{{ messages[0] | tojson(true) }} {{ ['é'] | tojson(true, 1) }} {{ ['é'] | tojson(false, none, (',', ':')) }} {{ {'b': 1, 'a': 2} | tojson(false, none, none, true) }}
{{ 'ΟΔΟΣ ΣΑΣ Σ' | lower }} {{ 'ΣΑΣ' | capitalize }} {{ 'ΟΔΟΣ ΣΑΣ' | title }} {{ 'ΟΔΟΣ ΣΑΣ'.title() }} {{ 'Straße ﬁ İI' | lower }} {{ 'Straße ﬁς'.casefold() }}
{{ 'ﬁx ǆa ßs ნა ᾳω ᾀω' | title }} {{ 'ﬁx ǆa ßs ნა ᾳω ᾀω'.title() }} {{ 'ﬁX' | capitalize }} {{ 'ǆA'.capitalize() }} {{ 'ßa' | capitalize }} {{ "o'neill x1y 2nd".title() }}
{{ dict([('a', 1), ['b', 2]], c=3) }} {{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1} | items | list }} {{ {'a': 1}.items() | list }}
{{ dict([1]) }}
{{ [messages[0] | attr('role'), 'x' | attr('nope')] | length }}{{ messages[0] | attr('role') }}|
{{ '%r %s' | format('a', 'b') }} {{ '%r' % 'x' }} {{ '%05d|%-05d|%+05d' % (-3, 4, 5) }} {{ '{:+}|{:+}|{:05d}|{:05}|{:+06.1f}|{:<05d}|{:x>5}'.format(5, -5, -3, -3, 2.5, 7, 8) }}
{{ '{:.3}|{:.3}|{:.3}|{:.3}|{:.1}|{:.3}|{:.3}'.format(3.14159, 31.4159, 314.159, 0.00001234, 2.5, 3.0, 'abcdef') }}
{{ '0x1A' | int(base=16) }} {{ '-0b11' | int(base=2) }} {{ '0o17' | int(base=8) }} {{ '１２' | int }} {{ '٣' | int }} {{ '0x' | int(base=16) }} {{ '0x1A' | int }}
{{ '-42'.zfill(5) }} {{ '+5'.zfill(4) }} {{ '-'.zfill(3) }} {{ 'ab'.center(5) }}| {{ 'abc'.center(6) }}| {{ 'abcd' | center(7) }}| {{ 'ab'.center(5, '-') }}
{{ '\101\12\0x' | tojson }} {{ 'a,b c_d' | wordcount }} {{ 'a\x1cb\x1fc'.split() }} {{ '\x1c \x1f'.isspace() }} {{ '\x1ca\x1f'.strip() }}
{{ 'a\u2028b\x0bc\r\nd\re' | indent(2) | tojson }} {{ 'a\n' | indent(2) | tojson }} {{ '' | indent(2, true) | tojson }} {{ 'a\n\n' | indent(2, blank=true) | tojson }}
{{ ['²', '٣', '①', '½', '12'] | map('string') | list }} {{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '٣'.isdecimal() }}{{ '½'.isdigit() }}{{ '½'.isnumeric() }}{{ '①'.isdigit() }}
{{ nope | int }}
{{ nope | float }}
{% do messages %}
{{ 'x' | int }} {{ '12' | int }} {{ '12.7' | int }} {{ 3.9 | int }} {{ '3.5' | float }} {{ 'x' | float }} {{ 'x' | int(7) }} {{ 'ff' | int(0, 16) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ 42 | string }} {{ -3 | abs }} {{ 7 | float }}
{{ 3 | round }} {{ 3 | round(1) }} {{ true | round(1) }} {{ 3 | round(none) }} {{ 2.5 | round(none) }} {{ 35 | round(-1) }} {{ 25 | round(-1) }} {{ (-25) | round(-1) }} {{ (-26) | round(-1) }} {{ 7 | round(-3) }} {{ 9 | round(-40) }} {{ 123456789012345678 | round(2) }}
{{ 3 | round(1, 'floor') }} {{ 3 | round(0, 'ceil') }} {{ 25 | round(-1, 'floor') }} {{ 25 | round(-1, 'ceil') }} {{ (-2.5) | round(method='floor') }} {{ true | round(1, 'ceil') }} {{ 2.345 | round(2, 'floor') }}
{{ 2.675 | round(2) }} {{ 0.125 | round(2) }} {{ 0.375 | round(2) }} {{ 1.005 | round(2) }} {{ 1e300 | round(1) }} {{ 1e-320 | round(330) }} {{ 0.1 | round(500) }} {{ 1234.5 | round(-2) }} {{ 250.0 | round(-2) }} {{ (-0.4) | round }} {{ 7.0 | round(-400) }} {{ 3.0 | round is float }} {{ 3 | round is integer }} {{ (3 | round(1)) / 2 }}
{{ 3 | round(1.0) }}
{{ '3' | round }}
{{ nope | round }}
{{ 3 | round(1, 'x') }}
{{ 3 | round(none, 'ceil') }}
{% set j = joiner() %}{{ j() }}|{{ j() }}|{{ j() }} {{ j.sep }}{{ j.used }}{{ j.nope }} {% set k = joiner(sep=5) %}{{ k.used }}{{ k() }}{{ k() }}{{ k.used }} {{ j is callable }} {{ j == j }} {{ j == k }} {{ joiner is defined }} {{ 'x' if j }}
{% set comma = joiner('; ') %}{% for m in messages %}{{ comma() }}{{ m.role }}{% if loop.first %}{{ comma() }}{% endif %}{% endfor %}
{% set c = cycler('a', 'b', [1]) %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.pos }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.next() }} {{ c.items }} {{ c is callable }} {{ c is iterable }} {{ c['next']() }} {{ c.nope is defined }} {% set d = c %}{{ d.next() }}{{ c.current }}
{% for m in messages %}{% set ns = namespace(c=cycler('x', 'y')) %}{{ ns.c.next() }}{{ ns.c.next() }}{{ ns.c.next() }}{% endfor %} {% macro m(c) %}{{ c.next() }}{% endmacro %}{% set c = cycler(1, 2) %}{{ m(c) }}{{ m(c) }}{{ m(c) }}
{{ cycler() }}
{{ cycler(a=1) }}
{{ joiner(1, 2) }}
{{ joiner()(1) }}
{{ cycler(1).next(1) }}
{{ cycler(1)() }}
{{ cycler(1) | tojson }}
{{ cycler(1) | length }}
{% for x in cycler(1) %}{% endfor %}
{{ 'abc' | length }} {{ [1,2] | length }} {{ {'a': 1} | length }} {{ 'é語' | length }} {{ 'a b  c' | wordcount }} {{ [1,2] | count }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2, true) }}| {{ 'a\n\nb' | indent(2, blank=true) }}| {{ 'a\nb' | indent('> ') }}| {{ 'a\nb' | indent(width=3, first=True) }}|
{{ "%s-%d-%05.2f-%5s|%-5s|" | format('a', 3, 1.234, 'x', 'y') }} {{ '%s' % 'x' }} {{ '%s %s' % ('a', 1) }} {{ '%%' % () }} {{ '%x %X %o %03d' % (255, 255, 8, 7) }}
{{ '{} {}'.format('a', 1) }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=1) }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}'.format('a', 'b', 'c', 42, 3.14159) }} {{ '{{}}'.format() }} {{ '{!r}'.format('x') }}
{{ 'abc' | center(9) }}| {{ 'abc'.center(8) }}| {{ 'abc'.ljust(5) }}| {{ 'abc'.rjust(5) }}| {{ '7'.zfill(3) }}
{{ '<a href="x">&\'' | escape }} {{ '<b>' | e }} {{ '<b>' | safe }}
{{ 'hello big world of words' | truncate(12) }} {{ 'hello big world of words' | truncate(12, true) }} {{ 'short' | truncate(12) }} {{ 'hello big world' | truncate(9, false, '!', 0) }}
{{ 'a,b,c'.split(',') }} {{ 'a b  c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c'.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }}
{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') }}
{{ '  x '.strip() }}| {{ '  x '.lstrip() }}| {{ '  x '.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ '\n\nx'.lstrip('\n') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removeprefix('x') }}
{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('c') }} {{ 'abcabc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcabc'.rfind('c') }} {{ 'aXbX'.count('X') }} {{ 'abc'.count('') }} {{ 'éa'.find('a') }} {{ 'abc'.index('b') }}
{{ 'abc'.upper() }} {{ 'ABC'.lower() }} {{ 'hello world'.title() }} {{ 'hello World'.capitalize() }} {{ 'aBc'.swapcase() }} {{ "it's a dog".title() }} {{ 'ß'.upper() }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'abc'.islower() }} {{ 'ABC'.isupper() }} {{ '1'.islower() }} {{ 'Abc Def'.istitle() }} {{ 'a'.isascii() }}
{{ 'aXbXc'.replace('X', '-') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '-') }} {{ '-'.join(['a', 'b']) }} {{ ''.join(messages | map(attribute='role')) }}
{{ 'abc'.nope() }}
{{ [1,2,1].count(1) }} {{ [1,2,1].index(2) }}
{{ [1].append(2) }}
{{ 3 is even }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 'x' is string }} {{ 1 is number }} {{ true is boolean }} {{ true is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ {} is mapping }} {{ [] is sequence }} {{ 'x' is iterable }} {{ 1 is iterable }} {{ 'x' is sequence }} {{ none is none }} {{ 1 is not none }} {{ range is callable }} {{ true is true }} {{ 1 is true }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is sameas 1 }} {{ true is sameas true }} {{ 1 is eq 1 }} {{ 1 is in [1] }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'even' is test }}
{{ 1 is defined and 2 is defined }} {{ x is not defined or false }} {{ messages is defined and messages[0].role is string }} {{ not x is defined }}
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }}
{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ {'a': 1}['a'] }} {{ {'a': {'b': 2}}.a.b }} {{ {1: 'x'}[1] }} {{ {'items': 3}['items'] }}
{{ [1,2] + [3] }} {{ [0] * 3 }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ (1,) + (2,) }}
{{ [1] + 'a' }}
{{ 'a' + 1 }}
{{ 1 / 0 }}
{{ 'a' < 1 }}
{{ 'x' | nope }}
{{ 1 is nope }}
{% set a = 1 %}{{ a }}{% set a, b = 2, 3 %}{{ a }}{{ b }}{% set (c, d) = [4, 5] %}{{ c }}{{ d }}
{% set a, b = [1, 2, 3] %}
{% set x %}hello {{ 1 + 1 }}{% endset %}[{{ x }}]{% set y | upper %}abc{% endset %}{{ y }}
{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|
{% set ns = namespace({'q': 3}) %}{{ ns.q }}
{% set x = 1 %}{% set x.y = 2 %}
{% for i in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}{% for i in [1,2,3] %}{{ loop.cycle('a', 'b') }}{% endfor %}{% for i in [1,1,2] %}{{ loop.changed(i) }}{% endfor %}
{% for i in [1,2,3,4] if i is even %}{{ i }}/{{ loop.length }} {% endfor %}{% for i in [] %}x{% else %}empty{% endfor %}
{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }} {% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% set x = 0 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% for i in [1] %}{% for j in [1,2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}{{ loop is defined }}
{% for x in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ x.n }}:{{ loop.depth }}[{{ loop(x.c) }}]{% endfor %}
{% for x in 'abc' %}{{ x }}-{% endfor %}{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2, 3 %}{{ x }}{% endfor %}
{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}{% if none %}a{% else %}d{% endif %}{% if 1 %}{% set z = 5 %}{% endif %}{{ z }}
{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 2) }} {{ m(1, c=3) }} {{ m(b=1, a=2) }} {{ m() }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}hi{% endcall %}
{% macro m() %}[{{ caller('x') }}]{% endmacro %}{% call(a) m() %}hi {{ a }}{% endcall %}
{% set g = 'G' %}{% macro m() %}{{ g }}{% set g2 = 1 %}{% endmacro %}{{ m() }}{{ g2 }}|
{% macro a(n) %}{% if n > 0 %}{{ n }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(3) }} {{ a(2) | length }}
{% macro m(x) %}{% for i in x %}{{ loop.index }}{{ i }}{% endfor %}{% endmacro %}{{ m('ab') }}
{% filter upper %}abc {{ 'd' }}{% endfilter %}{% filter replace('a', 'b') | upper %}aaa{% endfilter %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}|{% with %}{% set q = 1 %}{{ q }}{% endwith %}
{% raw %}{{ x }} {% if %}{% endraw %}| {% raw -%}  y {%- endraw %}|
a {%- if 1 -%}  b  {%- endif -%} c
a {{- 1 -}} b {{ 2 }} c
  {% if 1 %}  
  x
  {% endif %}
 y
  {%+ if 1 %}x{% endif +%}
 z
{{ 'a' -}}   
  b
  {# c #}  
  {{ 1 }}
{% for i in [1,2] %}
  {{ i }}
{% endfor %}
end
{%- set x = 1 %}
{{ x }}

{{ messages[0].content }}|{{ messages[0]['content'] | trim }}|{{ messages[0] | tojson }}|{{ messages | tojson(indent=2) }}
{{ {'a': [1, 2.5, none, true, 'é<"\n'], 'b': {}, 'c': []} | tojson }} {{ {'b': 1, 'a': [1]} | tojson(indent=4) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ 'é\u2028' | tojson(ensure_ascii=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }} {{ (1, 2) | tojson }} {{ 1e20 | tojson }} {{ 'x' | tojson }}
{{ messages[0].items() | list | length }} {{ messages[0].keys() | list }} {{ 'role' in messages[0] }} {{ messages[0] is mapping }} {{ messages is iterable and messages is not string and messages is not mapping }}
{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}{{ tools }}{{ documents }}{{ tools is none }} {{ tools is defined }}
{{ raise_exception('no') }}
{{ 1, 2 }} {{ (1, 2)[0] }} {{ (1) }} {{ (1,) }}
{{ messages[0]['content'].split('\n')[-1].strip() }} {{ (messages[0]['content'] | trim).split(' ')[0] }} {{ (messages | first).role }} {{ (messages | selectattr('role', 'equalto', 'assistant') | first).content }}
{{ not 1 == 2 }} {{ 1 in [1] and 2 in [2] }} {{ not 'a' in 'b' }} {{ 1 not in [1] or true }}
{{ '' ~ [1, 'a'] }} {{ [1] ~ {} }} {{ 'x' ~ nope ~ 'y' }}
{{ messages[0].content is string and messages[0].content | length > 3 }} {{ 5 - 3 - 1 }} {{ 2 * 3 % 4 }} {{ 10 - 2 ~ 'a' }}
{{ {'a': 1, 'b': 2, 'a': 3} }} {{ [none, none] | tojson }} {{ 'a"b' | tojson }} {{ true | tojson }} {{ none | tojson }}
{{ "a" if messages | length > 1 else "b" }} {{ ("a" if false else "b") ~ "c" }} {{ 'x' if nope is defined else 'y' }}
{{ messages[1:] | length }} {{ messages[::-1][0].role }} {{ messages[:1][0]['role'] }}
{% if
{{ 'unclosed }}
{{ 1 + }}
{% endif %}
{% for x in %}{% endfor %}
{% if 1 %}
{{ [1, 2 }}
{{ (1 }}
{% nope %}
{{ a b }}
{{ 1 | }}
{{ }}
{{ {'a' 1} }}
{% set = 1 %}
{% set true = 1 %}
{% macro %}{% endmacro %}
{% break %}
{{ '%s %s' % 'x' }}
{{ '%s' % ('x', 'y') }}
{{ 'x' | replace('x') }}
{{ [3, 'a'] | sort }}
{{ 'abc' | select('nope') | list }}
{{ [] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ messages | sum(attribute='x') if false }}
{{ 'a' is in 'abc' }} {{ 5 is lt 6 }} {{ 5 is ge(5) }} {{ 'x' is ne 'y' }}
{{ [('b', 1), ('a', 2)] | sort }} {{ {'x': [1, 2]}.x[1] }} {{ {'x': [1, 2]}['x'][0] }} {{ [[1, 2], [3]][0][1] }}
{{ [1, 2, 3] | map('float') | map('int') | sum }} {{ ['1', '2'] | map('int') | sum }} {{ messages | map(attribute='role') | map('capitalize') | join(' ') }} {{ ['ab', 'cd'] | map(attribute=0) | list }} {{ ['ab'] | map('replace', 'a', 'x') | list }}
{{ messages | map(attribute='role') | unique | join }} {{ range(5) | select('divisibleby', 2) | list }} {{ range(10)[2:5] | list }} {{ range(3) | last }} {{ (range(3) | list)[-1] }} {{ range(3) | length }}
{{ 'a\\b' }} {{ 'tab\there' | tojson }} {{ "new\nline" | length }}
{{ '\u00e9' ~ "\x41" }}
{%- if messages[0]['role'] == 'user' -%}
    U
{%- endif %}

{{- '<|im_start|>' + 'assistant\n' -}}
{{ 'A' if 1 == 1 and 2 == 2 else 'B' }}{{ 'x' * (3 - 1) }}{{ loop }}|
{{ 1.0 * 3 }} {{ 3 / 2 }} {{ 6 / 2 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 100000000000000000000.0 }} {{ 5 // 2.0 }} {{ 2 ** 0.5 }}
{{ ' ' * 4 ~ 'x' }} {{ 'x'|upper|lower|length }} {{ ('a' ~ 'b')|upper }} {{ 'a' ~ 'b'|upper }}
"""

# Templates of more than a line.
JINJA_BLOCKS = [
    '{# comment #}a{# multi\nline #}b',
    '  {% if 1 %}  \n  x\n  {% endif %}\n y\n',
    '  {%+ if 1 %}x{% endif +%}\n z',
    "{{ 'a' -}}   \n  b\n  {# c #}  \n  {{ 1 }}\n",
    '{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nend\n{%- set x = 1 %}\n{{ x }}\n\n',
    "{{ 'ab\\\ncd' }}",
    "{%- if messages[0]['role'] == 'user' -%}\n    U\n{%- endif %}\n\n{{- '<|im_start|>' + 'assistant\\n' -}}\nx",
    'a\n\t{%- if 1 %}\n\tb\n\t{%- endif %}\n',
    'x {# c -#}  \n y {#- d #} z\n{# e #}\nw',
    '{% raw %}\n {{ a }}\n{% endraw %}\nb',
    '  {% raw -%}\n {{ a }}\n{%- endraw %}\nb',
    'a\r\nb\r{{ 1 }}\r\n',
    '{% macro m(a) -%}\n  <{{ a }}>\n{%- endmacro -%}\n{{ m(1) }}\n{{ m(2) }}',
    '{{ 1 }}\n{% if 1 %}\n\n{% endif %}\n\n{{ 2 }}\n\n',
    '{%- for m in messages %}\n    {%- if m.role == "user" %}\n        {{- "U:" + m.content }}\n    {%- else %}\n        {{- "A:" + m.content }}\n    {%- endif %}\n{%- endfor %}\n',
    '{% set x %}\n a\n b\n{% endset %}[{{ x }}]',
    'text {{ "}}" }} {{ "%}" }} {{ {"a": {"b": 1}}["a"]["b"] }} {{ {"a": {"b": 1}} }}',
    '{% if "%}" == "%}" %}yes{% endif %}',
    '{{ [1,\n2,\n3] }}',
    '{ {{ 1 }} } {%- if 1 %} % {% endif %}{',
]


def jinja_goldens():
    from transformers.utils.chat_template_utils import _compile_jinja_template
    messages = [{"role": "user", "content": " Hi <b>\"you\"</b> it's\né "}, {"role": "assistant", "content": "Yes"}]
    out = []
    for source in [line for line in JINJA.strip("\n").split("\n")] + JINJA_BLOCKS:
        case = {"source": source, "text": None}
        try:
            case["text"] = _compile_jinja_template(source).render(
                messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", tools=None, documents=None)
        except Exception:  # a template that is refused
            pass
        out.append(case)
    return out


# ---------------------------------------------------------------- sampling

def dry_penalties(history, o):
    """DRY by its definition: for each token, the longest end of the history that occurs before it, quadratic."""
    last = history if o["last_n"] is None else history[len(history) - min(o["last_n"], len(history)):]
    n, longest = len(last), {}
    reach = next((i for i, t in enumerate(reversed(last)) if t in o["breakers"]), n)
    for j in range(1, n):
        length = 0
        while length < min(j, reach) and last[j - 1 - length] == last[n - 1 - length]:
            length += 1
        if length >= o["allowed_length"] and last[j] not in o["breakers"]:
            longest[last[j]] = max(length, longest.get(last[j], 0))
    return {t: o["multiplier"] * o["base"] ** (n - o["allowed_length"]) for t, n in longest.items()}


def filtered(x, o, mu, xtc):
    """The ids that remain of logits x and their probabilities. `mu` is mirostat's limit, `xtc` whether XTC strikes."""
    import numpy as np
    softmax = lambda v: np.exp(v - v.max()) / np.exp(v - v.max()).sum()
    keep = np.argsort(-x, kind="stable")
    if o["mirostat"]:
        p = softmax(x[keep] / o["temperature"])
        over = np.flatnonzero(-np.log2(p) > mu)
        keep = keep[:max(1, over[0] if len(over) else len(keep))]
    else:
        if o["top_k"]:
            keep = keep[:o["top_k"]]
        if o["typical_p"] < 1:
            p = softmax(x[keep])
            order = np.argsort(np.abs(-np.log(p) - -(p * np.log(p)).sum()), kind="stable")
            n = int(np.searchsorted(np.cumsum(p[order]), o["typical_p"], side="right")) + 1
            keep = keep[np.sort(order[:n])]
        if o["top_p"] < 1:
            sums = np.cumsum(softmax(x[keep]))
            keep = keep[:int(np.searchsorted(sums, o["top_p"], side="left")) + 1]
        if o["min_p"]:
            p = softmax(x[keep])
            keep = keep[p >= o["min_p"] * p.max()]
        if xtc:
            top = np.flatnonzero(softmax(x[keep]) >= o["xtc_threshold"])
            keep = keep[top[-1]:] if len(top) else keep
    keep = np.sort(keep)
    return keep, softmax(x[keep] / o["temperature"])


def penalized(logits, history, o):
    import numpy as np
    x = np.array(logits, dtype=np.float32).astype(np.float64)
    for t, bias in o["logit_bias"]:
        x[t] += bias
    last = history if o["repeat_last_n"] is None else history[len(history) - min(o["repeat_last_n"], len(history)):]
    for t in sorted(set(last)):
        x[t] = x[t] / o["repetition_penalty"] if x[t] > 0 else x[t] * o["repetition_penalty"]
        x[t] -= o["frequency_penalty"] * last.count(t) + o["presence_penalty"]
    if o["dry"]["multiplier"]:
        for t, penalty in dry_penalties(history, o["dry"]).items():
            x[t] -= penalty
    return x


def distribution(logits, history, o):
    import numpy as np
    x = penalized(logits, history, o)
    if o["temperature"] == 0:
        return np.array([int(np.argmax(x))]), np.array([1.0])
    mu = 2 * o["mirostat"]["tau"] if o["mirostat"] else 0
    return filtered(x, o, mu, o["xtc_probability"] == 1)


def drawn(logits, history, o, seed, n):
    """n tokens drawn one after another from the same logits, each put behind the history."""
    units = iter([int(v) / 2 ** 64 for v in xoshiro(seed, 2 * n)])
    mu, out = 2 * o["mirostat"]["tau"] if o["mirostat"] else 0, []
    for _ in range(n):
        x = penalized(logits, history + out, o)
        strikes = o["xtc_probability"] > 0 and not o["mirostat"] and next(units) < o["xtc_probability"]
        ids, p = filtered(x, o, mu, strikes)
        import numpy as np
        at = min(int(np.searchsorted(np.cumsum(p), next(units), side="right")), len(p) - 1)
        if o["mirostat"]:
            mu -= o["mirostat"]["eta"] * (-np.log2(p[at]) - o["mirostat"]["tau"])
        out.append(int(ids[at]))
    return out


def sampling_goldens():
    import numpy as np
    rng = np.random.Generator(np.random.PCG64(20260201))
    dry = {"multiplier": 0.0, "base": 1.75, "allowed_length": 2, "last_n": None, "breakers": []}
    base = {"temperature": 1.0, "top_k": 0, "typical_p": 1.0, "top_p": 1.0, "min_p": 0.0, "xtc_probability": 0.0,
            "xtc_threshold": 0.1, "mirostat": None, "dry": dry, "logit_bias": [], "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "repeat_last_n": None}
    variants = [{}, {"temperature": 0.0}, {"temperature": 0.3}, {"temperature": 2.5}, {"top_k": 1}, {"top_k": 5},
                {"top_k": 10000}, {"top_p": 0.9}, {"top_p": 0.05}, {"top_p": 0.999, "temperature": 3.0}, {"min_p": 0.1},
                {"min_p": 1.0}, {"repetition_penalty": 1.3}, {"repetition_penalty": 0.8, "repeat_last_n": 3},
                {"presence_penalty": 0.7}, {"frequency_penalty": 0.4, "repeat_last_n": 20},
                {"presence_penalty": -0.5, "frequency_penalty": -0.1}, {"repeat_last_n": 0, "presence_penalty": 9.0},
                {"temperature": 0.0, "repetition_penalty": 1.8},
                {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1,
                 "frequency_penalty": 0.2, "presence_penalty": 0.1, "repeat_last_n": 30},
                {"typical_p": 0.9}, {"typical_p": 0.2, "temperature": 1.5}, {"typical_p": 0.7, "top_k": 12, "top_p": 0.9},
                {"xtc_probability": 1.0, "xtc_threshold": 0.05}, {"xtc_probability": 1.0, "xtc_threshold": 0.6},
                {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 20, "temperature": 2.0},
                {"mirostat": {"tau": 2.0, "eta": 0.1}}, {"mirostat": {"tau": 0.01, "eta": 0.2}, "temperature": 1.7},
                {"logit_bias": [[3, 4.5], [7, -100.0]], "top_k": 10}, {"logit_bias": [[0, 50.0]], "temperature": 0.0},
                {"dry": {**dry, "multiplier": 0.8}}, {"dry": {**dry, "multiplier": 1.5, "base": 1.2, "last_n": 25}},
                {"dry": {**dry, "multiplier": 0.8, "breakers": [5]}, "temperature": 0.5},
                {"dry": {**dry, "multiplier": 0.5, "allowed_length": 1, "breakers": [2, 9]}, "repetition_penalty": 1.1}]
    cases = []
    for index, variant in enumerate(variants):
        n = 300 if index % 3 else 40
        logits = [float(v) for v in rng.normal(0, 3, n).round(3)]
        history = [int(v) for v in rng.integers(0, 30, 40)]
        options = {**base, **variant}
        if options["dry"]["multiplier"]:
            # Repeats 1 to 5 tokens, some after a breaker, so that lengths differ.
            history = (history[:4] + [5] + history[4:9] + [11] + history[5:9] + [12]) * 2 + history[:3]
        ids, p = distribution(logits, history, options)
        ids, p = ids[p > 1e-45], p[p > 1e-45]  # What fp32 can tell from 0.
        case = {"options": options, "logits": logits, "history": history, "ids": [int(i) for i in ids],
                "p": [float(f"{v:.8g}") for v in p]}
        if options["temperature"]:
            case["drawn"] = drawn(logits, history, options, index, 24)
        cases.append(case)
    return cases


def xoshiro(seed, n):
    """xoshiro256++ seeded by splitmix64, from the published formulas, in Python's integers."""
    mask = (1 << 64) - 1
    rotl = lambda x, k: ((x << k) | (x >> (64 - k))) & mask
    s, out = [], []
    for i in range(1, 5):
        z = (seed + i * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        s.append(z ^ (z >> 31))
    for _ in range(n):
        out.append((rotl((s[0] + s[3]) & mask, 23) + s[0]) & mask)
        t = (s[1] << 17) & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
    return [str(v) for v in out]


def main():
    folder = next((a for a in sys.argv[1:] if not a.startswith("--")), os.environ.get("THANE_MODELS"))
    DATA.mkdir(exist_ok=True)
    lines = mixed_lines(2000, 20260131)
    write_lines("mixed.jsonl", lines)
    small = small_sentencepiece(lines)
    write_json("sentencepiece.json", small)
    write_json("sentencepiece_json.json", small_json_sentencepiece(small[1]))
    write_json("byte_level.json", small_byte_level(lines))
    write_json("gemma4.json", small_gemma4(lines))
    write_json("controls.json", control_goldens())
    write_json("sampling.json", {"cases": sampling_goldens(), "random": {"seed": 42, "values": xoshiro(42, 5)}})
    template = None
    if folder and (Path(folder) / SMOLLM2).is_file():
        path = Path(folder) / SMOLLM2
        template = gguf_fields(path)["tokenizer.chat_template"]
        file_goldens("smollm2", lines, smollm2_reference(path))
    else:
        print(f"no {SMOLLM2}: its goldens are left as they are")
        old = DATA / "chat.json"
        if old.is_file():
            template = json.loads(old.read_text(encoding="utf-8"))["templates"].get("smollm2")
    write_json("chat.json", chat_goldens(template))
    write_json("tools.json", tool_goldens())
    write_json("jinja.json", jinja_goldens())
    if folder and (Path(folder) / GEMMA3).is_file():
        path = Path(folder) / GEMMA3
        special = file_goldens("gemma3", lines, gemma_reference(gguf_fields(path)))
        if "--compare" in sys.argv:
            compare_gemma_with_transformers(path, lines, special)
    else:
        print(f"no {GEMMA3}: its goldens are left as they are")


if __name__ == "__main__":
    main()
