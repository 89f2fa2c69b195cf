"""Compares Thane with the reference libraries on a published checkpoint, and writes a record.

    pip install torch transformers sentence-transformers huggingface_hub
    python3 scripts/parity.py --list
    python3 scripts/parity.py NAME THANE [--folder FOLDER] [--target a19] [--out RECORD]

NAME is a checkpoint of the list, which is downloaded from the Hub (HF_ENDPOINT, HF_TOKEN and the cache of
huggingface_hub count), or any name beside --folder, which has the files. Everything is computed in f32.

A language model: the tokens of each prompt are those of transformers. Thane answers greedily, and transformers sees
the same tokens in one pass: at each position Thane's token is its likeliest too, or as likely as that but for TIE, and
the log probabilities of the likeliest tokens differ by less than BOUND. With --target, the package that `convert` writes
for a chip goes through the same, with bounds for its fp16 weights and caches.
An embedding model: cosine of the vectors, and the largest difference as a share of the largest number. A context model
gets documents of several chunks, whose vectors are means of the hidden states between separators. The models of
perplexity-ai run the code of their repositories.

The record has versions, hashes of the files and the figures. The exit code is 1 if a figure is beyond its bound.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy
import torch
import transformers

# Name: repository, and what it is made for.
MODELS = {
    "pplx-embed-v1-0.6b": ("perplexity-ai/pplx-embed-v1-0.6b", "embed"),
    "pplx-embed-context-v1-0.6b": ("perplexity-ai/pplx-embed-context-v1-0.6b", "context"),
    "qwen2.5-0.5b": ("Qwen/Qwen2.5-0.5B-Instruct", "generate"),
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B", "generate"),
    "llama-3.2-1b": ("meta-llama/Llama-3.2-1B-Instruct", "generate"),
    "gemma-4-e2b": ("google/gemma-4-E2B-it", "generate"),
    "lfm2-350m": ("LiquidAI/LFM2-350M", "generate"),
    "qwen3.5-0.8b": ("Qwen/Qwen3.5-0.8B", "generate"),
}
PROMPTS = [
    "The lighthouse keeper climbed the stairs for the last time, and",
    "Der Zug nach Norden fährt um 7:45 Uhr ab. Wer ihn verpasst,",
    "def median(values):\n    values = sorted(values)\n",
    "水は摂氏百度で沸騰する。高い山の上では",
    "Ingredients: 200 g flour, 3 eggs, a pinch of salt.\nMethod:\n1.",
]
DOCUMENTS = [
    ["The cat sleeps on the warm stone above the sea.", "In the evening it goes home."],
    ["Granite is an igneous rock.", "Marble is metamorphic; it was limestone once.", "猫が眠る。"],
    ["Interest of 4.5 % is paid in March and in September."],
]
TOP = 20
ANSWER = 48
# Nats. Logits of a tie may differ by less than the error of sums in f32.
BOUND = {"checkpoint": 2e-3, "package": 0.1}
TIE = {"checkpoint": 1e-3, "package": 0.105}
COSINE = {"checkpoint": 0.99999, "package": 0.999}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def reference_decoder(folder):
    kinds = [transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText]
    for kind in kinds:
        try:
            model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
            return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)
        except ValueError as error:
            failure = error
    raise SystemExit(f"{folder}: transformers knows no language model in it: {failure}")


def compare_answers(thane, subject, folder, reference, kind):
    """Thane's greedy answers, seen by transformers."""
    model, tokenizer = reference
    tokens = positions = same = ties = 0
    largest, total, n = 0.0, 0.0, 0
    faults = []
    for prompt in PROMPTS:
        found = json.loads(run(thane, "run", subject, prompt, "--raw", "--json", "--quiet", "--temperature", "0", "--logprobs",
                               TOP, "--max-tokens", ANSWER, "--numerics", "f32"))
        expected = tokenizer(prompt)["input_ids"]
        if found["prompt_tokens"] != expected:
            faults.append(f"{prompt!r}: tokens {found['prompt_tokens']}, transformers has {expected}")
            continue
        tokens += len(expected)
        ids = torch.tensor([expected + found["tokens"]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(expected) - 1:-1].double()
        for at, (own, row) in enumerate(zip(found["logprobs"], torch.log_softmax(logits, -1))):
            positions += 1
            gap = float(row.max() - row[own["token"]])
            same += gap == 0
            ties += 0 < gap <= TIE[kind]
            if gap > TIE[kind]:
                faults.append(f"{prompt!r}: token {at} is {gap:.4f} nats less likely than that of transformers")
            for one in own["top"]:
                # What is hardly possible has no weight in an answer.
                if one["logprob"] is None or one["logprob"] < -12:
                    continue
                off = abs(one["logprob"] - float(row[one["token"]]))
                largest, total, n = max(largest, off), total + off, n + 1
    if largest > BOUND[kind]:
        faults.append(f"a log probability is off by {largest:.4f} nats, more than {BOUND[kind]}")
    return {"prompt_tokens": tokens, "positions": positions, "same_token": same, "near_ties": ties,
            "largest_difference_nats": largest, "mean_difference_nats": total / max(n, 1), "faults": faults}


def reference_vectors(folder, task):
    """One vector for each text, or for each chunk of each document."""
    texts = [text for document in DOCUMENTS for text in document]
    if task == "context":
        return hidden_means(folder, DOCUMENTS)
    if "auto_map" in json.loads((folder / "config.json").read_text()):
        # pplx-embed: the mean of the hidden states, before its last module makes integers of it.
        return hidden_means(folder, [[text] for text in texts])
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    return model.encode(texts, convert_to_numpy=True)


def hidden_means(folder, documents):
    """The means of the hidden states of each chunk, by the code of the repository."""
    model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    separator = tokenizer.sep_token or tokenizer.eos_token
    separator_id = tokenizer.convert_tokens_to_ids(separator)
    rows = []
    for chunks in documents:
        ids = tokenizer(separator.join(chunks))["input_ids"]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy()
        ends = [i for i, token in enumerate(ids) if token == separator_id][: len(chunks) - 1] + [len(ids)]
        for start, end in zip([0] + [end + 1 for end in ends[:-1]], ends):
            rows.append(hidden[start:end].mean(0))
    return numpy.stack(rows)


def own_vectors(thane, subject, task, scratch):
    texts = scratch / "texts.jsonl"
    rows = DOCUMENTS if task == "context" else [text for document in DOCUMENTS for text in document]
    key = "chunks" if task == "context" else "text"
    texts.write_text("".join(json.dumps({key: row}) + "\n" for row in rows))
    flags = ["--chunks", "--field", "chunks"] if task == "context" else []
    lines = run(thane, "embed", subject, *flags, "--file", texts, "--format", "float", "--numerics", "f32",
                "--quiet").splitlines()
    vectors = [numpy.array(json.loads(line), "float32") for line in lines]
    return numpy.concatenate([numpy.atleast_2d(one) for one in vectors])


def compare_vectors(own, expected, kind):
    if own.shape != expected.shape:
        return {"faults": [f"vectors are {own.shape}, those of sentence-transformers {expected.shape}"]}
    cosines = [float(a @ b / numpy.linalg.norm(a) / numpy.linalg.norm(b)) for a, b in zip(own.astype("float64"), expected)]
    scale = float(numpy.abs(expected).max())
    faults = [] if min(cosines) >= COSINE[kind] else [f"a cosine is {min(cosines):.6f}, less than {COSINE[kind]}"]
    return {"vectors": len(cosines), "least_cosine": min(cosines),
            "largest_difference": float(numpy.abs(own - expected).max()) / scale, "faults": faults}


def package_of(thane, folder, task, target, scratch):
    out = scratch / "package"
    shape = ["--context", "512"] if task == "generate" else ["--task", "embed", "--buckets", "96"]
    shape += ["--chunks"] if task == "context" else []
    # A model may be cut into several packages.
    out = out if task == "generate" else out.with_suffix(".mlpackage")
    command = [thane, "convert", folder, *shape, "--target", target, "--force", "--quiet", "-o"]
    done = subprocess.run([str(part) for part in [*command, out]], capture_output=True, text=True)
    if done.returncode and task == "generate":
        out = out.with_suffix(".mlpackage")
        run(*command, out)
    elif done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return out


def hashes(folder):
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts):
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def downloaded(repository):
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py"]
    return Path(snapshot_download(repository, allow_patterns=patterns))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?")
    parser.add_argument("thane", nargs="?", type=Path)
    parser.add_argument("--list", action="store_true", help="print the names and their repositories")
    parser.add_argument("--folder", type=Path, help="the files, instead of a download")
    parser.add_argument("--task", choices=["generate", "embed", "context"], help="for a name that is not in the list")
    parser.add_argument("--target", help="also compare the package for this chip, such as a19")
    parser.add_argument("--out", type=Path, help="where the record goes [default: data/measurements/parity/NAME.json]")
    args = parser.parse_args()
    if args.list:
        for name, (repository, task) in MODELS.items():
            print(f"{name:28} {task:9} {repository}")
        return
    if args.name is None or args.thane is None:
        parser.error("expected NAME and THANE, or --list")
    repository, task = MODELS.get(args.name, (None, args.task))
    if task is None or (repository is None and args.folder is None):
        parser.error(f"{args.name}: not in the list; another model needs --folder and --task")
    out = args.out or Path(__file__).resolve().parent.parent / f"data/measurements/parity/{args.name}.json"
    folder = args.folder or downloaded(repository)
    thane = args.thane.resolve()
    record = {
        "name": args.name, "repository": repository, "task": task,
        "thane": run(thane, "--version").strip(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "files": hashes(folder),
    }
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        expected = reference_decoder(folder) if task == "generate" else reference_vectors(folder, task)

        def compare(subject, kind):
            if task == "generate":
                return compare_answers(thane, subject, folder, expected, kind)
            return compare_vectors(own_vectors(thane, subject, task, scratch), expected, kind)

        record["checkpoint"] = compare(folder, "checkpoint")
        if args.target:
            package = package_of(thane, folder, task, args.target, scratch)
            record["package"] = {"target": args.target} | compare(package, "package")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(out.name + ".part")
    unfinished.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    os.replace(unfinished, out)
    faults = []
    for kind in ("checkpoint", "package"):
        if kind in record:
            figures = {key: value for key, value in record[kind].items() if key != "faults"}
            print(f"{args.name}, {kind}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
            faults += [f"{kind}: {fault}" for fault in record[kind]["faults"]]
    print(out)
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
