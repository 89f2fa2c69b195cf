"""What AutoTokenizer makes of tiny tokenizers whose tokenizer.json and tokenizer_config.json contradict each other.

make_text_settings.py writes it to tests/models/text-classes.json. A row has the kind of its tokenizer.json (`bases`), the files
that are changed or made, and the ids of the texts: alone, without special tokens around them, and two as a pair. `choices` has
the class that transformers chooses for each model type of Thane and each class that the files may name.
"""

import copy
import json
import tempfile
from pathlib import Path
from unittest import mock

import transformers
from transformers import AutoTokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

TOKENIZER = "tokenizer_config.json"
MAP = "special_tokens_map.json"

TEXTS = [
    "Héllo  WORLD, naïve café 中文字 x1234",
    " leading and  trailing ",
    "the<s>hello</s> world <mask> the[MASK]hello [CLS] a<|endoftext|>b <pad>c <unk>",
    "Straße ﬁne İstanbul é e\u0301 \t tab\nnewline don't",
    "東京 hello 12,345.5 the_world",
    "<extra>hello <EXTRA> world<Low> <low>  <unk>the <bos>x<eos>",
    "",
]
WORDS = ["the", "hello", "world", "a", "leading", "and"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>/[]_|.,'!éïßİç中文字東京ﬁ"]


def token(content, **properties):
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content} | usual | properties


def added(ids, **properties):
    return [{"id": i} | token(content, **properties) for content, i in ids.items()]


def empty(model, **parts):
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"version": "1.0"} | dict.fromkeys(names) | {"added_tokens": []} | parts | {"model": model}


def template(before, after, ids):
    piece = lambda text: {"SpecialToken": {"id": text, "type_id": 0}}
    part = lambda name: [*map(piece, before), {"Sequence": {"id": name, "type_id": 0}}, *map(piece, after)]
    tokens = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in sorted({*before, *after})}
    return {"type": "TemplateProcessing", "single": part("A"), "pair": part("A") + part("B"), "special_tokens": tokens}


def numbered(tokens):
    return {text: i for i, text in enumerate(dict.fromkeys(tokens))}


def wordpiece():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<mask>"]
    vocab = numbered([*specials, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS, "World", "##llo", "cafe", "café"])
    return empty(
        {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
         "vocab": vocab},
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                    "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        post_processor=template(["[CLS]"], ["[SEP]"], vocab),
        added_tokens=added({text: vocab[text] for text in specials[:5]}))


def merged(vocab, first, words):
    """The merges that make the words letter by letter, whose tokens are added to the vocabulary."""
    merges = []
    for word in words:
        letters = [first(letter) for letter in word]
        left = letters[0]
        for right in letters[1:]:
            if [left, right] not in merges:
                merges.append([left, right])
            left += right
            vocab.setdefault(left, len(vocab))
    return merges


