"""Makes tests/models/keys.tsv: the keys of a model's JSON files in transformers and sentence-transformers, and what they do.

    python3 tests/oracle/make_keys.py

The keys come from the installed source: fields of the configuration classes, keys that code takes from a configuration by
name (found in the syntax tree), and arguments of tokenizers and modules.

Rows of config.json have a value for a key and the tiny checkpoints in which transformers was run with it: `same` if all
outputs stay as they are, `differs` if they change or the model needs other tensors, `refused` if transformers ends with an
error. Values are not those of the checkpoint; of several, one that changes outputs is kept. `default` rows have what a class
takes where the key is absent. Rows of other files have the classes that know the key.
Needs torch, transformers, sentence_transformers.
"""

import ast
import copy
import dataclasses
import inspect
import json
import logging
import os
import sys
import tempfile
import typing
from pathlib import Path

from golden import MODELS, need

need("torch", "transformers", "sentence_transformers")

import sentence_transformers
import torch
import transformers

import keys_static
import keys_text

HOME = Path(transformers.__file__).parent
# (checkpoint, model_type in place of its own)
CHECKPOINTS = [(f"tiny/{name}", None) for name in (
    "arcee cohere cohere2 ernie4_5 exaone4 gemma gemma2 gemma3 gemma3-image gemma4 glm4 gpt2 granite hunyuan lfm2 llama-bias "
    "ministral ministral3 mistral mixtral olmo2 olmo3 olmoe phi3 phi3-long qwen2 qwen2-yarn qwen2_moe qwen3 qwen3_5 "
    "qwen3_5-image qwen3_moe seed_oss smollm3 stablelm starcoder2"
).split()] + [(f"tiny-embed/{name}", None) for name in (
    "bert-cls distilbert embeddinggemma modernbert-cls mpnet nomic-bert-new roberta xlm-roberta"
).split()] + [("tiny-embed/roberta", "camembert")] + [(f"tiny-rerank/{name}", None) for name in (
    "bert distilbert xlm-roberta"
).split()]
# Code that all models share.
SHARED = ("modeling_utils.py", "masking_utils.py", "cache_utils.py", "modeling_layers.py", "modeling_rope_utils.py",
          "pytorch_utils.py", "integrations/moe.py", "integrations/sdpa_attention.py")
# Who loads a model says these, or they are not settings.
NOT_TRIED = {"model_type", "quantization_config", "transformers_version", "attn_implementation", "experts_implementation",
             "_attn_implementation"}
ACTIVATIONS = ["relu", "silu"]
NAMES = {
    "position_embedding_type": ["relative_key"], "problem_type": ["regression"], "dtype": ["float64"], "torch_dtype": ["float64"],
    "rope_type": ["linear", "dynamic"], "type": ["linear", "dynamic"], "use_bidirectional_attention": ["all", "vision"],
    "classifier_pooling": ["mean", "cls"], "summary_type": ["mean"], "truncate": [False],
}
ROPES = [{"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}, {"rope_type": "default", "rope_theta": 50.0}]
OBJECTS = {
    "rope_scaling": ROPES, "rope_parameters": ROPES,
    "id2label": [{"0": "a", "1": "b", "2": "c"}, {"0": "a"}], "label2id": [{"a": 0, "b": 1, "c": 2}],
    "per_layer_config": [{"1": {"intermediate_size": 8}}], "partial_rotary_factor": [0.5, 0.25],
    "architectures": [["OtherModel"]], "pruned_heads": [{"0": [0]}],
}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}


def config_reads(path, also=()):
    """Names that code takes from a configuration: `config.name`, `getattr(config, "name", ...)`."""
    def is_config(node):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        return name in {"config", "text_config", "cfg", *also}

    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"getattr", "hasattr"}:
            if len(node.args) > 1 and is_config(node.args[0]) and isinstance(node.args[1], ast.Constant):
                yield node.args[1].value


def rope_types():
    """{type of rotary embedding: the keys that its validation knows}"""
    path = HOME / "modeling_rope_utils.py"
    types = {}
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef) and function.name.startswith("_validate_"):
            keys = types.setdefault(function.name.removeprefix("_validate_").removesuffix("_rope_parameters"), {"type"})
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in {"required_keys", "optional_keys"}:
                    if isinstance(node.value, ast.Set):
                        keys |= ast.literal_eval(node.value)
    return types


