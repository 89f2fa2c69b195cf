"""What onnxruntime, OpenVINO or torch reach with an encoder: texts a second, as a JSON line with the names of `thane bench`.

    ENCODERS/bin/python scripts/peers/encode.py PROGRAM MODEL --ids FILE.jsonl [--batch 32] [--call N] [--threads 1] [--rounds 3]
        [--numerics f32] [--vectors OUT.jsonl]

PROGRAM is `onnxruntime` (MODEL is an .onnx file), `openvino` (.onnx or .xml) or `torch` (a Hugging Face folder; `--numerics` f32, bf16
or int8); prepare.py makes the files. Rows of FILE have tokens in the field `ids`. `--batch` texts are at hand at once; they are
sorted by length and run in calls of `--call`, as is fastest: without `--call` some sizes are tried first, and the row says which
was taken. Padding is masked, the mean of the tokens normalized. `--vectors` writes the vectors, a JSON array a line, and measures nothing.
"""

import argparse
import json
import resource
import statistics
import time

CALLS = (1, 8, 32)
# Texts that a size of calls is tried with.
N_TRIED = 64


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def onnxruntime_session(args):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = args.threads, 1
    baseline = peak_memory()
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(["hidden"], inputs)[0], baseline


def openvino_session(args):
    import openvino

    options = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    core, baseline = openvino.Core(), peak_memory()
    request = core.compile_model(args.model, "CPU", options).create_infer_request()
    return lambda inputs: request.infer(inputs)["hidden"], baseline


def torch_session(args):
    import torch
    import transformers  # noqa: F401 (of the baseline)

    from prepare import load

    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    baseline = peak_memory()
    model = load(args.model, "bfloat16" if args.numerics == "bf16" else "float32")
    if args.numerics == "int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    extra = {} if model.config.model_type == "bert" else {"use_cache": False}

    def run(inputs):
        ids, mask = torch.from_numpy(inputs["ids"]), torch.from_numpy(inputs["mask"])
        # Without a mask, where there is no padding, it takes a faster way.
        mask = None if bool(mask.all()) else mask
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask, **extra).last_hidden_state.float().numpy()

    return run, baseline


PROGRAMS = {"onnxruntime": onnxruntime_session, "openvino": openvino_session, "torch": torch_session}


def embed(run, texts, batch, call):
    """Vectors of the texts in their order; each part of `batch` is sorted by length."""
    import numpy

    out = [None] * len(texts)
    for start in range(0, len(texts), batch):
        order = sorted(range(start, min(start + batch, len(texts))), key=lambda i: len(texts[i]))
        for at in range(0, len(order), call):
            part = order[at : at + call]
            width = max(len(texts[i]) for i in part)
            ids = numpy.array([texts[i] + [0] * (width - len(texts[i])) for i in part], dtype=numpy.int64)
            mask = numpy.array([[1] * len(texts[i]) + [0] * (width - len(texts[i])) for i in part], dtype=numpy.int64)
            hidden = run({"ids": ids, "mask": mask})
            pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
            pooled /= numpy.linalg.norm(pooled, axis=1, keepdims=True)
            for i, vector in zip(part, pooled):
                out[i] = vector
    return out


def seconds(run, texts, batch, call):
    start = time.perf_counter()
    embed(run, texts, batch, call)
    return time.perf_counter() - start


def fastest_call(run, texts, batch):
    sizes = [size for size in CALLS if size <= batch]
    if len(sizes) == 1:
        return sizes[0]
    # A text that is not timed, for what is made when first asked for.
    embed(run, texts[:1], 1, 1)
    return min(sizes, key=lambda size: seconds(run, texts[:N_TRIED], batch, size))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("model")
    parser.add_argument("--ids", required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--call", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--numerics", choices=["f32", "bf16", "int8"], default="f32")
    parser.add_argument("--vectors")
    args = parser.parse_args()
    with open(args.ids) as file:
        texts = [json.loads(line)["ids"] for line in file]
    run, baseline = PROGRAMS[args.program](args)
    if args.vectors:
        with open(args.vectors, "w") as out:
            out.writelines(json.dumps(vector.tolist()) + "\n" for vector in embed(run, texts, args.batch, 1))
        return
    call = args.call or fastest_call(run, texts, args.batch)
    rates = [len(texts) / seconds(run, texts, args.batch, call) for _ in range(args.rounds + 1)][1:]
    lengths = list(map(len, texts))
    row = {"bench": "embed", "peer": args.program, "model": args.model, "numerics": args.numerics, "threads": args.threads}
    row |= {"tokens": [min(lengths), max(lengths)], "batch": args.batch, "call": call, "unit": "texts/s"}
    row |= {"median": statistics.median(rates), "least": min(rates), "most": max(rates), "rounds": len(rates)}
    row |= {"peak_memory_bytes": peak_memory()}
    print(json.dumps(row | {"baseline_memory_bytes": baseline}))


if __name__ == "__main__":
    main()
