"""Makes the tiny random embedding checkpoints of tests/models/tiny-embed/<name> and their goldens.

    python3 tests/oracle/make_tiny_embed.py [NAME ...]

Each folder is what sentence-transformers loads, spelled as the real model of its class: config.json, model.safetensors,
tokenizer, modules.json, the folders of the modules, prompts. golden.{json,bin} hold what sentence-transformers answers (eager
attention, float32, weights upcast from the stored dtype) for texts from nothing to longer than the model takes: token ids,
hidden states, pooled vectors, embeddings one by one and in one batch. lengths.{json,bin} hold vectors of 1 to 512 tokens
(embed_lengths.py). embed_encoders.py, embed_families.py and embed_decoders.py say what is in which folder.

As in make_tiny.py no size divides another more than the class demands and every weight, norm and bias is random, and
before a golden is written:
- the token ids are those of the tokenizers library reading tokenizer.json, cut by a rule of our own;
- numpy pools, projects and normalizes the hidden states in float64 and must agree to 1e-6;
- one batch of all texts must give what each text gives alone, to 2e-6;
- each setting in `Case.mutations` is changed alone and must move the embeddings by `BITES` at least, and so must a 5 % change
  of each single tensor (BITES / 10); tensors that are said to be idle must not move them.
Needs torch, transformers, sentence-transformers, safetensors, tokenizers, numpy. CPU only; all seeds are literals.
"""

import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "sentence_transformers", "safetensors", "tokenizers", "numpy")

import numpy
import safetensors.torch
import sentence_transformers
import tokenizers
import torch
import transformers

import embed_decoders
import embed_encoders
import embed_families
from embed_case import CONFIG, REMOVED, torch_name
from embed_check import check_masks, check_pooling, check_tokens, pooled_vectors, pooling_of
from embed_chunks import documents_of, tanh_codes
from embed_lengths import lengths_of

# Smallest relative change of the embeddings that counts as "this setting matters".
BITES = 3e-3
CASES = embed_encoders.CASES | embed_families.CASES | embed_decoders.CASES
# erf-gelu differs from tanh-gelu by at most 5e-4 in the value; tokens of one text have similar lengths.
WEAK_MUTATIONS = {"activation": 1e-4, "normalized tokens": 1e-3}

QUERIES_AND_KEYS = tuple(
    f"{name}.weight" for name in ("query", "key", "q_proj", "k_proj", "q_lin", "k_lin", "attn.q", "attn.k"))

TEXTS = {
    "one token": "a",
    "empty": "",
    "sentence": "The cat sleeps on the warm stone above the sea.",
    "capitals": "THE STATION stood on The Ridge",
    "accents": "Ein Kätzchen schläft ÜBER den Dächern; naïve café, un cha\u0302teau.",
    "cyrillic": "Кошка спит на тёплом камне.",
    "chinese": "猫が暖かい石の上で眠る。",
    "unknown": "🙂 قطة تنام \u200b\u00a0end",
    "spaces": "  tabs\tand\r\nlines  with   spaces ",
    "code": "def f(x): return x**2  # code_with_underscores",
}
PROMPTED = ("sentence", "empty", "too long")