def rope_keys():
    """Names of keys of rotary embeddings: those of the validation, and those that code takes from the object."""
    for keys in rope_types().values():
        yield from keys
    for path in HOME.glob("models/*/modeling_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and "rope_parameters" in ast.unparse(node.value):
                if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                    yield node.slice.value
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("rope_parameters.get"):
                yield node.args[0].value


def class_keys(kind):
    """The keys that a configuration class knows, with their types and defaults."""
    hints = {}
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        pass
    found = {}
    for field in dataclasses.fields(kind):
        default = None if field.default is dataclasses.MISSING else field.default
        found[field.name] = (hints.get(field.name, field.type), default)
    for name in kind.attribute_map:
        found.setdefault(name, (None, None))
    functions = {"__post_init__"} | ({"convert_rope_params_to_dict"} if "rope_parameters" in found else set())
    for base in kind.__mro__:
        if base.__module__.startswith("transformers."):
            source = Path(inspect.getfile(base))
            for name in keys_static.taken_from(source, "kwargs", base.__name__, functions):
                found.setdefault(name, (None, None))
    if "rope_parameters" not in found:
        # The base class looks for both, and gives a warning.
        found = {name: hint for name, hint in found.items() if name not in {"rope_scaling", "rope_theta"}}
    return found


def values(key, value, hint):
    """Values to try for a key that has `value`."""
    name = key.rsplit(".", 1)[-1]
    if name in OBJECTS:
        return OBJECTS[name]
    if name in NAMES:
        return [other for other in NAMES[name] if other != value]
    if name == "layer_types" and value:
        other = {"full_attention", "sliding_attention", "conv", "linear_attention"} & set(value) or {"full_attention"}
        flipped = [sorted(other - {ty})[0] if other - {ty} else "sliding_attention" for ty in value]
        return [flipped, ["full_attention"] * len(value)]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        tried = [value + 1, max(value // 2, 1), 3, 1, 0]
        return list(dict.fromkeys(other for other in tried if other != value))
    if isinstance(value, float):
        return [value * 1.5 + 0.25, value * 0.5]
    if isinstance(value, str):
        return [other for other in ACTIVATIONS if other != value] if "act" in name else ["other"]
    if isinstance(value, list) and value and isinstance(value[0], (int, float)) and not isinstance(value[0], bool):
        return [[other + 1 for other in value], value[::-1]]
    if value is None:
        kinds = set(typing.get_args(hint)) or {hint}
        tried = {bool: [True], int: [3, 1], float: [0.5], str: ["other"], list: [[1]]}
        return [other for kind, some in tried.items() if kind in kinds for other in some] or [3, False]
    return []


def set_in(config, key, value):
    """A copy of a JSON object with a dotted key replaced."""
    config = copy.deepcopy(config)
    *path, last = key.split(".")
    inner = config
    for part in path:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return config


def get_in(config, key):
    for part in key.split("."):
        # Other mappings than dicts are configurations of layers that differ.
        config = config.get(part) if isinstance(config, dict) else vars(config).get(part) if hasattr(config, "to_dict") else None
    return config


class Checkpoint:
    """A tiny checkpoint whose config.json can be changed."""

    def __init__(self, name, model_type):
        folder = MODELS / name
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if model_type:
            self.config["model_type"] = model_type
        self.name = f"{name}:{model_type}" if model_type else name
        self.folder = tempfile.TemporaryDirectory()
        os.symlink(folder / "model.safetensors", Path(self.folder.name) / "model.safetensors")
        kind, _, _ = name.partition("/")
        self.auto = {"tiny": transformers.AutoModelForCausalLM, "tiny-embed": transformers.AutoModel,
                     "tiny-rerank": transformers.AutoModelForSequenceClassification}[kind]
        self.usual = self.outputs(self.config)
        if isinstance(self.usual, Exception):
            raise self.usual
        self.loaded = transformers.AutoConfig.from_pretrained(self.folder.name)

    def outputs(self, config):
        """What the model computes, and which tensors it lacks; or the error."""
        (Path(self.folder.name) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            torch.manual_seed(0)
            model, info = self.auto.from_pretrained(self.folder.name, output_loading_info=True, **EAGER)
            tensors = sorted(map(str, [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]))
            # Longer than windows. Behind the first ids are those of special tokens.
            ids = (torch.arange(44) * 7 % 60 + 4)[None]
            with torch.no_grad():
                found = model.eval()(input_ids=ids)
            if isinstance(found, tuple):
                return tensors, found[0]
            return tensors, found["logits" if "logits" in found else "last_hidden_state"]
        except Exception as error:
            return error

    def effect(self, key, value):
        found = self.outputs(set_in(self.config, key, value))
        if isinstance(found, Exception):
            return "refused"
        (tensors, numbers), (usual_tensors, usual) = found, self.usual
        if tensors != usual_tensors or numbers.shape != usual.shape:
            return "differs"
        moved = (numbers - usual).abs().max()
        return "same" if moved <= 1e-5 * usual.abs().max() else "differs"

    def tried(self, key, hint):
        """(value, effect) of the first value that changes outputs, or else of the first that is accepted."""
        default = get_in(self.loaded, key)
        value = get_in(self.config, key)
        best = None
        for value in values(key, default if value is None else value, hint):
            effect = self.effect(key, value)
            if effect == "differs":
                return value, effect
            if best is None or (best[1], effect) == ("refused", "same"):
                best = value, effect
        return best

    def rows(self, rope_names, shared):
        """(key, value or default, effect)"""
        parts = [("", type(self.loaded))]
        text = self.loaded.get_text_config()
        if text is not self.loaded:
            parts.append(("text_config.", type(text)))
        for prefix, kind in parts:
            known = class_keys(kind)
            if kind.model_type == self.loaded.model_type or prefix:
                yield from ((prefix + key, default, "default") for key, (_, default) in known.items()
                            if isinstance(default, (bool, int, float, str)) and key not in NOT_TRIED)
            source = Path(inspect.getfile(kind))
            model = source.with_name(source.name.replace("configuration_", "modeling_"))
            code = set(config_reads(model)) | shared
            code = {key for key in code if not key.startswith("__") and not callable(getattr(kind, key, None))}
            own = get_in(self.config, prefix[:-1]) if prefix else self.config
            objects = {"rope_parameters", "rope_scaling"} & {key for key, value in own.items() if value}
            for key, (hint, _) in known.items():
                if key not in NOT_TRIED and key not in keys_static.GENERATION and key not in kind.sub_configs:
                    if (found := self.tried(prefix + key, hint)) is not None:
                        yield prefix + key, *found
            for key in sorted(code - set(known) - NOT_TRIED):
                found = self.tried(prefix + key, None)
                if found is not None and found[1] == "differs":
                    yield prefix + key, *found
            for name in sorted(objects):
                rope = get_in(self.config, prefix + name)
                layers = [f"{ty}." for ty, inner in rope.items() if isinstance(inner, dict)]
                for layer in layers or [""]:
                    inner = rope[layer[:-1]] if layer else rope
                    known = rope_types().get(inner.get("rope_type", inner.get("type", "default")), set())
                    for key in rope_names:
                        found = self.tried(f"{prefix}{name}.{layer}{key}", None)
                        # Others give a warning.
                        if found is not None and (found[1] == "differs" or key in known):
                            yield f"{prefix}{name}.{layer}{key}", *found


def config_rows():
    rope_names = sorted(set(rope_keys()))
    shared = {key for path in SHARED for key in config_reads(HOME / path)}
    found = {}
    for name, model_type in CHECKPOINTS:
        checkpoint = Checkpoint(name, model_type)
        n = 0
        for key, value, effect in checkpoint.rows(rope_names, shared):
            found.setdefault((key, json.dumps(value), effect), []).append(checkpoint.name)
            n += 1
        print(f"{checkpoint.name}: {n} rows", flush=True)
    return [("config.json", key, effect, value, names) for (key, value, effect), names in sorted(found.items())]


def main():
    # Warnings about values, of which there are thousands.
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    types = {json.loads((MODELS / name / "config.json").read_text())["model_type"] for name, _ in CHECKPOINTS}
    rows = config_rows() + keys_static.rows() + keys_text.rows(types)
    head = [f"# transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}; "
            "made by tests/oracle/make_keys.py", "file\tkey\teffect\tvalue\tof"]
    path = MODELS / "keys.tsv"
    lines = ["\t".join([*row, " ".join(names)]) for *row, names in rows]
    path.write_text("\n".join(head + lines) + "\n", encoding="utf-8")
    print(f"{len(rows)} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
