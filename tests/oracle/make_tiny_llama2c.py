"""Makes the tiny checkpoints of llama2.c, tests/models/tiny/llama2c-*, their goldens, and a vocabulary.

    python3 tests/oracle/make_tiny_llama2c.py [NAME ...]

Each folder holds model.bin in one of the three versions of llama2.c's format, and golden.{json,bin} as make_tiny.py
writes them: what transformers' LlamaForCausalLM computes with the same weights. llama2.c rotates neighboring elements
of a head together, and transformers those of its halves, so the rows of query and key are reordered for the file.
Weights of version 2 are the numbers that the int8 codes and scales stand for. llama2c-v2 has tokenizer.bin, exported
from a SentencePiece model that is trained here, and tokens.json: the ids that sentencepiece gives to lines of text,
and of the 2,000 mixed lines of the engine's tests the sum of the ids.

Needs torch, transformers, sentencepiece, numpy. CPU only; all seeds are literals.
"""

import io
import json
import shutil
import struct
from dataclasses import dataclass

from golden import MODELS, Floats, make_named, need, write_json

need("torch", "transformers", "sentencepiece", "numpy")

import numpy
import sentencepiece
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from make_tiny import greedy_of, randomise, run

MAGIC = 0x616B3432
# Beyond letters that the vocabulary knows: other scripts, runs of spaces, control characters, pieces that look special.
LINES = [
    "", " ", "  two  spaces ", "Once upon a time", "\ttab\nline", "naïve café", "日本語 текст", "🙂 emoji",
    "<s> </s> <unk>", "<0x41>", "a\u00a0b", "▁under▁", "1234567890", "UPPER lower MiXeD", "\x00\x01\x7f", "x" * 40,
]


@dataclass
class Case:
    seed: int
    version: int
    shared: bool
    sizes: dict
    group: int = 0
    lengths: tuple = (7, 33, 61)
    vocabulary: bool = False


def sizes(**changes):
    base = dict(
        vocab_size=97, hidden_size=36, intermediate_size=41, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=128,
    )
    return base | changes


def cases():
    return {
        "llama2c-v0": Case(921, 0, True, sizes()),
        "llama2c-v0-head": Case(922, 0, False, sizes(vocab_size=89, num_attention_heads=3, num_key_value_heads=3)),
        "llama2c-v1": Case(923, 1, False, sizes(vocab_size=91, hidden_size=40, num_attention_heads=4)),
        "llama2c-v2": Case(
            924, 2, True, sizes(vocab_size=320, hidden_size=32, intermediate_size=48, num_attention_heads=4),
            group=16, lengths=(7, 42), vocabulary=True),
    }


def rounded(weight, group):
    """Codes and scales of groups along rows, and the numbers that they stand for."""
    parts = weight.numpy().reshape(-1, group)
    scale = (numpy.abs(parts).max(1) / 127).astype(numpy.float32)
    codes = numpy.round(parts / scale[:, None]).astype(numpy.int8)
    numbers = codes.astype(numpy.float32) * scale[:, None]
    return codes, scale, torch.from_numpy(numbers.reshape(weight.shape))


