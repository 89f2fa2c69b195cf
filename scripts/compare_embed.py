"""Embeds the same texts with all-MiniLM-L6-v2 in Thane and in ONNX Runtime, by turns in one run: texts a second of both.

    python3 scripts/compare_embed.py MODEL FOLDER [--thane target/release/thane] [--rounds 5] [--threads 1,2]

MODEL is the folder of the model (`thane pull minilm` prints it); FOLDER gets its ONNX form, exported once by torch, and the
texts: 256 of 8 to 256 tokens. ONNX Runtime tokenises with `tokenizers`, sorts by length, runs batches of 32 in fp32, pools and
normalises; its time starts behind its loading. Thane's is the time of `thane embed --numerics f32` for all texts less that
for the first one, so that its loading is left out too. Prints one JSON line a round and number of threads, with the least cosine
of the two results, and one with the medians. Needs torch, transformers, onnx, onnxruntime, tokenizers and numpy.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import time

import numpy

N_TEXTS, BATCH = 256, 32


def export(model, path):
    import torch
    from transformers import AutoModel

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, ids, mask, kinds):
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state

    ids = torch.ones(2, 8, dtype=torch.long)
    names = ["ids", "mask", "kinds"]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "hidden"]}
    with torch.no_grad():
        torch.onnx.export(
            Hidden(), (ids, ids, ids * 0), str(path), input_names=names, output_names=["hidden"], dynamic_axes=axes, opset_version=17, dynamo=False
        )


def make_texts():
    random = numpy.random.default_rng(3)
    words = "the sea a stone light of wind and house river they went over under slowly because every night was long".split()
    # A word is a token here; two more are [CLS] and [SEP].
    return [" ".join(random.choice(words, int(n))) for n in random.integers(6, 255, N_TEXTS)]


class Peer:
    def __init__(self, model, path, n_threads):
        import onnxruntime
        import tokenizers

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def embed(self, texts):
        encoded = [e.ids for e in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        out = numpy.empty((len(texts), 384), dtype=numpy.float32)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            width = max(len(encoded[i]) for i in part)
            ids = numpy.array([encoded[i] + [0] * (width - len(encoded[i])) for i in part], dtype=numpy.int64)
            mask = numpy.array([[1] * len(encoded[i]) + [0] * (width - len(encoded[i])) for i in part], dtype=numpy.int64)
            hidden = self.session.run(["hidden"], {"ids": ids, "mask": mask, "kinds": mask * 0})[0]
            pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
            out[part] = pooled / numpy.linalg.norm(pooled, axis=1, keepdims=True)
        return out


def thane(args, file, n_threads):
    command = [args.thane, "embed", "--json", "--numerics", "f32", "--threads", str(n_threads), args.model, "--file", str(file)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return report["seconds"], numpy.array(report["embeddings"], dtype=numpy.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--thane", default="target/release/thane")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path, all_file, one_file = (args.folder / name for name in ("minilm.onnx", "texts.jsonl", "one.jsonl"))
    if not path.exists():
        export(args.model, path)
    texts = make_texts()
    all_file.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    one_file.write_text(json.dumps({"text": texts[0]}) + "\n")
    for n_threads in map(int, args.threads.split(",")):
        peer = Peer(args.model, path, n_threads)
        peer.embed(texts[:BATCH])
        ratios = []
        for _ in range(args.rounds):
            start = time.perf_counter()
            expected = peer.embed(texts)
            of_peer = time.perf_counter() - start
            of_all, found = thane(args, all_file, n_threads)
            ours = of_all - thane(args, one_file, n_threads)[0]
            ratios.append(of_peer / ours)
            rates = {"onnxruntime": round(N_TEXTS / of_peer, 1), "thane": round(N_TEXTS / ours, 1)}
            row = {"threads": n_threads, "texts_per_s": rates, "ratio": round(ratios[-1], 3)}
            print(json.dumps(row | {"least_cosine": float((found * expected).sum(1).min())}), flush=True)
        print(json.dumps({"threads": n_threads, "median_ratio": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    main()
