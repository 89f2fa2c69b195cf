"""Shared by the scripts that make bundles of tests/bundles: tracing, packages, layers and goldens.

Layers are written from the architectures' papers and configurations, in torch, and traced by coremltools in float16. What
is computed is checked against transformers, which makes the goldens.
"""

import json
import shutil
import tempfile
from pathlib import Path

import coremltools as ct
import numpy
import torch
import torch.nn.functional as F

from golden import Floats, write_json

BUNDLES = Path(__file__).resolve().parent.parent / "bundles"
CHAT = Path(__file__).resolve().parent.parent / "models/tiny-chat"
PROMPTS = ["hello there", "Why is the sky blue?"]
N_TOKENS = 20
INT, HALF = numpy.int32, numpy.float16
# Smallest distance of the best logit from the second, so that float16 gives the same tokens.
GAP = 0.1


class Layer(torch.nn.Module):
    """A module whose forward is a function over tensors that the module holds."""

    def __init__(self, forward, states=()):
        super().__init__()
        self.body = forward
        for name, shape in states:
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float16))

    def forward(self, *inputs):
        return self.body(self, *inputs)


def package(module, inputs, outputs, path):
    """Traces a module and writes it as a package with the function `main`.

    An input is a name, a shape or a list of shapes, and a type; an output is a name and a type."""
    examples, types = [], []
    for name, shape, dtype in inputs:
        first = shape[0] if isinstance(shape, list) else shape
        examples.append(torch.zeros(first, dtype=torch.int32 if dtype is INT else torch.float32))
        shape = ct.EnumeratedShapes(shapes=shape, default=first) if isinstance(shape, list) else shape
        types.append(ct.TensorType(name, shape=shape, dtype=dtype))
    module.eval()
    states = [(name, tuple(buffer.shape)) for name, buffer in module.named_buffers()]
    with torch.no_grad():
        traced = torch.jit.trace(module, tuple(examples), strict=False, check_trace=False)
    for _, buffer in traced.named_buffers():
        buffer.zero_()
    converted = ct.convert(
        traced, inputs=types, outputs=[ct.TensorType(name, dtype=dtype) for name, dtype in outputs],
        states=[ct.StateType(ct.TensorType(shape=shape, dtype=HALF), name=name) for name, shape in states] or None,
        minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT16, skip_model_load=True,
    )
    converted.user_defined_metadata["com.github.apple.coremltools.conversion_date"] = "2026-01-01"
    save(converted, path)


def save(source, path):
    """Writes a package without random identifiers and dates, so that a second run gives the same bytes."""
    shutil.rmtree(path, ignore_errors=True)
    if isinstance(source, Path):
        shutil.copytree(source, path)
    else:
        source.save(str(path))
    manifest = json.loads((path / "Manifest.json").read_text())
    entries = manifest["itemInfoEntries"]
    text = json.dumps(manifest)
    for i, old in enumerate(sorted(entries, key=lambda entry: entries[entry]["path"])):
        text = text.replace(old, f"00000000-0000-4000-8000-{i:012}")
    (path / "Manifest.json").write_text(json.dumps(json.loads(text), indent=4, sort_keys=True) + "\n")
    model_file = path / "Data/com.apple.CoreML/model.mlmodel"
    message = ct.proto.Model_pb2.Model.FromString(model_file.read_bytes())
    dates = "com.github.apple.coremltools.conversion_date"
    if dates in message.description.metadata.userDefined:
        message.description.metadata.userDefined[dates] = "2026-01-01"
    model_file.write_bytes(message.SerializeToString(deterministic=True))
    model_file.chmod(0o644)


def joined(functions, path):
    """Joins packages of one function each, which `functions` names; the first is the default."""
    description = ct.utils.MultiFunctionDescriptor()
    for name, source in functions.items():
        description.add_function(str(source), src_function_name="main", target_function_name=name)
    description.default_function_name = next(iter(functions))
    out = Path(tempfile.mkdtemp()) / "joined.mlpackage"
    ct.utils.save_multifunction(description, str(out))
    save(out, path)


def random_weights(model, seed, norm_offset):
    """Random float16 values; norms are near 1, whose stored weight is less by `norm_offset`."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            wide = 0.25 if "proj" in name or "gate" in name else 0.6
            value = torch.randn_like(weight) * (0.3 if "norm" in name else wide)
            weight.copy_((value + (1 - norm_offset if "norm" in name else 0)).half().float())
    return model.eval()


def silence(matrix, tokens):
    """Zeroes the rows of an output matrix whose tokens do not print, so that answers are readable."""
    printable = {chr(c) for c in range(33, 127)} | {"Ġ"}
    with torch.no_grad():
        for i, token in enumerate(tokens):
            if not set(token) <= printable or i < 2:
                matrix[i] = 0


def vocabulary():
    tokenizer = json.loads((CHAT / "tokenizer.json").read_text())
    return list(tokenizer["model"]["vocab"])


def copy_tokenizer(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(CHAT / name, folder / name)


def answers(model, context):
    """The greedy tokens after each prompt, with the logits of transformers; none when a step is close."""
    import transformers
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(CHAT)
    end = vocabulary().index("<|im_end|>")
    rows, floats = [], Floats()
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens, ended = [], False
        while len(tokens) < N_TOKENS and len(ids) + len(tokens) < context:
            with torch.no_grad():
                logits = model(torch.tensor([ids + tokens])).logits[0]
            best, second = torch.topk(logits[-1], 2).values.tolist()
            if best - second < GAP:
                return None
            token = int(logits[-1].argmax())
            ended = token in (end, 0)
            if ended:
                break
            tokens.append(token)
        if len(set(tokens)) < 4:
            return None
        rows.append({"prompt": prompt, "ids": ids, "tokens": tokens, "ended": ended, "text": tokenizer.decode(tokens),
                     "logits": floats.add(logits.numpy())})
    return rows, floats


def write_golden(folder, seed, rows, floats):
    """`golden.json` and `golden.bin`: `logits` are those after each token of prompt and answer but the last."""
    import transformers
    write_json(folder / "golden.json", {"seed": seed, "transformers": transformers.__version__, "answers": rows})
    floats.write(folder / "golden.bin")


def rms_norm(x, weight, eps):
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return scaled if weight is None else scaled * weight


def rotate(x, cos, sin):
    first, second = x.split(int(x.shape[-1]) // 2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def heads(x, n_heads):
    """[1, tokens, heads * dim] -> [1, heads, tokens, dim]"""
    # A traced shape is a tensor, which coremltools 9 cannot read with NumPy 2.4.
    return x.view(1, int(x.shape[1]), n_heads, int(x.shape[2]) // n_heads).transpose(1, 2)


def attention(q, k, v, mask, scale):
    """[1, heads, tokens, dim] with keys and values of fewer heads -> [1, tokens, heads * dim]"""
    n_heads, n = int(q.shape[1]), int(q.shape[2])
    groups = n_heads // int(k.shape[1])
    k, v = (torch.cat([t[:, i // groups:i // groups + 1] for i in range(n_heads)], dim=1) for t in (k, v))
    weights = torch.softmax(q @ k.transpose(-1, -2) * scale + mask, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(1, n, -1)


def gated(x, weights, prefix, activation):
    gate = activation(F.linear(x, weights[prefix + "gate_proj.weight"]))
    return F.linear(gate * F.linear(x, weights[prefix + "up_proj.weight"]), weights[prefix + "down_proj.weight"])
