"""Makes crates/engine/tests/data/gguf_text.{json,sums}: how llama.cpp tokenizes with the vocabularies of GGUF files.

    pip install llama-cpp-python gguf tokenizers
    python3 tests/oracle/make_gguf_text.py

Three vocabularies are written as GGUF files without tensors, which llama.cpp loads:

- `byte_level`: that of crates/engine/tests/data/byte_level.json, under each name of a pre-tokenizer. Of each of the 2,000
  lines of mixed.jsonl the .sums file has the sum of the ids, as `make_goldens.py` writes it. Null is no name.
- `phi3`: a SentencePiece vocabulary under two names of a model, of which llama.cpp takes the first for Phi-3.
- `wordpiece`: a vocabulary of BERT with words in capitals and U+211D, under each setting of the normalizer.

The tokenizers library repeats the last one with the same settings. The script ends with an error where both disagree.
"""

import ctypes
import itertools
import json
import sys
import tempfile
from pathlib import Path

from golden import need

need("gguf", "llama_cpp", "tokenizers")

import gguf
import llama_cpp as api
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "crates" / "engine" / "tests" / "data"
sys.path.insert(0, str(DATA.parent))

from make_goldens import write_sums

PRE = [
    None, "default", "olmo", "exaone4", "falcon3", "lfm2", "pixtral", "glm4", "chatglm-bpe", "stablelm2",
    "deepseek-r1-qwen", "seed-coder", "hunyuan-dense",
]
CONTROL, NORMAL, BYTE, UNKNOWN = (getattr(gguf.TokenType, name) for name in ("CONTROL", "NORMAL", "BYTE", "UNKNOWN"))
MOST = 4096


class Vocabulary:
    """A GGUF file with the keys that `fill` writes, as llama.cpp reads it."""

    def __init__(self, architecture, fill, name="tiny"):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            writer = gguf.GGUFWriter(file.name, architecture)
            writer.add_name(name)
            writer.add_block_count(1)
            writer.add_context_length(64)
            writer.add_embedding_length(8)
            writer.add_feed_forward_length(8)
            writer.add_head_count(1)
            writer.add_layer_norm_rms_eps(1e-5)
            writer.add_layer_norm_eps(1e-5)
            fill(writer)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
            params = api.llama_model_default_params()
            params.vocab_only = True
            self.model = api.llama_model_load_from_file(file.name.encode(), params)
        if not self.model:
            raise SystemExit("llama.cpp does not load the file")
        self.vocab = api.llama_model_get_vocab(self.model)

    def ids(self, text, special=True):
        data, out = text.encode(), (ctypes.c_int32 * MOST)()
        n = api.llama_tokenize(self.vocab, data, len(data), out, MOST, False, special)
        return list(out[:n])


def byte_level(lines):
    case = json.loads((DATA / "byte_level.json").read_text(encoding="utf-8"))

    def encoder(pre):
        def fill(writer):
            writer.add_tokenizer_model("gpt2")
            if pre is not None:
                writer.add_tokenizer_pre(pre)
            writer.add_token_list(case["tokens"])
            writer.add_token_types(case["token_types"])
            writer.add_token_merges(case["merges"])
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(1)
        return Vocabulary("llama", fill).ids

    write_sums("gguf_text.sums", lines, [encoder(pre) for pre in PRE])
    return PRE


def phi3():
    control = ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    letters = list("▁abcdehlortuw.,")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁h", "▁w", *control]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(letters) + 2), *[CONTROL] * len(control)]
    texts = [
        "<|system|>\nbe brief<|end|>\n<|user|>\n hello <|end|>\n<|assistant|>\n", "<|user|>\t\r\n \x0b\x0c hello",
        "hello <|end|> \n<|end|>  world", "<|endoftext|>\nhello", "<s> \nhello</s> \nworld</s>", "<|user|>\u00a0hello",
        "<|end|>", " <|user|> ",
    ]
    names = {}
    for name in ("Phi3", "Phi-3.5 mini", "Other"):
        def fill(writer):
            writer.add_tokenizer_model("llama")
            writer.add_tokenizer_pre("default")
            writer.add_token_list(tokens)
            writer.add_token_types(types)
            writer.add_token_scores([-float(i) for i in range(len(tokens))])
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(tokens.index("<|endoftext|>"))
            writer.add_unk_token_id(0)
        vocabulary = Vocabulary("llama", fill, name)
        names[name] = [vocabulary.ids(text) for text in texts]
    return {"tokens": tokens, "token_types": [int(t) for t in types], "texts": texts, "ids": names}


def wordpiece():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["the", "The", "cat", "Cat", "paris", "Paris", "café", "cafe", "Café", "ℝ", "мои",
             "мой", "Мой", "été", "ete", "i", ","]
    parts = ["s", "S", "ris", "fé"]
    tokens = special + [f"▁{word}" for word in words] + parts
    types = [CONTROL] * len(special) + [NORMAL] * (len(words) + len(parts))
    texts = ["The Cats, the cats", "PARIS Paris paris", "Café CAFÉ café cafe", "Мой мой МОЙ", "Été été ete", "ℝ", "cafe\u0301",
             "I, i", "[SEP] the"]
    spelled = special + words + [f"##{part}" for part in parts]
    cases = []
    for lowercase, strip_accents in itertools.product((None, False, True), repeat=2):
        def fill(writer):
            writer.add_tokenizer_model("bert")
            writer.add_token_list(tokens)
            writer.add_token_types(types)
            for key, token in (("bos", 2), ("cls", 2), ("seperator", 3), ("unknown", 1), ("padding", 0), ("mask", 4)):
                writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token)
            for key, value in (("lowercase", lowercase), ("strip_accents", strip_accents)):
                if value is not None:
                    writer.add_bool(f"tokenizer.ggml.normalizer.{key}", value)
        vocabulary = Vocabulary("bert", fill)
        ids = [vocabulary.ids(text) for text in texts]
        lowers = lowercase is not False
        theirs = Tokenizer(models.WordPiece({token: i for i, token in enumerate(spelled)}, unk_token="[UNK]"))
        theirs.normalizer = normalizers.BertNormalizer(
            lowercase=lowers, strip_accents=lowers if strip_accents is None else strip_accents)
        theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        theirs.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        for text, found in zip(texts, ids):
            if (expected := theirs.encode(text).ids) != found:
                raise SystemExit(f"{lowercase} {strip_accents} {text!r}: tokenizers {expected}, llama.cpp {found}")
        cases.append({"lowercase": lowercase, "strip_accents": strip_accents, "ids": ids})
    return {"tokens": tokens, "token_types": [int(t) for t in types], "texts": texts, "cases": cases}


def main():
    lines = [json.loads(line) for line in (DATA / "mixed.jsonl").read_text(encoding="utf-8").split("\n") if line]
    goldens = {"phi3": phi3(), "wordpiece": wordpiece(), "pre": byte_level(lines)}
    rows = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in goldens.items()]
    (DATA / "gguf_text.json").write_text("{" + ",\n".join(rows) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