def texts_of(case):
    """(name, text, name of a prompt) // from an empty text to one twice as long as the model takes"""
    prose = (MODELS / "perplexity.txt").read_text(encoding="utf-8").split()
    backend = tokenizers.Tokenizer.from_str(json.dumps(case.tokenizer | {"truncation": None, "padding": None}))

    def prose_of(n_tokens):
        """The longest beginning of the prose that takes no more tokens."""
        n_words = next(n for n in range(1, len(prose)) if len(backend.encode(" ".join(prose[:n])).ids) > n_tokens)
        return " ".join(prose[: n_words - 1])

    texts = TEXTS | case.texts | {
        "half": prose_of(case.max_len // 2), "full": prose_of(case.max_len), "too long": prose_of(2 * case.max_len),
    }
    rows = [(name, text, None) for name, text in texts.items()]
    return rows + [(name, texts[name], prompt) for prompt in case.prompts for name in PROMPTED]


def random_model(case, folder):
    """The transformer alone, filled and rounded to the stored dtype; norms and biases too."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").float().eval()
    # RandomState: its stream is frozen by numpy's compatibility promise, unlike torch's.
    random = numpy.random.RandomState(case.seed)
    gemma = config.model_type == "gemma3_text"
    for name, parameter in model.named_parameters():
        draw = random.standard_normal(tuple(parameter.shape))
        if "norm" in name.lower() and name.endswith("weight"):
            # Gemma adds the 1 itself.
            draw = 0.4 * draw if gemma else 1.0 + 0.4 * draw
        elif name.endswith("bias"):
            draw = (1.0 if "query" in name else 0.5) * draw
        elif "embed" in name:
            # Gemma multiplies by sqrt(hidden_size): keep the residual from drowning the layers.
            draw = 0.15 * draw if gemma else 0.5 * draw
        else:
            # Attention must be sharp in the last layer too.
            wide = 2.4 if name.endswith(QUERIES_AND_KEYS) else 1.6
            draw = wide * draw / numpy.sqrt(parameter.shape[1])
        parameter.data = torch.tensor(draw, dtype=torch.float32).to(getattr(torch, case.dtype)).float()
    return model, random


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors leaves its files readable by their owner only


def module_rows(case):
    rows = []
    for i, (path, kind) in enumerate(case.modules):
        rest = kind if isinstance(kind, dict) else {"type": f"sentence_transformers.models.{kind}"}
        rows.append({"idx": i, "name": str(i), "path": path} | rest)
    return rows


def write_folder(case, folder):
    """All but the tensors."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(folder / "config.json", dict(sorted(case.config.items())))
    (folder / "tokenizer.json").write_text(json.dumps(case.tokenizer, ensure_ascii=False) + "\n", encoding="utf-8")
    write(folder / "tokenizer_config.json", case.tokenizer_config)
    names = {key: value for key, value in case.tokenizer_config.items() if key.endswith("_token") and value is not None}
    write(folder / "special_tokens_map.json", {key: value for key, value in names.items() if not key.startswith("add_")})
    if case.modules is not None:
        write(folder / "modules.json", module_rows(case))
    for path, config in case.folders.items():
        write(folder / path / "config.json", config)
    if case.sentence is not None:
        write(folder / "config_sentence_transformers.json", case.sentence)
    if case.bert is not None:
        write(folder / "sentence_bert_config.json", case.bert)


def save_tensors(case, folder):
    """model.safetensors and the weights of dense modules."""
    with tempfile.TemporaryDirectory() as other:
        model, random = random_model(case, respelled(folder, case.reference, other))
    dtype = getattr(torch, case.dtype)
    tensors = {
        name: value.to(dtype).contiguous()
        for name, value in model.state_dict().items()
        if not name.startswith(case.absent)
    }
    tensors = case.respell(tensors) if case.respell else tensors
    stored = {case.prefix + name: value for name, value in tensors.items()}
    for name, (shape, kind) in case.idle.items():
        is_counted = kind == "int64"
        drawn = torch.arange(shape[-1]).reshape(shape) if is_counted else torch.tensor(random.standard_normal(shape))
        stored[name] = drawn.to(getattr(torch, kind))
    write_tensors(folder / "model.safetensors", dict(sorted(stored.items())))
    for path, config in case.folders.items():
        if tensors := module_tensors(config, random):
            write_tensors(folder / path / "model.safetensors", tensors)


def module_tensors(config, random):
    """The tensors of a dense layer or of a layer norm, by its config.json."""

    def drawn(shape, scale, middle=0.0):
        return torch.tensor(middle + scale * random.standard_normal(shape)).float()

    if "dimension" in config:
        size = config["dimension"]
        return {"norm.weight": drawn(size, 0.4, 1.0), "norm.bias": drawn(size, 0.5)}
    if "out_features" not in config:
        return {}
    shape = (config["out_features"], config["in_features"])
    tensors = {"linear.weight": drawn(shape, 1.6 / numpy.sqrt(shape[1]))}
    if config.get("bias", True):
        tensors["linear.bias"] = drawn(shape[0], 0.5)
    if config.get("use_residual") and shape[0] != shape[1]:
        tensors["residual.weight"] = drawn(shape, 1.6 / numpy.sqrt(shape[1]))
    if config.get("activation_function", "").endswith(".PReLU"):
        tensors["activation_function.weight"] = drawn(1, 0.1, 0.3)
    return tensors


def respelled(folder, changes, other):
    """A copy of the folder in `other` with some settings changed."""
    other = Path(other) / "model"
    shutil.copytree(folder, other)
    for name, keys in changes.items():
        value = json.loads((other / name).read_text(encoding="utf-8"))
        for key, new in keys.items():
            if isinstance(value, list):
                value = [row for row in value if not row["type"].endswith(key)]
            elif new is REMOVED:
                value.pop(key)
            else:
                value[key] = new
        write(other / name, value)
    return other


def load(folder, *changes):
    """The reference; each of `changes` is applied to a copy."""
    merged = {}
    for change in changes:
        for name, keys in change.items():
            merged[name] = merged.get(name, {}) | keys
    with tempfile.TemporaryDirectory() as other:
        return sentence_transformers.SentenceTransformer(
            str(respelled(folder, merged, other)), device="cpu",
            model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"}).eval()


class Answer:
    """What the reference says to one text."""

    def __init__(self, model, text, prompt):
        features = model.preprocess([text], prompt=prefix_of(model, prompt))
        self.ids = features["input_ids"][0].tolist()
        self.prompt_len = int(features.get("prompt_length") or 0)
        self.hidden = numpy.zeros((0, model[0].get_embedding_dimension()), "float32")
        if not self.ids:
            # No token, no pass: the mean of nothing is zero, as sentence-transformers has it in a batch.
            self.embedding = self.whole = numpy.zeros(model.get_embedding_dimension(), "float32")
            return
        # Of the transformer alone: modules before the pooling replace them.
        with torch.no_grad():
            self.hidden = model[0](dict(features))["token_embeddings"][0].float().numpy()
        self.embedding = model.encode(text, prompt_name=prompt, show_progress_bar=False)
        self.whole = model.encode(text, prompt_name=prompt, show_progress_bar=False, truncate_dim=1 << 20)


def embeddings(model, texts):
    return numpy.stack([Answer(model, text, prompt).embedding for _, text, prompt in texts])


def in_one_batch(model, texts):
    """Padded together, one batch for each prompt // [texts, dimension]"""
    rows = numpy.zeros((len(texts), model.get_embedding_dimension()), "float32")
    for name in {prompt for _, _, prompt in texts}:
        places = [i for i, (_, _, prompt) in enumerate(texts) if prompt == name]
        rows[places] = model.encode(
            [texts[i][1] for i in places], prompt_name=name, batch_size=len(texts), show_progress_bar=False)
    return rows


def prefix_of(model, prompt):
    return model.prompts.get(prompt or model.default_prompt_name, "")


def distance(ours, theirs):
    return float(numpy.linalg.norm(ours - theirs) / numpy.linalg.norm(theirs))


def check_settings(case, folder, texts, expected):
    weakest = {}
    for label, change in case.mutations.items():
        moved = distance(embeddings(load(folder, case.reference, change), texts), expected)
        if moved < WEAK_MUTATIONS.get(label, BITES):
            sys.exit(f"setting '{label}' moves the embeddings by {moved:.1e} only")
        weakest[label] = moved
    return min(weakest.items(), key=lambda item: item[1])


def check_tensors(case, model, texts, expected):
    weakest = ("", float("inf"))
    for name, parameter in model.named_parameters():
        saved = parameter.data
        # Not a plain factor: a norm after it would hide it.
        ramp = torch.linspace(0.95, 1.05, saved.shape[0]).reshape(-1, *[1] * (saved.dim() - 1))
        parameter.data = saved * ramp
        moved = distance(embeddings(model, texts), expected)
        parameter.data = saved
        is_unused = any(part in name for part in case.unused)
        # The rounding of a tensor that cancels out is not nothing.
        if moved > 1e-6 if is_unused else moved < BITES / 10:
            sys.exit(f"tensor '{name}' moves the embeddings by {moved:.1e}")
        if not is_unused and moved < weakest[1]:
            weakest = (name, moved)
    return weakest


def is_normalized(model):
    return any(type(module).__name__ == "Normalize" for module in model)


def golden_of(case, folder, model, texts, floats):
    answers = [Answer(model, text, prompt) for _, text, prompt in texts]
    single = numpy.stack([answer.embedding for answer in answers])
    batch = in_one_batch(model, texts)
    if numpy.abs(single - batch).max() > 2e-6 * max(1, numpy.abs(single).max()):
        sys.exit(f"one batch differs from single texts by {numpy.abs(single - batch).max():.1e}")
    rows = []
    for (name, text, prompt), answer in zip(texts, answers):
        n_tokens = check_tokens(case, model, prefix_of(model, prompt) + text, answer.ids)
        check_masks(case, model, answer)
        check_pooling(case, folder, model, answer)
        rows.append({
            "name": name, "text": text, "prompt": prompt, "ids": answer.ids, "n_tokens": n_tokens,
        } | ({} if model[pooling_of(model)].include_prompt else {"n_skipped": answer.prompt_len}) | ({} if prompt or name == "too long" else {"hidden": floats.add(answer.hidden)}) | {
            "pooled": {mode: floats.add(vector) for mode, vector in pooled_vectors(case, model, answer).items()},
            "embedding": floats.add(answer.embedding),
        } | (tanh_codes(answer.embedding) if case.chunked else {}))
    cut = [{"n": n, "embeddings": floats.add(cut_to(model, answers, n))} for n in case.dimensions]
    return {
        "max_seq_len": model.max_seq_length, "dimension": model.get_embedding_dimension(), **truncated(model, answers),
        "normalized": is_normalized(model), "prompts": model.prompts, "default_prompt": model.default_prompt_name,
        "similarity": str(model.similarity_fn_name), "texts": rows, "batch": floats.add(batch), "dimensions": cut,
        "similarities": floats.add(model.similarity(single, single).numpy()),
    } | ({"documents": documents_of(model, floats)} if case.chunked else {}) | activations_of(case, folder, texts, floats), single


def truncated(model, answers):
    """What the model keeps of a vector by itself, if that is not all."""
    if model.truncate_dim is None:
        return {}
    return {"truncate_dim": model.truncate_dim, "whole": len(answers[0].whole)}


def activations_of(case, folder, texts, floats):
    """The vector of one text with each other activation, of the model or of a dense layer."""
    file, names = case.dense_activations
    changes = {name: {CONFIG: {"hidden_act": name}} for name in case.activations}
    changes |= {name: {file: {"activation_function": torch_name(name)}} for name in names}
    if not changes:
        return {}
    text = [row for row in texts if row[0] == "half"]
    rows = {}
    for name, change in changes.items():
        rows[name] = floats.add(embeddings(load(folder, case.reference, change), text)[0])
    return {"activations": rows}


def cut_to(model, answers, n):
    """The first `n` elements, of length one again where the model normalizes // [texts, n]"""
    cut = numpy.stack([answer.whole[:n] for answer in answers])
    return cut / numpy.linalg.norm(cut, axis=1, keepdims=True) if is_normalized(model) else cut


def make(name, case):
    folder = MODELS / "tiny-embed" / name
    write_folder(case, folder)
    save_tensors(case, folder)
    model = load(folder, case.reference)
    texts = texts_of(case)
    floats = Floats()
    golden, single = golden_of(case, folder, model, texts, floats)
    setting = check_settings(case, folder, texts, single)
    tensor = check_tensors(case, model, texts, single)

    floats.write(folder / "golden.bin")
    head = {
        "made_by": "tests/oracle/make_tiny_embed.py", "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__, "torch": torch.__version__, "seed": case.seed,
        "stored_dtype": case.dtype,
    }
    write_json(folder / "golden.json", head | golden)
    floats = Floats()
    write_json(folder / "lengths.json", head | lengths_of(case, folder, load, floats))
    floats.write(folder / "lengths.bin")
    bytes_ = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{name}: {bytes_} bytes, {len(texts)} texts, weakest setting {setting[0]} {setting[1]:.1e}, "
          f"weakest tensor {tensor[0]} {tensor[1]:.1e}", flush=True)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for library in ("transformers", "sentence_transformers"):
        logging.getLogger(library).setLevel(logging.ERROR)
    for name in sys.argv[1:] or CASES:
        if name not in CASES:
            sys.exit(f"no such checkpoint: {name}; there are {', '.join(CASES)}")
        make(name, CASES[name]())


if __name__ == "__main__":
    main()
