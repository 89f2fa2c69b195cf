"""Makes what `thane quality` is compared with: metrics by numpy, scipy and scikit-learn, and tiny models by transformers and
sentence-transformers.

    python3 tests/oracle/make_quality.py

writes
  crates/engine/tests/data/quality.json   rows of logits, quantiles and rankings, with their metrics
  tests/quality/decoder.json              tiny-chat with another rms_norm_eps, beside tiny-chat, over perplexity.txt
  tests/quality/retrieval                 a retrieval set of perplexity.txt
  tests/quality/encoder.json              bert-mean with another layer_norm_eps, beside bert-mean, on that set

The windows of the decoder are those of `thane quality`: each begins with an empty context, and every token but the first is
predicted once. CPU only, a minute.
Needs torch, transformers, sentence-transformers, scipy, scikit-learn, numpy.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need, write_json

need("torch", "transformers", "sentence_transformers", "scipy", "sklearn", "numpy")

import numpy
import scipy.special
import scipy.stats
import sklearn.metrics
import torch
import transformers

ROOT = MODELS.parent.parent
QUALITY = MODELS.parent / "quality"
SEED = 57
TOKENS, WINDOW = 600, 256
RMS_NORM_EPS, LAYER_NORM_EPS = 0.01, 0.5
PROMPT, ANSWER, PROMPTS = 32, 24, 4


def metrics(model, reference, following):
    """Of one position; rows are float32, all else is float64."""
    q = scipy.special.log_softmax(numpy.asarray(model, dtype=numpy.float64))
    p = scipy.special.log_softmax(numpy.asarray(reference, dtype=numpy.float64))
    five = [list(numpy.argsort(-numpy.asarray(row), kind="stable")[:5]) for row in (model, reference)]
    a, b = numpy.asarray(model, dtype=numpy.float64), numpy.asarray(reference, dtype=numpy.float64)
    return {
        "nll": -q[following], "reference_nll": -p[following],
        "kl": scipy.stats.entropy(numpy.exp(p), numpy.exp(q)),
        "same_first": bool(five[0][0] == five[1][0]), "same_five": len(set(five[0]) & set(five[1])) / len(five[1]),
        "cosine": 1 - scipy.spatial.distance.cosine(a, b),
    }


def rows(random):
    """Logits from nearly equal to unlike, with ties, peaks and a vocabulary of three."""
    for size, noise, spread in [(97, 0.01, 3), (97, 0.5, 3), (40, 3, 1), (3, 1, 1), (97, 0.1, 12)]:
        for _ in range(3):
            reference = (spread * random.standard_normal(size)).astype(numpy.float32)
            model = (reference + noise * random.standard_normal(size)).astype(numpy.float32)
            yield model, reference, int(random.randint(size))
    tied = numpy.asarray([1, 2, 2, 2, 0, 2, 2, 2], dtype=numpy.float32)
    yield tied, tied[::-1].copy(), 3


def make_metrics():
    random = numpy.random.RandomState(SEED)
    cases = []
    for model, reference, following in rows(random):
        found = metrics(model, reference, following)
        cases.append({"model": model.tolist(), "reference": reference.tolist(), "next": following} | found)
    quantiles = []
    for size in (1, 2, 5, 100):
        values = numpy.sort(random.standard_normal(size))
        shares = [0.0, 0.025, 0.5, 0.9, 0.99, 1.0]
        quantiles.append({"values": values.tolist(), "shares": shares, "quantiles": numpy.quantile(values, shares).tolist()})
    rankings = []
    for size, k in [(30, 10), (30, 3), (8, 10)]:
        for _ in range(3):
            scores = random.standard_normal(size)
            gains = numpy.maximum(0, random.randint(-6, 4, size)).astype(float)
            gains[0] = 1
            rankings.append({"scores": scores.tolist(), "gains": gains.tolist(), "k": k,
                             "ndcg": sklearn.metrics.ndcg_score([gains], [scores], k=k)})
    write_json(ROOT / "crates/engine/tests/data/quality.json", {
        "made_by": "tests/oracle/make_quality.py", "numpy": numpy.__version__, "cases": cases,
        "quantiles": quantiles, "rankings": rankings,
    })


def logits(model, ids, window):
    """After each token but the last of all, window by window."""
    parts = []
    for start in range(0, len(ids) - 1, window):
        parts.append(model(torch.tensor([ids[start:min(start + window, len(ids) - 1)]])).logits[0].numpy())
    return numpy.concatenate(parts)


def parted(model, reference, ids):
    """Tokens that both answer alike, and by how much the reference prefers its own where they part."""
    ids, n = list(ids), 0
    while n < ANSWER:
        a, b = (m(torch.tensor([ids])).logits[0, -1].numpy() for m in (model, reference))
        if a.argmax() != b.argmax():
            return {"tokens": n, "gap": float(b.max() - b[a.argmax()])}
        ids.append(int(b.argmax()))
        n += 1
    return {"tokens": n, "gap": None}


def decoders(reference_folder, folder, tokens, window):
    """What `thane quality FOLDER REFERENCE --json` should say of perplexity.txt."""
    load = lambda path: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        model, reference = load(folder), load(reference_folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(reference_folder)
        ids = tokenizer((MODELS / "perplexity.txt").read_text(encoding="utf-8"))["input_ids"][:tokens]
        a, b = logits(model, ids, window), logits(reference, ids, window)
        found = [metrics(x, y, following) for x, y, following in zip(a, b, ids[1:])]
        n_prompt = min(PROMPT, len(ids) // 2)
        starts = [i * (len(ids) - n_prompt) // PROMPTS for i in range(PROMPTS)]
        answers = [parted(model, reference, ids[at:at + n_prompt]) | {"at": at} for at in starts]
    mean = lambda name: float(numpy.mean([row[name] for row in found]))
    kl = numpy.asarray([row["kl"] for row in found])
    return {
        "tokens": len(found), "window": window,
        "perplexity": float(numpy.exp(mean("nll"))), "reference_perplexity": float(numpy.exp(mean("reference_nll"))),
        "kl": {"mean": float(kl.mean()), "median": float(numpy.quantile(kl, 0.5)), "p90": float(numpy.quantile(kl, 0.9)),
               "p99": float(numpy.quantile(kl, 0.99)), "worst": float(kl.max()), "worst_at": int(kl.argmax()) + 1},
        "same_first": mean("same_first"), "same_five": mean("same_five"), "cosine": mean("cosine"),
        "greedy": answers,
    }


def changed(model, folder, **keys):
    """A copy of a tiny model with other keys in its configuration."""
    shutil.copytree(MODELS / model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


def make_decoder():
    with tempfile.TemporaryDirectory() as temporary:
        folder = changed("tiny-chat", Path(temporary) / "changed", rms_norm_eps=RMS_NORM_EPS)
        found = decoders(MODELS / "tiny-chat", folder, TOKENS, WINDOW)
    write_json(QUALITY / "decoder.json", {
        "made_by": "tests/oracle/make_quality.py", "transformers": transformers.__version__, "torch": torch.__version__,
        "rms_norm_eps": RMS_NORM_EPS, "prompt": PROMPT, "answer": ANSWER,
    } | found)


def retrieval_set():
    """Documents and queries out of perplexity.txt: a query is the first sentence of a paragraph, which the document lacks."""
    text = (MODELS / "perplexity.txt").read_text(encoding="utf-8")
    documents, queries = [], []
    for paragraph in (part.strip() for part in text.split("\n\n")):
        first, _, rest = paragraph.partition(". ")
        if len(rest.split()) >= 12:
            queries.append(first + ".")
            documents.append(" ".join(rest.split()[:40]))
    return documents, queries


def make_set():
    documents, queries = retrieval_set()
    folder = QUALITY / "retrieval"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    line = lambda value: json.dumps(value, ensure_ascii=False) + "\n"
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(documents)]
    (folder / "corpus.jsonl").write_text("".join(map(line, corpus)), encoding="utf-8")
    asked = [{"_id": f"q{i}", "text": text} for i, text in enumerate(queries)]
    (folder / "queries.jsonl").write_text("".join(map(line, asked)), encoding="utf-8")
    # A neighbor of the document is half as relevant.
    judged = [(f"q{i}", f"d{j}", 2 if i == j else 1) for i in range(len(queries)) for j in (i, i + 1) if j < len(documents)]
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]
    (folder / "qrels/test.tsv").write_text("\n".join(rows) + "\n")
    return documents, queries, judged


def make_encoder():
    from sentence_transformers import SentenceTransformer

    documents, queries, judged = make_set()
    gains = numpy.zeros((len(queries), len(documents)))
    for query, document, gain in judged:
        gains[int(query[1:]), int(document[1:])] = gain
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = changed("tiny-embed/bert-mean", Path(temporary) / "changed", layer_norm_eps=LAYER_NORM_EPS)
        for name, path in {"model": folder, "reference": MODELS / "tiny-embed/bert-mean"}.items():
            model = SentenceTransformer(str(path), device="cpu")
            found[name] = [x.astype(numpy.float64) for x in (model.encode_document(documents), model.encode_query(queries))]
    unit = lambda x, dim: x[:, :dim] / numpy.linalg.norm(x[:, :dim], axis=1, keepdims=True)
    whole = found["model"][0].shape[1]
    ndcg = [{"dim": dim} | {name: float(sklearn.metrics.ndcg_score(gains, unit(q, dim) @ unit(d, dim).T, k=10))
                            for name, (d, q) in found.items()} for dim in (whole, whole // 2)]
    a, b = (unit(numpy.concatenate(found[name]), whole) for name in found)
    cosines = (a * b).sum(1)
    write_json(QUALITY / "encoder.json", {
        "made_by": "tests/oracle/make_quality.py", "documents": len(documents), "queries": len(queries),
        "layer_norm_eps": LAYER_NORM_EPS, "ndcg": ndcg,
        "cosine": {"mean": float(cosines.mean()), "median": float(numpy.quantile(cosines, 0.5)), "worst": float(cosines.min())},
    })


if __name__ == "__main__":
    torch.set_num_threads(1)
    makers = {"metrics": make_metrics, "decoder": make_decoder, "encoder": make_encoder}
    for name in sys.argv[1:] or makers:
        makers[name]()
