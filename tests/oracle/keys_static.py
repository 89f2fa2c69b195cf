"""Keys that the source of transformers and sentence-transformers names; for make_keys.py."""

import ast
import inspect
from pathlib import Path

import sentence_transformers
import transformers
from sentence_transformers.base.modules import dense, normalize, transformer
from sentence_transformers.sentence_transformer.modules import dropout, layer_norm, pooling, weighted_layer_pooling
from transformers import GenerationConfig

# Keys of generation, which a configuration class drops where config.json has them.
GENERATION = set(GenerationConfig._get_default_generation_params())
MODULES = (pooling.Pooling, dense.Dense, layer_norm.LayerNorm, normalize.Normalize, dropout.Dropout,
           weighted_layer_pooling.WeightedLayerPooling)


def taken_from(path, name, kind=None, functions=None):
    """Keys that code takes from the dict `name`: `name.pop("key")`, `name["key"]`, `"key" in name`; of a class's functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if kind is not None:
        tree = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind), None)
    bodies = [] if tree is None else [tree]
    if functions is not None and tree is not None:
        bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
    for node in (node for body in bodies for node in ast.walk(body)):
        key = owner = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in {"pop", "get", "setdefault"}:
                key, owner = node.args[0], node.func.value
        if isinstance(node, ast.Subscript):
            key, owner = node.slice, node.value
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            key, owner = node.left, node.comparators[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and getattr(owner, "id", "") == name:
            yield key.value


def literals(path, function):
    """Keys of the dicts that a function writes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    for value in ast.walk(inner.value):
                        if isinstance(value, ast.Dict) and value.col_offset <= inner.col_offset + 60:
                            yield from (key.value for key in value.keys if isinstance(key, ast.Constant))
                            break
                if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Subscript):
                    if getattr(inner.targets[0].value, "id", "") == "config":
                        yield inner.targets[0].slice.value


def arguments(function):
    function = inspect.unwrap(function)
    return {name for name, argument in inspect.signature(function).parameters.items()
            if name != "self" and argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)}


def generation():
    source = Path(inspect.getfile(GenerationConfig))
    known = set(taken_from(source, "kwargs", "GenerationConfig", {"__init__"})) | GENERATION
    return {(key, "GenerationConfig") for key in known - {"force_bos_token_to_be_generated"}}


def sentence():
    """(file, key, class)"""
    home = Path(sentence_transformers.__file__).parent
    for path, kind in (("base", "BaseModel"), ("sentence_transformer", "SentenceTransformer"), ("cross_encoder", "CrossEncoder")):
        path = home / path / "model.py"
        names = set(taken_from(path, "model_config")) | set(literals(path, "_get_model_config"))
        yield from (("config_sentence_transformers.json", name, kind) for name in names)
    path = home / "base" / "model.py"
    rows = [node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "module_config"]
    written = {key.value for row in rows if isinstance(row, ast.Dict) for key in row.keys}
    yield from (("modules.json", name, "BaseModel") for name in written | set(taken_from(path, "module_config")))
    names = arguments(transformer.Transformer.__init__) - {"model_name_or_path"} | {"model_args", "tokenizer_args", "config_args"}
    yield from (("sentence_bert_config.json", name, "Transformer") for name in names)
    for kind in MODULES:
        names = {*kind.config_keys, *kind.config_key_renames}
        if kind is pooling.Pooling:
            names |= set(pooling._LEGACY_POOLING_MODE_KWARGS)
        yield from ((f"{kind.__name__}: config.json", name, kind.__name__) for name in names)


def rows():
    found = {}
    for file, key, kind in [*(("generation_config.json", *row) for row in generation()), *sentence()]:
        found.setdefault((file, key), set()).add(kind)
    return [(file, key, "known", "", sorted(kinds)) for (file, key), kinds in sorted(found.items())]
