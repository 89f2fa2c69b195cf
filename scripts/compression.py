"""Sizes, speeds and quality of compressed packages, beside coremltools and llama.cpp on the same values.

    python3 scripts/compression.py measure THANE WORK --text TEXT --commit HASH [--llama BIN] [--tokens N] [--only MODEL[/ROW],..]
    python3 scripts/compression.py page [--check]

`measure` needs the test text of WikiText-2, the models of scripts/models.sh in the cache, the packages of tests/oracle/requirements.txt with
scikit-learn, and for rows of llama.cpp the folder with its `llama-quantize`. What is in WORK already is not made again.
A row is appended to data/measurements/compression.jsonl as soon as it is known. `page` writes docs/measurements/compression.md
from them.

A row is the values that a method gives to the matrices of a model. Quality is what `thane quality` says of them in f32
against the file's own values in f32: of packages for Thane's rows, of an F32 GGUF file or a folder with the values that
coremltools decompresses for its rows, of the GGUF file for rows of llama.cpp. Bits count everything: codes, tables,
scales, embeddings, norms.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data/measurements/compression.jsonl"
PAGE = ROOT / "docs/measurements/compression.md"
ENCODINGS = ["pal4", "pal6", "int8", "2x16", "auto"]
CHIPS = ["a19", "m4", "m6"]
CONTEXT = "2048"
MODELS = {
    "smollm2-135m": {"file": "SmolLM2-135M-Instruct.Q4_1.gguf", "source": "Q4_1", "weights": 134_515_008},
    "gemma3-270m": {"file": "gemma-3-270m-q4_k_m.gguf", "source": "Q4_K_M", "weights": 268_098_176},
    "minilm": {"file": "all-MiniLM-L6-v2", "source": None, "weights": 22_713_216},
}
HEAD = """# Compressed packages

Sizes, predicted speed and quality of packages with compressed weights. `scripts/compression.py`
makes the rows and this page from `data/measurements/compression.jsonl`. The reference is the file's
own values, and all models compute in f32 here. Perplexity, KL divergence and agreement are those of
the test text of WikiText-2 with a context of up to 2,048 tokens, with 95 % intervals. MB are
weights and tables, and bits are those of all of them for each weight of the model. A time is what
is predicted with a context of 2,048 tokens, with the range that 80 % of calls lie in; no chip here
was measured. The form is that which `convert` chooses for the three chips together.

