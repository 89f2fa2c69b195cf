#!/usr/bin/env python3
"""Makes crates/runtime/tests/data: tokenizer.model files as the SentencePiece library writes them, and what it answers.

    python3 crates/runtime/tests/make_sentencepiece.py

The texts are the mixed lines of the engine's tests, and for user_defined.json random texts of user-defined symbols, parts of
them, spaces and letters. Needs sentencepiece.
"""

import io
import json
import random
from pathlib import Path

import sentencepiece

HERE = Path(__file__).resolve().parent
LINES = HERE.parents[1] / "engine/tests/data/mixed.jsonl"


# Symbols that begin, end or contain others, with spaces (never found if they are not U+2581), and of several bytes.
SYMBOLS = ["\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<table>", "<t", "\u00e9", "\u2581the", "a b", " x", "ab", "\u8a9e", "x\u2581",
           "\U0001f642\u2581", "</table>"]
OTHERS = [" ", "  ", "the", "a", "b", "x", "q", "<", "table>", "\t", "\u3000", "e\u0301", "\u672c", "\U0001f642", "\u2581", "\r\n", "0", "sea", "\0", "\u00a0"]


def random_texts(n):
    source = random.Random(11)
    parts = SYMBOLS + [symbol.replace("\u2581", " ") for symbol in SYMBOLS] + OTHERS
    return ["".join(source.choice(parts) for _ in range(source.randint(1, 10))) for _ in range(n)]


def train(lines, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, bos_id=1, eos_id=2, unk_id=0, minloglevel=2,
        num_threads=1, **options)
    return out.getvalue()


def main():
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").split("\n") if line]
    folder = HERE / "data"
    folder.mkdir(exist_ok=True)
    models = {
        "llama": train(lines, model_type="bpe", vocab_size=900, byte_fallback=True),
        "gemma": train(lines, model_type="bpe", vocab_size=900, byte_fallback=True, add_dummy_prefix=False,
                       pad_id=3, user_defined_symbols=["\n", "\n\n", "\u2581\u2581", "<table>"]),
        "user_defined": train(lines, model_type="bpe", vocab_size=900, byte_fallback=True, user_defined_symbols=SYMBOLS),
        "unigram": train(lines, model_type="unigram", vocab_size=400),
    }
    answers = {}
    for name, model in models.items():
        (folder / f"{name}.model").write_bytes(model)
        if name == "unigram":
            continue
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if name == "user_defined":
            texts = random_texts(1500)
            rows = [[text, processor.encode(text)] for text in texts]
            (folder / "user_defined.json").write_text(
                json.dumps(rows, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        answers[name] = {
            "bos": processor.bos_id(), "eos": processor.eos_id(), "n_pieces": processor.vocab_size(),
            "ids": [processor.encode(line) for line in lines],
        }
    text = json.dumps(answers, separators=(",", ":"))
    (folder / "sentencepiece.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
