"""The second opinion of make_tiny_embed.py: tokens by the tokenizers library, everything behind the hidden states by numpy."""

import json
import sys
from types import SimpleNamespace

import numpy
import safetensors.numpy
import tokenizers
import torch

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def check_tokens(case, model, text, ids):
    """tokenizer.json without its own cutting, then ours; answers the number of tokens before the cut."""
    changes = case.reference.get("tokenizer.json", {}) | {"truncation": None, "padding": None}
    backend = tokenizers.Tokenizer.from_str(json.dumps(case.tokenizer | changes))
    if model[0].do_lower_case:
        text = text.lower()
    bare = backend.encode(text, add_special_tokens=False).ids
    whole = backend.encode(text).ids
    n_special = len(whole) - len(bare)
    n_before = next(n for n in range(n_special + 1) if whole[n: n + len(bare)] == bare)
    kept = bare[: case.max_len - n_special]
    expected = whole[:n_before] + kept + whole[n_before + len(bare):]
    if ids != expected:
        sys.exit(f"'{text[:40]}': the reference gives other tokens than tokenizer.json:\n{ids}\n{expected}")
    return len(whole)


def pool(answer, mode, skipped):
    """One vector of the hidden states behind the first `skipped` // [tokens, hidden] -> [hidden], float64"""
    hidden = answer.hidden[skipped:].astype("float64")
    n = len(hidden)
    if n == 0:
        return numpy.zeros(hidden.shape[1])
    # The place in the whole text, prompt included.
    weights = numpy.arange(skipped, skipped + n)[:, None] + 1
    return {
        "cls": lambda: hidden[0],
        "max": lambda: hidden.max(0),
        "mean": lambda: hidden.mean(0),
        "mean_sqrt_len_tokens": lambda: hidden.sum(0) / numpy.sqrt(n),
        "weightedmean": lambda: (hidden * weights).sum(0) / weights.sum(),
        "lasttoken": lambda: hidden[-1],
    }[mode]()


def pooling_of(model):
    """The place of the pooling among the modules."""
    return next(i for i, module in enumerate(model) if type(module).__name__ == "Pooling")


def modes_of(model):
    mode = model[pooling_of(model)].pooling_mode
    return (mode,) if isinstance(mode, str) else mode


def skipped_of(model, answer):
    """Tokens that are not pooled; the one before the prompt counts to it."""
    return 0 if model[pooling_of(model)].include_prompt else answer.prompt_len


def pooled_vectors(case, model, answer):
    """{mode: vector} by the reference's own module, for its mode or for all; none if other modules come first."""
    vectors = {}
    if pooling_of(model) > 1:
        return vectors
    for mode in MODES if case.pool_all else modes_of(model):
        vectors[mode] = pool_by_reference(model[pooling_of(model)], answer, mode)
        ours = pool(answer, mode, skipped_of(model, answer))
        if numpy.abs(vectors[mode] - ours).max() > 1e-5 * max(1, numpy.abs(ours).max()):
            sys.exit(f"pooling {mode}: the reference and numpy differ by {numpy.abs(vectors[mode] - ours).max():.1e}")
    return vectors


def pool_by_reference(module, answer, mode):
    if not answer.ids:
        return numpy.zeros(answer.hidden.shape[1], "float32")
    features = {
        "token_embeddings": torch.from_numpy(answer.hidden)[None],
        "attention_mask": torch.ones(1, len(answer.hidden), dtype=torch.int64),
        "prompt_length": answer.prompt_len,
    }
    saved, module.pooling_mode = module.pooling_mode, mode
    vector = module(features)["sentence_embedding"][0].numpy()
    module.pooling_mode = saved
    return vector


def check_masks(case, model, answer):
    """The transformer again with masks of our own: who sees whom does not rest on the reference's reading of config.json."""
    n = len(answer.ids)
    if case.causal is None or n == 0:
        return
    place = numpy.arange(n)
    apart = place[:, None] - place[None, :]
    seen = {"full_attention": (apart >= 0) | (not case.causal)}
    seen["sliding_attention"] = seen["full_attention"] & (numpy.abs(apart) <= (case.reach or n))
    masks = {
        kind: torch.where(torch.from_numpy(allowed), 0.0, torch.finfo(torch.float32).min)[None, None]
        for kind, allowed in seen.items()
    }
    # Models whose layers are all of one kind take one mask.
    if getattr(model[0].model.config, "layer_types", None) is None:
        masks = masks["full_attention"]
    with torch.no_grad():
        again = model[0].model(torch.tensor([answer.ids]), attention_mask=masks).last_hidden_state[0].numpy()
    if numpy.abs(again - answer.hidden).max() > 1e-5 * max(1, numpy.abs(answer.hidden).max()):
        sys.exit(f"the reference's mask is not ours: {numpy.abs(again - answer.hidden).max():.1e}")


def check_pooling(case, folder, model, answer):
    """From the hidden states to the embedding as modules.json says, in float64."""
    path = folder / "modules.json"
    rows = json.loads(path.read_text())[1:] if path.is_file() else [{"type": "Pooling", "path": ""}]
    vector = answer.hidden.astype("float64")
    for row in rows:
        kind = row["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            states = SimpleNamespace(hidden=vector)
            skipped = skipped_of(model, answer)
            vector = numpy.concatenate([pool(states, mode, skipped) for mode in modes_of(model)])
        elif kind in STEPS:
            vector = STEPS[kind](folder / row["path"], vector)
        elif kind not in ("FlexibleQuantizer", "Dropout"):
            sys.exit(f"no second opinion on a module of type {row['type']}")
    kept = vector[: model.truncate_dim]
    difference = numpy.abs(kept - answer.embedding[: model.truncate_dim]).max()
    if difference > 1e-6 * max(1, numpy.abs(kept).max()):
        sys.exit(f"the reference and numpy differ by {difference:.1e}")


def normalize(_, x):
    return x / numpy.maximum(numpy.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def layer_norm(folder, x):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    x = (x - x.mean(-1, keepdims=True)) / numpy.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * tensors["norm.weight"] + tensors["norm.bias"]


def dense(folder, x):
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: t.astype("float64") for name, t in safetensors.numpy.load_file(folder / "model.safetensors").items()}
    out = x @ tensors["linear.weight"].T + tensors.get("linear.bias", 0.0)
    name = config.get("activation_function", "torch.nn.Tanh").rsplit(".", 1)[-1]
    # Functions of torch on float64: the activations themselves are those of another script's models.
    module = getattr(torch.nn, name)().double().eval()
    if name == "PReLU":
        module.weight.data = torch.from_numpy(tensors["activation_function.weight"])
    with torch.no_grad():
        out = module(torch.from_numpy(out)).numpy()
    if config.get("use_residual"):
        out = out + (x @ tensors["residual.weight"].T if "residual.weight" in tensors else x)
    return out


STEPS = {"Dense": dense, "LayerNorm": layer_norm, "Normalize": normalize}