def byte_letters():
    """The letters of byte-level BPE by their bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in kept)
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def byte_level():
    letters = byte_letters()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", "<BOS_TOKEN>"]
    vocab = numbered([*specials, *letters.values()])
    words = [*WORDS, " the", " hello", " world", "123", " 12", "don't", "Ã©", "é", "tab\n", ",3"]
    spelled = ["".join(letters[byte] for byte in word.encode()) for word in words]
    merges = merged(vocab, lambda letter: letter, spelled)
    return empty(
        {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
         "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges},
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        post_processor=template(["<s>"], [], vocab), added_tokens=added({text: vocab[text] for text in specials}))


def pieces():
    specials = ["<unk>", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<mask>"]
    vocab = numbered([*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS])
    merges = merged(vocab, lambda letter: letter, [*(f"▁{word}" for word in WORDS), *WORDS, "▁▁", "12"])
    return empty(
        {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
         "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": merges},
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        decoder={"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        post_processor=template(["<s>"], [], vocab), added_tokens=added({text: vocab[text] for text in specials}))


def unigram():
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokens = [*specials, "▁", *LETTERS, *(f"▁{word}" for word in WORDS), *WORDS, "<mask>"]
    scores = {text: 0.0 for text in specials} | {"▁": -2.0, "<mask>": 0.0}
    vocab = [[text, scores.get(text, -3.0 - 0.01 * i)] for i, text in enumerate(dict.fromkeys(tokens))]
    ids = {text: i for i, (text, _) in enumerate(vocab)}
    return empty(
        {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        post_processor=template(["<s>"], ["</s>"], ids),
        added_tokens=[*added({text: ids[text] for text in specials}),
                      {"id": ids["<mask>"]} | token("<mask>", lstrip=True)])


BASES = {"wordpiece": wordpiece, "byte-level": byte_level, "pieces": pieces, "unigram": unigram}
UNCASED = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
           "lowercase": True}
CASED = UNCASED | {"lowercase": False}
PLAIN_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LOW = {"id": 900} | token("<Low>", normalized=True, special=False)


def extend(base, *tokens):
    """The added tokens of a base, and further ones behind its vocabulary."""
    document = BASES[base]()
    known = len(document["model"]["vocab"])
    return document["added_tokens"] + [{"id": known + i} | content for i, content in enumerate(tokens)]


def decoder_of(*tokens):
    return {str(i): content for i, content in enumerate(tokens)}


def rows_of(model, base, class_name, *cases):
    """Rows of a class: (label, keys of tokenizer_config.json, keys of tokenizer.json, other files)."""
    for label, keys, parts, *others in cases:
        files = {TOKENIZER: ({"tokenizer_class": class_name} if class_name else {}) | keys}
        yield (f"{class_name or model}: {label}", model, base,
               files | ({"tokenizer.json": parts} if parts else {}) | (others[0] if others else {}))


DIGITS = {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}
NOTHING = {"post_processor": None}
LOWERCASE = {"normalizer": {"type": "Lowercase"}}
TWO = [token("<extra>", lstrip=True), token("<Low>", normalized=True, special=False)]


def cases():
    bert = [
        ("cased file, no key", {}, {"normalizer": CASED}),
        ("uncased file, cased key", {"do_lower_case": False}, {}),
        ("cased file, uncased key", {"do_lower_case": True}, {"normalizer": CASED}),
        ("accents kept", {"strip_accents": False}, {}),
        ("accents removed, cased", {"strip_accents": True, "do_lower_case": False}, {}),
        ("Chinese not divided", {"tokenize_chinese_chars": False}, {}),
        ("null keys", {"strip_accents": None}, {"normalizer": CASED}),
        ("no post-processor", {}, NOTHING),
        ("other pre-tokenizer", {}, {"pre_tokenizer": {"type": "WhitespaceSplit"}}),
        ("unknown token of the keys", {"unk_token": "[PAD]"}, {}),
        ("other tokens around", {"cls_token": "<s>", "sep_token": "</s>"}, {}),
        ("special tokens split", {"split_special_tokens": True}, {}),
        ("tokens by ids", {"added_tokens_decoder": decoder_of(token("[PAD]"), token("[UNK]"))}, {}),
        ("tokens by ids, new ones", {"added_tokens_decoder": {"900": TWO[0], "901": TWO[1]}}, {}),
        ("a map of special tokens", {"sep_token": "</s>"}, {}, {MAP: {"sep_token": "[SEP]", "cls_token": token("<s>")}}),
        ("a map beside tokens by ids", {"added_tokens_decoder": {}, "sep_token": "</s>"}, {}, {MAP: {"sep_token": "[SEP]"}}),
        ("added tokens in a file", {}, {}, {"added_tokens.json": {"<extra>": 900, "<Low>": 901}}),
        ("added tokens that are named", {"additional_special_tokens": ["<Low>"]}, {},
         {"added_tokens.json": {"<extra>": 900, "<Low>": 901}}),
        ("further special tokens", {"extra_special_tokens": ["<extra>", "<Low>"]}, {}),
        ("further tokens by name", {"image_token": "<extra>", "extra_special_tokens": {"low_token": "<Low>"}}, {}),
        ("objects of other names", {"image_token": {"content": "hello"}, "sound_token": token("world", __type="AddedToken")}, {}),
        ("objects of other names in the map", {"image_token": {"content": "hello"}}, {}, {MAP: {"image_token": {"content": "world"}}}),
        ("objects of further tokens", {"extra_special_tokens": [token("world", __type="AddedToken", special=False)]}, {},
         {MAP: {"extra_special_tokens": [{"content": "hello"}]}}),
    ]
    yield from rows_of("bert", "wordpiece", "BertTokenizer", *bert)
    yield from rows_of("bert", "wordpiece", "PreTrainedTokenizerFast", bert[1], *bert[11:])
    yield from rows_of("bert", "wordpiece", None, *bert[:2])
    yield from rows_of("distilbert", "wordpiece", "DistilBertTokenizer", *bert[:2])
    yield from rows_of("nomic_bert", "wordpiece", "BertTokenizerFast", *bert[:2])
    for name in ("DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer", "DPRReaderTokenizer"):
        yield from rows_of("bert", "wordpiece", name, *bert[:3])
    yield from rows_of("mpnet", "wordpiece", "MPNetTokenizer", *bert[:9], *bert[10:13])
    space = [
        ("as it is", {}, {}),
        ("prefix space", {"add_prefix_space": True}, {}),
        ("no prefix space, against the file", {"add_prefix_space": False}, {"pre_tokenizer": DIGITS}),
        ("other parts", {}, {"pre_tokenizer": DIGITS} | LOWERCASE),
        ("no post-processor", {}, NOTHING),
        ("no post-processor, tokens asked for", {"add_bos_token": True, "add_eos_token": True}, NOTHING),
        ("post-processor, tokens not asked for", {"add_bos_token": False, "add_eos_token": True}, {}),
        ("special tokens split", {"split_special_tokens": True}, {}),
        ("added tokens", {}, {"added_tokens": extend("byte-level", *TWO)}),
        ("added tokens against tokens by ids", {"added_tokens_decoder": {"2": token("</s>", lstrip=True)}},
         {"added_tokens": extend("byte-level", *TWO)}),
        ("a token that takes spaces", {"added_tokens_decoder": {"5": token("<|endoftext|>", rstrip=True, lstrip=True)}}, {}),
        ("a named token that is no special one",
         {"added_tokens_decoder": {"4": token("<mask>", special=False, lstrip=True)}, "mask_token": "<mask>",
          "eos_token": "<mask>"}, {}),
        ("a map of special tokens", {}, {}, {MAP: {"eos_token": token("<|endoftext|>", rstrip=True)}}),
        ("tokens of own names", {"image_token": "<pad>", "mask_token": "</s>", "pad_token": None,
                                 "extra_special_tokens": {"sound": "<s>"}}, {}),
        ("tokens of own names in the map", {"image_token": "<pad>"}, {}, {MAP: {"image_token": "<s>", "video_token": "<s>"}}),
    ]
    for model, name in [("roberta", "RobertaTokenizer"), ("cohere", "CohereTokenizer"), ("qwen2", "Qwen2Tokenizer")]:
        yield from rows_of(model, "byte-level", name, *space)
    for model, name in [("gpt2", "GPT2Tokenizer"), ("olmoe", "GPTNeoXTokenizer"), ("qwen3_5", "Qwen3_5Tokenizer"),
                        ("llama", "PreTrainedTokenizerFast"), ("llama", "CodeGenTokenizer")]:
        yield from rows_of(model, "byte-level", name, *space[1:7], space[9])
    for model, base, name in [("qwen2", "byte-level", "Qwen2Tokenizer"), ("gpt2", "byte-level", "GPT2Tokenizer"),
                              ("llama", "byte-level", "PreTrainedTokenizerFast"), ("llama", "pieces", "LlamaTokenizer"),
                              ("xlm-roberta", "unigram", "XLMRobertaTokenizer")]:
        backwards = {"added_tokens": extend(base, *TWO)[::-1]}
        yield from rows_of(model, base, name, ("added tokens against the order of ids", {}, backwards))
    merges = [("merges ignored", {}, {"pre_tokenizer": DIGITS, "model": {"ignore_merges": True}})]
    for model, name in [("starcoder2", "GPT2Tokenizer"), ("exaone4", "GPT2Tokenizer"), ("granite", "GPT2Tokenizer"),
                        ("llama", "LlamaTokenizer"), ("qwen2", "LlamaTokenizer"), ("qwen3", "LlamaTokenizer"),
                        ("gpt2", "TokenizersBackend"), ("modernbert", "RobertaTokenizer"), ("qwen3_5_text", None)]:
        yield from rows_of(model, "byte-level", name, *merges)
    llama = [
        ("as it is", {}, {}),
        ("legacy", {"legacy": True}, {}),
        ("not legacy", {"legacy": False}, {}),
        ("no prefix space", {"add_prefix_space": False}, {}),
        ("prefix space null, legacy", {"add_prefix_space": None, "legacy": True}, {}),
        ("file without prefix space", {}, {"normalizer": PLAIN_SPACE}),
        ("no post-processor", {}, NOTHING),
        ("no post-processor, tokens asked for", {"add_bos_token": True, "add_eos_token": True}, NOTHING),
        ("post-processor, tokens not asked for", {"add_bos_token": False}, {}),
        ("no bytes", {}, {"model": {"byte_fallback": False, "fuse_unk": False}}),
        ("special tokens split", {"split_special_tokens": True}, {}),
        ("added tokens", {}, {"added_tokens": extend("pieces", *TWO)}),
        ("tokens by ids", {"added_tokens_decoder": {"1": token("<s>"), "2": token("</s>", rstrip=True)}}, {}),
        ("other names", {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<pad>"}, {}),
    ]
    for model, name in [("llama", "LlamaTokenizer"), ("llama", "CodeLlamaTokenizer"), ("gemma3_text", "GemmaTokenizer")]:
        yield from rows_of(model, "pieces", name, *llama)
    for model, name in [("mistral", "LlamaTokenizer"), ("llama", "PreTrainedTokenizerFast")]:
        yield from rows_of(model, "pieces", name, *llama[3:8])
    yield from rows_of("gemma2", "pieces", None, *llama[:1])
    yield from rows_of("phi3", "pieces", "LlamaTokenizer", *llama[:1])
    xlm = [
        ("as it is", {}, {}),
        ("no prefix space", {"add_prefix_space": False}, {}),
        ("prefix space null", {"add_prefix_space": None}, {}),
        ("other parts", {}, {"pre_tokenizer": {"type": "WhitespaceSplit"}} | LOWERCASE),
        ("no post-processor", {}, NOTHING),
        ("other unknown token", {}, {"model": {"unk_id": 5}}),
        ("special tokens split", {"split_special_tokens": True}, {}),
        ("added tokens", {}, {"added_tokens": extend("unigram", *TWO)}),
        ("other tokens around", {"bos_token": "<pad>", "cls_token": "</s>"}, {}),
        ("lowercase key", {"do_lower_case": True, "strip_accents": True}, {}),
    ]
    for model, name in [("xlm-roberta", "XLMRobertaTokenizer"), ("camembert", "CamembertTokenizer"),
                        ("bert", "T5Tokenizer")]:
        yield from rows_of(model, "unigram", name, *xlm)
    for model, name in [("bert", "XLMRobertaTokenizer"), ("xlm-roberta", "PreTrainedTokenizerFast")]:
        yield from rows_of(model, "unigram", name, *xlm[1:4])


    yield from rows_of("gpt2", "byte-level", "GPT2Tokenizer", ("a suffix of words", {}, {"model": {"end_of_word_suffix": "</w>"}}))
    # Spaces become another character, so whether a token is searched before or after that counts.
    spaced = [(f"tokens by ids {after}, in the file {before}",
               {"added_tokens_decoder": {str(i): token(text, normalized=after == "normalized") for i, text in
                                         enumerate(["<unk>", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<mask>"])}},
               {"added_tokens": added({"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3, "<bos>": 4, "<eos>": 5, "<mask>": 6},
                                      normalized=before == "normalized")})
              for before, after in [("normalized", "as texts"), ("as texts", "normalized")]]
    for model, name in [("llama", "PreTrainedTokenizerFast"), ("llama", "LlamaTokenizer"), ("gemma3_text", "GemmaTokenizer"),
                        ("mistral", "LlamaTokenizer")]:
        yield from rows_of(model, "pieces", name, *spaced)

    for model, label, keys in [("mistral", "the pattern of Mistral", {"fix_mistral_regex": True}),
                               ("mistral", "another pattern", {"fix_mistral_regex": False}),
                               ("llama", "no model of Mistral", {"fix_mistral_regex": True})]:
        for name, parts in [("one step", {}), ("two steps", {"pre_tokenizer": DIGITS})]:
            yield (f"{model}: {label}, {name}", model, "byte-level",
                   {TOKENIZER: keys, "tokenizer.json": parts | {"fillers": 100_000}, "config.json": {}})
    for version in ["4.57.3", "5.0.0rc1", "5.0.0", "5.1.0"]:
        yield (f"mistral: the pattern of Mistral, {version}", "mistral", "byte-level",
               {TOKENIZER: {"fix_mistral_regex": True}, "tokenizer.json": {"fillers": 100_000},
                "config.json": {"transformers_version": version}})


def write(folder, model, base, files):
    document = BASES[base]()
    # Tokens that no text has.
    first = len(document["model"]["vocab"])
    for i in range(files.get("tokenizer.json", {}).pop("fillers", 0)):
        document["model"]["vocab"][f"filler {first + i}"] = first + i
    for key, value in files.get("tokenizer.json", {}).items():
        document[key] = document[key] | value if key == "model" else value
    config = files.get("config.json", {}) | {"model_type": model}
    for name, keys in (files | {"tokenizer.json": document, "config.json": config}).items():
        (folder / name).write_text(json.dumps(keys), encoding="utf-8")


def row(label, model, base, files):
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), model, base, copy.deepcopy(files))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = tokenizer(TEXTS[1], add_special_tokens=False)["input_ids"]
    return {
        "label": label, "model_type": model, "base": base, "files": files, "class": type(tokenizer).__name__,
        "n_tokens": max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1),
        "ids": [tokenizer(text)["input_ids"] for text in TEXTS],
        "pair": tokenizer(TEXTS[0], TEXTS[1])["input_ids"],
        "plain": plain, "decoded": tokenizer.decode(plain, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        "names": tokenizer.special_tokens_map,
    }


def rows():
    for case in cases():
        yield row(*copy.deepcopy(case))


MODELS = """llama mistral ministral ministral3 mistral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen3_5 qwen3_5_text olmoe gemma
gemma2 gemma3 gemma3_text gemma4 gemma4_text phi3 smollm3 olmo2 olmo3 granite exaone4 glm4 starcoder2 ernie4_5 seed_oss arcee
hunyuan_v1_dense stablelm cohere cohere2 gpt2 lfm2 bert roberta xlm-roberta camembert distilbert mpnet modernbert
nomic_bert""".split()
CLASSES = """BertTokenizer DistilBertTokenizer ElectraTokenizerFast MPNetTokenizerFast RobertaTokenizer BartTokenizerFast
XLMRobertaTokenizerFast CamembertTokenizer LlamaTokenizer LlamaTokenizerFast CodeLlamaTokenizer GemmaTokenizer GPT2TokenizerFast
GPTNeoXTokenizer CohereTokenizerFast Qwen2TokenizerFast Qwen3_5Tokenizer T5Tokenizer TokenizersBackend PreTrainedTokenizerFast
NoTokenizer""".split()


def choices():
    """{model type: ["class in config.json,class in tokenizer_config.json,whether byte-level,class", ..]}"""
    found = {model: [] for model in MODELS}

    def chosen(cls, *args, **kwargs):
        return cls.__name__

    named = [(None, None)] + [(None, name) for name in CLASSES] + [(name, None) for name in CLASSES[::5]]
    named += [("BertTokenizer", "GPT2Tokenizer"), ("LlamaTokenizer", "PreTrainedTokenizerFast")]
    with mock.patch.object(PreTrainedTokenizerBase, "from_pretrained", classmethod(chosen)):
        for model in MODELS:
            for in_config, in_tokenizer in named:
                for is_byte_level in [False, True][: 2 if "Llama" in f"{in_config}{in_tokenizer}" else 1]:
                    with tempfile.TemporaryDirectory() as folder:
                        document = byte_level() if is_byte_level else {"model": {}}
                        files = {"tokenizer.json": document, "config.json": {"model_type": model, "tokenizer_class": in_config},
                                 TOKENIZER: {"tokenizer_class": in_tokenizer}}
                        for name, keys in files.items():
                            keys = {key: value for key, value in keys.items() if value is not None}
                            (Path(folder) / name).write_text(json.dumps(keys), encoding="utf-8")
                        try:
                            name = AutoTokenizer.from_pretrained(folder)
                        except (AttributeError, OSError, ValueError):
                            continue
                    row = (in_config or "", in_tokenizer or "", "bytes" if is_byte_level else "", name)
                    found[model].append(",".join(text.removesuffix("Tokenizer") for text in row))
    return found


def unmade():
    """The classes that make other ids of a tokenizer.json than it says, and that Thane refuses, with the base of their
    kind, or none if they do so for every kind."""
    def ids(name, base):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), "bert", base, {TOKENIZER: {"tokenizer_class": name}})
            tokenizer = AutoTokenizer.from_pretrained(folder)
        return [tokenizer(text)["input_ids"] for text in TEXTS]

    names = {
        "byte-level": "Blenderbot CLIP Deberta Esmc Herbert Luke Nllb Nougat OpenAIGPT Reformer SeamlessM4T Siglip2 Tipsv2 Whisper",
        "wordpiece": "Funnel",
        "unigram": "BigBird DebertaV2 FNet Lasr MBart Pegasus RemBert VideoPrism XGLM XLNet",
    }
    found = {f"{name}Tokenizer": base for base in names for name in names[base].split()}
    found |= {f"{name}Tokenizer": None for name in "ByT5 Canine Dia Perceiver".split()}
    for name, base in found.items():
        for base in [base] if base else BASES:
            assert ids(name, base) != ids("PreTrainedTokenizerFast", base), name
    return found


def write_all(path):
    """A line for each row."""
    compact = lambda part: json.dumps(part, ensure_ascii=False, separators=(",", ":"))
    found = {"bases": {name: base() for name, base in BASES.items()}, "choices": choices(), "unmade": unmade()}
    parts = [f'"made_by": "tests/oracle/make_text_settings.py", "transformers": {compact(transformers.__version__)}',
             f'"texts": {compact(TEXTS)}']
    for name, values in found.items():
        lines = ",\n".join(f"{compact(key)}: {compact(value)}" for key, value in values.items())
        parts.append(f'"{name}": {{\n{lines}}}')
    parts.append('"rows": [\n' + ",\n".join(map(compact, rows())) + "]")
    path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
