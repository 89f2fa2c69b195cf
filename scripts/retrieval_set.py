#!/usr/bin/env python3
"""Makes a retrieval set for `thane quality --retrieval` from a text in the form of WikiText.

    python3 scripts/retrieval_set.py TEXT -o FOLDER [--passages 3000] [--queries 400]

A passage is some neighboring sentences of a paragraph, without the first one. Some of these first sentences are queries, so no
query occurs in a passage. The passage that a query was taken from is relevant with a gain of 2, other passages of the same
article with 1. The choice depends on the text alone. FOLDER gets corpus.jsonl, queries.jsonl and qrels/test.tsv, as BEIR has
them. Needs nothing but Python.
"""

import argparse
import json
import re
import sys
from pathlib import Path

# Words of the sentence that may be a query, and of the passage behind it.
QUERY, PASSAGE = range(8, 41), range(15, 51)
# The tokenized form has spaces around what joins words.
JOINED = re.compile(r" @(.)@ ")
SPACED = [(" ,", ","), (" .", "."), (" ;", ";"), (" :", ":"), ("( ", "("), (" )", ")"), (" 's", "'s"), (" %", "%")]


def plain(text):
    """Without the marks of the tokenized form."""
    text = JOINED.sub(r"\1", text.replace("<unk>", ""))
    for before, after in SPACED:
        text = text.replace(before, after)
    return " ".join(text.split())


def paragraphs(text):
    """The number of the article and the sentences of each paragraph."""
    article = 0
    for line in text.splitlines():
        line = line.strip()
        # `= Title =` begins an article, `= = Title = =` a part of it.
        article += line.startswith("= ") and not line.startswith("= =")
        if line and not line.startswith("="):
            yield article, [sentence + " ." for sentence in line.rstrip(" .").split(" . ")]


def passages(text):
    """The article, a first sentence, and what follows it. A sentence with an unknown word is empty."""
    for article, sentences in paragraphs(text):
        at = 0
        while at < len(sentences):
            first, body, at = sentences[at], [], at + 1
            while at < len(sentences) and sum(len(s.split()) for s in body) < PASSAGE.start:
                body.append(sentences[at])
                at += 1
            words = plain(" ".join(body)).split()[: PASSAGE.stop - 1]
            if len(words) >= PASSAGE.start:
                yield article, "" if "<unk>" in first else plain(first), " ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=3000)
    parser.add_argument("--queries", type=int, default=400)
    args = parser.parse_args()
    found, seen = [], set()
    for article, first, passage in passages(args.text.read_text(encoding="utf-8")):
        if passage not in seen:
            seen.add(passage)
            found.append((article, first, passage))
    found = found[: args.passages]
    whole = "\n".join(passage for _, _, passage in found)
    asked = [i for i, (_, first, _) in enumerate(found) if len(first.split()) in QUERY and first not in whole]
    if len(found) < args.passages or len(asked) < args.queries:
        sys.exit(f"{args.text}: {len(found)} passages and {len(asked)} queries, {args.passages} and {args.queries} are needed")
    chosen = [asked[i * len(asked) // args.queries] for i in range(args.queries)]
    line = lambda value: json.dumps(value, ensure_ascii=False) + "\n"
    (args.out / "qrels").mkdir(parents=True, exist_ok=True)
    corpus = (line({"_id": f"d{i}", "title": "", "text": passage}) for i, (_, _, passage) in enumerate(found))
    (args.out / "corpus.jsonl").write_text("".join(corpus), encoding="utf-8")
    queries = (line({"_id": f"q{i}", "text": found[i][1]}) for i in chosen)
    (args.out / "queries.jsonl").write_text("".join(queries), encoding="utf-8")
    judged = ((i, j, 2 if i == j else 1) for i in chosen for j, other in enumerate(found) if other[0] == found[i][0])
    rows = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{j}\t{gain}" for i, j, gain in judged)]
    (args.out / "qrels/test.tsv").write_text("\n".join(rows) + "\n")
    print(f"{args.out}: {len(found)} passages, {len(chosen)} queries")


if __name__ == "__main__":
    main()