def interleaved(weight, heads):
    """Rows of each head so that elements that are rotated together are neighbors."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


class Writer:
    def __init__(self, model, case):
        self.state, self.case, self.file = model.state_dict(), case, io.BytesIO()
        self.heads = {"q_proj": case.sizes["num_attention_heads"], "k_proj": case.sizes["num_key_value_heads"]}

    def tensor(self, name):
        weight = self.state[name]
        heads = self.heads.get(name.split(".")[-2])
        weight = weight if heads is None else interleaved(weight, heads)
        if self.case.version == 2 and weight.dim() == 2:
            codes, scale, _ = rounded(weight, self.case.group)
            self.file.write(codes.tobytes() + scale.tobytes())
        else:
            self.file.write(weight.numpy().astype("<f4").tobytes())

    def layers(self, *modules):
        for module in modules:
            for i in range(self.case.sizes["num_hidden_layers"]):
                self.tensor(f"model.layers.{i}.{module}.weight")

    def header(self):
        s, version = self.case.sizes, self.case.version
        vocab = s["vocab_size"] if self.case.shared or version else -s["vocab_size"]
        numbers = struct.pack(
            "7i", s["hidden_size"], s["intermediate_size"], s["num_hidden_layers"], s["num_attention_heads"],
            s["num_key_value_heads"], vocab, s["max_position_embeddings"])
        if version == 0:
            return numbers
        header = struct.pack("<Ii", MAGIC, version) + numbers + struct.pack("<B", self.case.shared)
        return (header + (struct.pack("<i", self.case.group) if version == 2 else b"")).ljust(256, b"\0")

    def write(self):
        self.file.write(self.header())
        attention = [f"self_attn.{name}_proj" for name in "qkvo"]
        mlp = [f"mlp.{name}_proj" for name in ("gate", "down", "up")]
        if self.case.version == 0:
            self.tensor("model.embed_tokens.weight")
            self.layers("input_layernorm", *attention, "post_attention_layernorm", *mlp)
            self.tensor("model.norm.weight")
            half = self.case.sizes["hidden_size"] // self.case.sizes["num_attention_heads"] // 2
            angles = numpy.outer(
                numpy.arange(self.case.sizes["max_position_embeddings"]), 10000.0 ** (-numpy.arange(half) / half))
            self.file.write(numpy.cos(angles).astype("<f4").tobytes() + numpy.sin(angles).astype("<f4").tobytes())
        else:
            self.layers("input_layernorm", "post_attention_layernorm")
            self.tensor("model.norm.weight")
            self.tensor("model.embed_tokens.weight")
            self.layers(*attention, *mlp)
        if not self.case.shared:
            self.tensor("lm_head.weight")
        return self.file.getvalue()


def id_sum(ids):
    """FNV-1a of the ids, 32 bits little-endian each."""
    value = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def vocabulary(folder, size):
    """Trains a vocabulary on the repository's text, and writes tokenizer.bin as llama2.c's script does."""
    text = (MODELS / "perplexity.txt").read_text()
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_writer=trained, model_type="bpe", vocab_size=size,
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        num_threads=1, minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    assert model.vocab_size() == size and (model.bos_id(), model.eos_id()) == (1, 2)
    tokens = []
    for i in range(size):
        piece = {1: "\n<s>\n", 2: "\n</s>\n"}.get(i, model.id_to_piece(i)).replace("▁", " ").encode()
        tokens.append(struct.pack("<fI", model.get_score(i), len(piece)) + piece)
    longest = max(len(token) - 8 for token in tokens)
    (folder / "tokenizer.bin").write_bytes(struct.pack("<I", longest) + b"".join(tokens))
    lines = LINES + [line for line in text.splitlines() if line][:40]
    mixed = MODELS.parents[1] / "crates/engine/tests/data/mixed.jsonl"
    mixed = [json.loads(line) for line in mixed.read_text(encoding="utf-8").split("\n") if line]
    golden = {
        "made_by": "tests/oracle/make_tiny_llama2c.py", "sentencepiece": sentencepiece.__version__,
        "lines": [{"text": line, "ids": model.encode(line)} for line in lines],
        "mixed": [id_sum(model.encode(line)) for line in mixed],
    }
    write_json(folder / "tokens.json", golden)


def make(name, case):
    folder = MODELS / "tiny" / name
    config = LlamaConfig(
        **case.sizes, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=case.shared, attn_implementation="eager")
    model = LlamaForCausalLM(config).float().eval()
    randomise(model, case.seed, torch.float32)
    written = Writer(model, case).write()
    if case.version == 2:
        for parameter in model.parameters():
            if parameter.dim() == 2:
                # Groups lie within rows, so that their order does not matter.
                parameter.data = rounded(parameter.data, case.group)[2]
    random = numpy.random.RandomState(case.seed + 1000)
    sequences = [random.randint(0, config.vocab_size, length).tolist() for length in case.lengths]
    logits = run(model, sequences)

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(written)
    floats = Floats()
    golden = {
        "made_by": "tests/oracle/make_tiny_llama2c.py", "transformers": transformers.__version__,
        "torch": torch.__version__, "seed": case.seed,
        "sequences": [{"ids": ids, "logits": floats.add(rows.numpy())} for ids, rows in zip(sequences, logits)],
        "greedy": greedy_of(model, sequences),
    }
    floats.write(folder / "golden.bin")
    write_json(folder / "golden.json", golden)
    if case.vocabulary:
        vocabulary(folder, config.vocab_size)
    print(f"{name}: {sum(path.stat().st_size for path in folder.iterdir())} bytes")


def main():
    torch.set_num_threads(1)
    make_named(cases(), make)


if __name__ == "__main__":
    main()
