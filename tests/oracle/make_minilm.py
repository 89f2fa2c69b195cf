"""Makes tests/models/minilm.{json,bin}: what sentence-transformers makes of 300 texts with all-MiniLM-L6-v2, float32.

    python3 tests/oracle/make_minilm.py --model DIR

DIR is what `thane pull minilm` answers. Lengths go from 0 to 510 tokens and beyond the 512 that the positions allow; the
model's own limit of 256 is raised to 512. Most texts are pieces of perplexity.txt, so the JSON has their bytes only; the
others are in it. Each text is run alone, without padding (eager attention), then all again in batches, and by BertModel with a
mean of our own: 2e-6 is allowed. CPU only, two minutes; the seed is a literal.
Needs torch, transformers, sentence-transformers, tokenizers, numpy.
"""

import argparse
import sys
from pathlib import Path

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "sentence_transformers", "tokenizers", "numpy")

import numpy
import sentence_transformers
import tokenizers
import torch
import transformers

SEED = 501
N_TEXTS = 300
MAX_LEN = 512
ALLOWED = 2e-6
# Token counts without [CLS] and [SEP] that must be there; the rest is spread evenly over the logarithm.
LENGTHS = [*range(1, 17), 62, 63, 126, 127, 128, 254, 255, 256, 382, 383, 508, 509, 510, 510, 511, 512, 700]
OTHERS = [
    "",
    " ",
    "a",
    "Sea",
    "THE SEA IS CALM TONIGHT",
    "Zażółć gęślą jaźń, a potem wróć do domu.",
    "Der Zug nach Köln fährt um 7:45 Uhr von Gleis 3 ab; Fahrräder müssen vorher angemeldet werden.",
    "L'été dernier, nous avons loué une maison près de l'église, à deux pas de la forêt.",
    "El niño pequeño comió una manzana y después bebió un vaso de leche.",
    "Det blåser på fjället och vägen är stängd till i morgon.",
    "Кошка спит на тёплом камне, а море шумит внизу.",
    "Поезд отправляется в семь часов сорок пять минут.",
    "Η θάλασσα είναι ήρεμη απόψε και το φεγγάρι λάμπει.",
    "今日は天気がいいから、散歩しましょう。",
    "東京都に本社を置く会社の株価が上昇した。",
    "猫が暖かい石の上で眠る。",
    "我们明天早上八点在图书馆门口见面。",
    "오늘은 날씨가 좋아서 공원에 갔다.",
    "القطة تنام على الحجر الدافئ فوق البحر.",
    "החתול ישן על האבן החמה.",
    "बिल्ली गर्म पत्थर पर सो रही है।",
    "แมวนอนบนหินอุ่น",
    "con mèo ngủ trên hòn đá ấm",
    "cafe\u0301 na\u00efve r\u00e9sum\u00e9 \u212b \ufb01le",
    "emoji 🙂🚀 and 👩‍👩‍👧 families",
    "tabs\tand\r\nlines\u2028with\u00a0odd\u200b spaces\u3000here",
    "def area(r): return 3.14159 * r ** 2  # float -> float",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;",
    "https://example.org/a/b?c=1&d=%20#top",
    "e = mc^2; ∑_{i=1}^{n} i = n(n+1)/2; √2 ≈ 1.41421",
    "[CLS] these are control tokens in a text [SEP] [MASK]",
    "##ing unaffable antidisestablishmentarianism",
    "x" * 100,
    "x" * 101,
    "one, two; three: four! five? (six) \"seven\" 'eight' -- nine... ten",
    "0 1 22 333 4444 55555 1,000,000.00 1e-5 0xff 12:30 2026-11-21",
    "The the THE tHe",
    "\u0000null\u0007bell\ufffdreplacement",
]


def slices(random, tokenizer, n_slices):
    """Pieces of the prose by their bytes, with the wanted numbers of tokens, from anywhere: words are cut too."""
    prose = (MODELS / "perplexity.txt").read_text(encoding="utf-8")
    encoding = tokenizer.encode(prose, add_special_tokens=False)
    spread = numpy.exp(random.uniform(0, numpy.log(510), n_slices)).round().astype(int)
    lengths = [*LENGTHS, *spread.tolist()][:n_slices]
    for n in lengths:
        first = int(random.randint(0, len(encoding.ids) - n))
        start, end = encoding.offsets[first][0], encoding.offsets[first + n - 1][1]
        yield [len(prose[:start].encode()), len(prose[:end].encode())], prose[start:end]


def texts_of(tokenizer):
    random = numpy.random.RandomState(SEED)
    rows = [({"text": text}, text) for text in OTHERS]
    rows += [({"bytes": place}, text) for place, text in slices(random, tokenizer, N_TEXTS - len(rows))]
    return rows


def uncut_tokenizer(folder):
    """tokenizer.json, which would cut and pad to 128 by itself."""
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def check_ids(tokenizer, text, ids):
    """The reference cuts what tokenizer.json gives; answers the number of tokens before the cut."""
    whole = tokenizer.encode(text).ids
    if ids != (whole if len(whole) <= MAX_LEN else [*whole[: MAX_LEN - 1], whole[-1]]):
        sys.exit(f"'{text[:40]}': the reference gives other tokens than tokenizer.json")
    return len(whole)


def by_hand(model, ids):
    """BertModel, the mean and the length of one in float64 // [ids] -> [dimension]"""
    with torch.no_grad():
        hidden = model[0].model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
    vector = hidden.mean(0)
    return vector / numpy.linalg.norm(vector)


def compare(ours, theirs, what):
    apart = float(numpy.abs(ours - theirs).max())
    print(f"{what}: {apart:.1e}")
    if apart > ALLOWED:
        sys.exit(f"{what} differ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR", help="the model's folder")
    folder = parser.parse_args().model
    torch.set_num_threads(1)
    model = sentence_transformers.SentenceTransformer(
        folder, device="cpu", model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"})
    model.max_seq_length = MAX_LEN
    tokenizer = uncut_tokenizer(folder)
    rows = texts_of(tokenizer)

    texts = [text for _, text in rows]
    ids = [model.preprocess([text])["input_ids"][0].tolist() for text in texts]
    n_tokens = [check_ids(tokenizer, text, row) for text, row in zip(texts, ids)]
    single = numpy.concatenate([model.encode([text], show_progress_bar=False) for text in texts])
    compare(model.encode(texts, batch_size=32, show_progress_bar=False), single, "batches of 32")
    compare(numpy.stack([by_hand(model, row) for row in ids]), single, "a mean of our own")

    floats = Floats()
    places = floats.add(single)
    floats.write(MODELS / "minilm.bin")
    write_json(MODELS / "minilm.json", {
        "made_by": "tests/oracle/make_minilm.py", "file": "all-MiniLM-L6-v2", "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__, "torch": torch.__version__, "seed": SEED,
        "max_seq_len": MAX_LEN, "embeddings": places,
        "texts": [head | {"n_tokens": n, "ids": row} for (head, _), n, row in zip(rows, n_tokens, ids)],
    })
    print(f"{len(rows)} texts, {min(map(len, ids))} to {max(map(len, ids))} ids, {sum(map(len, ids))} in all")


if __name__ == "__main__":
    main()
