"""Embeds the same texts with all-MiniLM-L6-v2 in Thane, ONNX Runtime and OpenVINO, by turns in one run: texts a second of each.

    python3 scripts/compare_embed.py MODEL FOLDER [--thane target/release/thane] [--rounds 5] [--threads 1,2] [--batch 1,32]

MODEL is the folder of the model (`thane pull minilm` prints it); FOLDER gets its ONNX form, exported once by torch, and the
texts: 256 of 8 to 256 tokens, short ones more often. The others tokenise with `tokenizers`, sort by length, run batches of
`--batch` texts in fp32, pool and normalise; their time starts behind their loading. Thane's is the time of `thane embed
--numerics f32` for all texts less that for the first one, so that its loading is left out too; it has all texts at once. Prints
one JSON line a round, number of threads and batch, with the least cosine to each of the others, and one with the medians of the
ratios to the fastest. Needs torch, transformers, onnx, onnxruntime, openvino, tokenizers and numpy.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import time

import numpy

N_TEXTS = 256


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
    lengths = numpy.exp(random.uniform(numpy.log(8), numpy.log(257), N_TEXTS)).astype(int) - 2
    return [" ".join(random.choice(words, int(n))) for n in lengths]


def onnxruntime_session(path, n_threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(["hidden"], inputs)[0]


def openvino_session(path, n_threads):
    import openvino

    options = {"INFERENCE_NUM_THREADS": n_threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    return lambda inputs: request.infer(inputs)["hidden"]


PEERS = {"onnxruntime": onnxruntime_session, "openvino": openvino_session}


class Peer:
    def __init__(self, name, model, path, n_threads, batch):
        import tokenizers

        self.run, self.batch = PEERS[name](path, n_threads), batch
        self.tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def embed(self, texts):
        encoded = [e.ids for e in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        out = numpy.empty((len(texts), 384), dtype=numpy.float32)
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            width = max(len(encoded[i]) for i in part)
            ids = numpy.array([encoded[i] + [0] * (width - len(encoded[i])) for i in part], dtype=numpy.int64)
            mask = numpy.array([[1] * len(encoded[i]) + [0] * (width - len(encoded[i])) for i in part], dtype=numpy.int64)
            hidden = self.run({"ids": ids, "mask": mask, "kinds": mask * 0})
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
    parser.add_argument("--batch", default="1,32")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path, all_file, one_file = (args.folder / name for name in ("minilm.onnx", "texts.jsonl", "one.jsonl"))
    if not path.exists():
        export(args.model, path)
    texts = make_texts()
    all_file.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    one_file.write_text(json.dumps({"text": texts[0]}) + "\n")
    for n_threads, batch in itertools.product(map(int, args.threads.split(",")), map(int, args.batch.split(","))):
        peers = {name: Peer(name, args.model, path, n_threads, batch) for name in PEERS}
        for peer in peers.values():
            peer.embed(texts[:32])
        ratios = []
        for _ in range(args.rounds):
            seconds, vectors = {}, {}
            for name, peer in peers.items():
                start = time.perf_counter()
                vectors[name] = peer.embed(texts)
                seconds[name] = time.perf_counter() - start
            of_all, found = thane(args, all_file, n_threads)
            seconds["thane"] = of_all - thane(args, one_file, n_threads)[0]
            ratios.append(min(seconds[name] for name in peers) / seconds["thane"])
            rates = {name: round(N_TEXTS / s, 1) for name, s in seconds.items()}
            cosines = {name: float((found * v).sum(1).min()) for name, v in vectors.items()}
            row = {"threads": n_threads, "batch": batch, "texts_per_s": rates, "ratio": round(ratios[-1], 3)}
            print(json.dumps(row | {"least_cosine": cosines}), flush=True)
        print(json.dumps({"threads": n_threads, "batch": batch, "median_ratio": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    main()