Of the 4.1 ms that pal4 of SmolLM2 is predicted to take on m4, reading its bytes takes 1.4: the rest
is mostly 634 tasks of 4 us each, which no form of the program avoids. So fewer bits bring less time
than bytes there."""

# Type of the rest, of the embedding, of the head. Columns that are no multiple of 256 make others fall back.
LLAMA = [("Q4_0", "q4_0", "q4_0"), ("IQ4_NL", "iq4_nl", "iq4_nl"), ("Q4_1", "q4_1", "q4_1"), ("Q2_K", "q4_0", "q4_0")]


def run(*command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    return done.stdout


def thane_row(thane, work, name, encoding):
    """Converts with an encoding; a chip that refuses it is left out."""
    is_embedder = name == "minilm"
    fixed = ["--task", "embed", "--buckets", "128"] if is_embedder else ["--context", CONTEXT, "--split", "1"]
    chips, refused = list(CHIPS), {}
    out = work / f"{name}-{encoding}.mlpackage"
    while True:
        compress = [] if encoding == "fp16" else ["--compress", encoding]
        command = [thane, "convert", name, *fixed, *compress, "--target", ",".join(chips), "-o", out, "--force",
                   "--json", "--quiet"]
        start = time.monotonic()
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        seconds = time.monotonic() - start
        if done.returncode == 0:
            break
        found = [chip for chip in chips if re.search(rf"\b{chip}\b", done.stderr)]
        if len(found) != 1:
            raise RuntimeError(done.stderr)
        refused[found[0]] = sorted(set(re.findall(r"ANE\d+", done.stderr)))
        chips.remove(found[0])
        if not chips:
            return None, {"refused": refused}
    report = json.loads(done.stdout)
    speeds = {}
    for audit in report["audits"]:
        time_of = audit["answer"]["token"] if audit.get("answer") else audit
        speeds[audit["target"].split("+")[0]] = [time_of[key] for key in ("ms", "low_ms", "high_ms")]
    return out, {"bytes": report["audits"][0]["disk_bytes"], "speeds": speeds, "refused": refused,
                 "error": (report.get("compression") or {}).get("error"), "seconds": round(seconds, 1)}


def their_matrix(matrix, encoding):
    """The values that coremltools gives to a matrix, and the bytes of its codes, tables and scales."""
    sys.path.insert(0, str(ROOT / "tests/oracle"))
    import check_compress as oracle
    import coremltools as ct
    import numpy as np
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    weight = matrix.astype(np.float16)
    n_rows, n_cols = weight.shape

    @mb.program(input_specs=[mb.TensorSpec((1, n_cols), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def program(x):
        return mb.linear(x=x, weight=weight, name="y")

    model = ct.convert(program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
                       compute_precision=ct.precision.FLOAT16, pass_pipeline=ct.PassPipeline.EMPTY,
                       skip_model_load=True)
    compress, config = oracle.theirs(encoding)
    start = time.monotonic()
    model = compress(model, oracle.optimize.OptimizationConfig(config))
    seconds = time.monotonic() - start
    path = Path(os.environ["COMPRESSION_SCRATCH"]) / "one.mlpackage"
    shutil.rmtree(path, ignore_errors=True)
    model.save(str(path))
    size = (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    return oracle.decompressed(path)["linear"].astype(np.float32), size, seconds


def rewrite_gguf(source, out, change):
    """An F32 copy of a GGUF file, with other values for its matrices. Returns the bytes of all values."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    n_bytes = 0
    for tensor in reader.tensors:
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        size = value.size * 2
        if value.ndim == 2 and min(value.shape) > 1:
            value, size = change(value)
        n_bytes += size
        writer.add_tensor(tensor.name, np.ascontiguousarray(value), raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return n_bytes


def rewrite_folder(source, out, change):
    """The same of a folder of safetensors."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    shutil.copytree(source, out, dirs_exist_ok=True)
    n_bytes, tensors = 0, {}
    for key, value in load_file(source / "model.safetensors").items():
        size = value.size * 2
        if value.ndim == 2 and "position" not in key and "token_type" not in key:
            value, size = change(value)
        n_bytes += size if np.issubdtype(value.dtype, np.floating) else 0
        tensors[key] = np.ascontiguousarray(value)
    (out / "model.safetensors").unlink()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return n_bytes


def coremltools_row(work, models, name, encoding):
    seconds = 0.0

    def change(value):
        nonlocal seconds
        value, size, took = their_matrix(value, encoding)
        seconds += took
        return value, size

    source = models / MODELS[name]["file"]
    out = work / (f"{name}-coremltools-{encoding}" + ("" if source.is_dir() else ".gguf"))
    note = out.with_name(out.name + ".json")
    if not note.exists():
        n_bytes = (rewrite_folder if source.is_dir() else rewrite_gguf)(source, out, change)
        note.write_text(json.dumps({"bytes": n_bytes, "seconds": round(seconds, 1)}))
    return out, json.loads(note.read_text())


def llama_row(work, models, name, types, llama):
    """From the file's own values in F32."""
    quantize = Path(llama) / "llama-quantize"
    source = models / MODELS[name]["file"]
    full = work / f"{name}-f32.gguf"
    if not full.exists():
        rewrite_gguf(source, full, lambda value: (value, 0))
    kind, embedding, head = types
    out = work / f"{name}-llama-{kind}.gguf"
    run(quantize, "--token-embedding-type", embedding, "--output-tensor-type", head, full, out, kind)
    from gguf import GGUFReader
    return out, {"bytes": sum(int(tensor.n_bytes) for tensor in GGUFReader(out).tensors)}


def quality(thane, subject, reference, name, tokens, work, text, threads):
    if name == "minilm":
        retrieval = work / "retrieval"
        if not retrieval.exists():
            run(sys.executable, ROOT / "scripts/retrieval_set.py", text, "-o", retrieval)
        texts = ["--retrieval", retrieval]
    else:
        texts = ["--file", text, "--tokens", tokens, "--answers", "0"]
    start = time.monotonic()
    report = json.loads(run(thane, "quality", subject, reference, *texts, "--numerics", "f32", "--json", "--quiet",
                            "--threads", threads))
    # Names are enough: paths are those of one machine.
    for key in ("model", "reference"):
        report[key] = Path(report[key]).name
    return report, round(time.monotonic() - start, 1)


def rows_of(name):
    yield from (("Thane", encoding) for encoding in ["fp16", *ENCODINGS])
    yield from (("coremltools", encoding) for encoding in ENCODINGS if encoding != "auto")
    if name != "minilm":
        yield from (("llama.cpp", types) for types in LLAMA if types[0] != MODELS[name]["source"])


def measure(args):
    work, models = Path(args.work), Path(args.models)
    work.mkdir(parents=True, exist_ok=True)
    os.environ["COMPRESSION_SCRATCH"] = str(work)
    wanted = args.only.split(",") if args.only else list(MODELS)
    version = run(args.thane, "--version").strip()
    for name in MODELS:
        for method, encoding in rows_of(name):
            label = encoding if isinstance(encoding, str) else encoding[0]
            if not any(want in (name, f"{name}/{method}", f"{name}/{method}/{label}") for want in wanted):
                continue
            if method == "llama.cpp" and not args.llama:
                continue
            print(f"{name} {method} {label}", file=sys.stderr, flush=True)
            if method == "Thane":
                subject, row = thane_row(args.thane, work, name, label)
            elif method == "coremltools":
                subject, row = coremltools_row(work, models, name, label)
            else:
                subject, row = llama_row(work, models, name, encoding, args.llama)
            if subject is None:
                print(f"refused: {row['refused']}", file=sys.stderr)
                continue
            report, seconds = quality(args.thane, subject, models / MODELS[name]["file"], name, args.tokens, work,
                                      args.text, args.threads)
            row = {"model": name, "method": method, "encoding": label, **row, "quality": report,
                   "quality_seconds": seconds, "thane": version, "commit": args.commit,
                   "date": time.strftime("%Y-%m-%d")}
            with open(args.out, "a") as file:
                file.write(json.dumps(row) + "\n")


def figure(interval, digits):
    """A mean and its 95 % interval."""
    low, high = (f"{interval[key]:.{digits}f}" for key in ("low", "high"))
    return f"{interval['value']:.{digits}f} ({low} to {high})"


def speed(row):
    if row["method"] != "Thane":
        return ["", "", ""]
    cells = []
    for chip in CHIPS:
        found = row["speeds"].get(chip)
        refused = ", ".join(row["refused"].get(chip, []))
        cells.append("{:.1f} ({:.1f} to {:.1f})".format(*found) if found else f"refused: {refused}")
    return cells


def line(row, n_weights):
    report = row["quality"]
    bits = f"{8 * row['bytes'] / n_weights:.2f}"
    cells = [row["method"], row["encoding"], f"{row['bytes'] / 1e6:.1f}", bits]
    if language := report.get("language"):
        cells += [figure(language["perplexity"], 2), figure(language["kl"]["mean"], 4),
                  f"{100 * language['same_first']['value']:.1f}"]
    else:
        whole = report["embedding"]["dimensions"][0]
        cells += [figure(whole["cosine"], 4), figure(whole["ndcg"], 4), figure(whole["ndcg_difference"], 4)]
    return "| " + " | ".join(cells + speed(row)) + " |"


def page():
    """The page of the newest row of each method and encoding."""
    rows = [json.loads(text) for text in DATA.read_text().splitlines()]
    newest = {(row["model"], row["method"], row["encoding"]): row for row in rows}
    out = [HEAD]
    for name in MODELS:
        found = [row for (model, *_), row in newest.items() if model == name]
        if not found:
            continue
        language = found[0]["quality"].get("language")
        measured = ["perplexity", "KL, nats", "same first token, %"] if language else ["cosine", "nDCG@10", "difference"]
        unit = "ms a token" if language else "ms a text of 128 tokens"
        columns = ["by", "encoding", "MB", "bits"] + measured + [f"{chip}, {unit}" for chip in CHIPS]
        out.append(f"\n## {name}\n")
        made = ", ".join(sorted({f"{row['commit']} of {row['date']}" for row in found}))
        if language:
            reference = figure(language["reference_perplexity"], 2)
            out.append(f"Commit {made}; {language['tokens']} tokens; perplexity of the reference {reference}.\n")
        else:
            embedding = found[0]["quality"]["embedding"]
            reference = figure(embedding["dimensions"][0]["reference_ndcg"], 4)
            out.append(f"Commit {made}; {embedding['texts']} texts, {embedding['queries']} of them queries, of the test text\n"
                       f"of WikiText-2 (`scripts/retrieval_set.py`); nDCG@10 of the reference {reference}.\n")
        out.append("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
        out.extend(line(row, MODELS[name]["weights"]) for row in found)
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    flags = verbs.add_parser("measure")
    flags.add_argument("thane", type=Path)
    flags.add_argument("work")
    flags.add_argument("--text", required=True)
    flags.add_argument("--threads", default="2")
    flags.add_argument("--commit", required=True)
    flags.add_argument("--models", default="target/models")
    flags.add_argument("--llama")
    flags.add_argument("--tokens", default="20000")
    flags.add_argument("--only")
    flags.add_argument("--out", default=str(DATA))
    verbs.add_parser("page").add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.verb == "measure":
        args.thane = args.thane.resolve()
        return measure(args)
    if not args.check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE} is out of date: python3 scripts/compression.py page")


if __name__ == "__main__":
    main()
