"""Makes tests/models/regexes.json: what the tokenizers library cuts and replaces by patterns of tokenizer.json.

    pip install tokenizers==0.23.3
    python3 tests/oracle/make_regexes.py [--check]

The library matches with Oniguruma in Ruby's syntax. Each pattern is there because other engines read it otherwise.
"""

import argparse
import json
import sys

from golden import MODELS, need

need("tokenizers")

from tokenizers import Regex, normalizers, pre_tokenizers

FILE = MODELS / "regexes.json"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
SPLITS = [
    r"\p{N}{1,3}+", r"\p{N}{1,3}", r"\p{N}{2}?", r"\s+$", r"^\s+|^\p{L}", r"(?m:a.b)", r"a.b", CL100K, r"[[:alpha:]]+", r"[[:upper:]]",
    r"[[:digit:]]+", r"[[:punct:]]", r"[[:space:]]+", r"[[:word:]]+", r"[[:^alpha:]]", r"\w+", r"\W+", r"[\w-]+", r"\b", r"\h+", r"\R", r"\N+",
    r"\p{^L}+", r"\p{Word}+", r"\p{Punct}", r"\p{Graph}+", r"a(?i)b|é", r"(?i:'S|'t)", r"[a~~+--]", r"x{,2}", r"{a}", r"(?#all)\d", r"\Z", r"\d+\z",
    r"[^\s\p{L}]+|[\p{L}&&[^aeiou]]+", r"(?<=\d)(?=(?:\d{3})+$)", r"\u00e9|\x41|\x{732b}",
]
REPLACES = [(r"^ ", "_"), (r"\s+$", ""), (r"[[:digit:]]", "0"), (r" {2,}", " "), (r"\p{N}{1,3}+", "#")]
TEXTS = [
    "x 12345 y67", "a \nb", " a\n b\n", "a\nb a b", "eée Straße ²³ ½x", "naïve-co\u200dop_9 C3PO", "It's 'S 'T don't", "a1234567b", "tab\there\r\nthere ",
    "猫が 12 匹。", "$5 + 7 = ~12^2 `q` <b>", "{a} {1,2} xxx", "A9f\u0301 \u00a0z", "ab AB aB \u2028 q", "~&-[x]",
]


def made():
    splits = []
    for pattern in SPLITS:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        splits.append({"pattern": pattern, "pieces": [[piece for piece, _ in split.pre_tokenize_str(text)] for text in TEXTS]})
    replaces = []
    for pattern, content in REPLACES:
        replace = normalizers.Replace(Regex(pattern), content)
        replaces.append({"pattern": pattern, "content": content, "texts": [replace.normalize_str(text) for text in TEXTS]})
    return {"texts": TEXTS, "splits": splits, "replaces": replaces}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = json.dumps(made(), ensure_ascii=False, indent=1) + "\n"
    if check:
        sys.exit(0 if FILE.read_text() == text else "regexes.json is not what the library does")
    FILE.write_text(text)


if __name__ == "__main__":
    main()
