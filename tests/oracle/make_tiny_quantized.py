"""Makes the quantized tiny checkpoints of tests/models/tiny/<name> and their goldens.

    python3 tests/oracle/make_tiny_quantized.py [NAME ...]

Each folder is a model like those of make_tiny.py. Its linear layers, but for the output head, are quantized by one of
the methods that Hugging Face folders have. The golden is what transformers computes in float32 with the weights that
the method's own package dequantizes: compressed-tensors, auto-gptq, autoawq, and transformers' fine-grained FP8. Scales
are widened to float32 before, so that no product is rounded to the type of the scale.

Before a golden is written, `check` changes each quantized matrix a little and requires that the logits move.

Needs torch, transformers, safetensors, numpy, compressed-tensors, and of auto-gptq and autoawq the files alone:
`pip install --no-deps auto-gptq==0.7.1 autoawq==0.2.7.post3`. CPU only; all seeds are literals.
"""

import copy
import importlib.util
import json
import logging
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from golden import MODELS, Floats, make_named, need, write_json

need("torch", "transformers", "safetensors", "numpy", "compressed_tensors", "auto_gptq", "awq")

import numpy
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from make_tiny import BITES, SEQUENCE_LENS, distance, randomise, run
from tiny_families import tiny

HEAD = "lm_head"
GPTQ_LAYER = "nn_modules/qlinear/qlinear_cuda.py"


@dataclass
class Case:
    seed: int
    config: object
    method: object  # (linear module, name, case) -> stored tensors by parameter, dequantized weight
    settings: dict
    scale_dtype: torch.dtype = torch.float32
    keep: tuple = (HEAD,)
    options: dict = field(default_factory=dict)


def of_package(package, path):
    """A module of a package whose other parts need a GPU or another version of transformers."""
    root = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location(f"{package}_{Path(path).stem}", root / path)
    module = importlib.util.module_from_spec(spec)
    logging.disable(logging.WARNING)
    spec.loader.exec_module(module)
    logging.disable(logging.NOTSET)
    return module


def extremes(weight, args):
    """The smallest and greatest weight that share a scale."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    groups = weight.reshape(weight.shape[0], -1, args.group_size)
    return groups.amin(2), groups.amax(2)


def compress(model, case):
    """What compressed-tensors stores of each module, and the weights that it reads back."""
    quantized = copy.deepcopy(model)
    apply_quantization_config(quantized, QuantizationConfig(**copy.deepcopy(case.settings)))
    schemes = {n: m.quantization_scheme for n, m in quantized.named_modules() if hasattr(m, "quantization_scheme")}
    for name, scheme in schemes.items():
        module = quantized.get_submodule(name)
        scale, zero = calculate_qparams(*extremes(module.weight.data, scheme.weights), scheme.weights)
        module.weight_scale.data = scale.to(case.scale_dtype)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)
    compressor = ModelCompressor.from_pretrained_model(quantized, case.options.get("format"))
    compressor.compress_model(quantized)
    stored, weights = {}, {}
    for name, scheme in schemes.items():
        state = {k: v.detach().clone() for k, v in quantized.get_submodule(name).state_dict().items() if k != "bias"}
        reader = BaseCompressor.get_value_from_registry(scheme.format.value)
        wide = {k: v.float() if k == "weight_scale" else v for k, v in state.items()}
        weights[name] = reader.decompress(wide, scheme)["weight"].float()
        stored[name] = state
    config = compressor.quantization_config.model_dump(mode="json")
    return stored, weights, config


def words(codes, bits, axis):
    """Codes along an axis in int32 words, lowest bits first."""
    codes = numpy.moveaxis(codes.astype(numpy.uint32), axis, -1)
    parts = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    packed = (parts << (numpy.arange(32 // bits, dtype=numpy.uint32) * bits)).sum(-1, dtype=numpy.uint32)
    return torch.from_numpy(numpy.ascontiguousarray(numpy.moveaxis(packed, -1, axis)).view(numpy.int32))


def grouped(weight, bits, groups, scale_dtype):
    """Codes [inputs, outputs], scales and zero points [groups, outputs] of a weight [outputs, inputs]."""
    weight, count = weight.T, int(groups.max()) + 1
    least = torch.stack([weight[groups == g].amin(0).clamp(max=0) for g in range(count)])
    most = torch.stack([weight[groups == g].amax(0).clamp(min=0) for g in range(count)])
    scale = ((most - least) / (2**bits - 1)).to(scale_dtype)
    # Never 0, which format `gptq` cannot store.
    zero = (-least / scale.float()).round().clamp(1, 2**bits - 1)
    codes = (weight / scale.float()[groups] + zero[groups]).round().clamp(0, 2**bits - 1)
    return codes, scale, zero


def gptq(module, name, case):
    bits, group, (outputs, inputs) = case.settings["bits"], case.settings["group_size"], module.weight.shape
    groups = torch.arange(inputs) // group
    if case.settings["desc_act"]:
        groups = groups[torch.from_numpy(numpy.random.RandomState(len(name)).permutation(inputs))]
    codes, scale, zero = grouped(module.weight.data, bits, groups, case.scale_dtype)
    qweight, of_one = words(codes.numpy(), bits, 0), words(zero.numpy() - 1, bits, 1)
    v2 = case.settings["checkpoint_format"] == "gptq_v2"
    stored = {
        "qweight": qweight, "qzeros": words(zero.numpy(), bits, 1) if v2 else of_one, "scales": scale,
        "g_idx": groups.to(torch.int32),
    }
    layer = of_package("auto_gptq", GPTQ_LAYER).QuantLinear(bits, group, inputs, outputs, False)
    layer.qweight, layer.qzeros, layer.scales, layer.g_idx = qweight, of_one, scale.float(), groups.to(torch.int32)
    layer.use_cuda_fp16 = False
    return stored, layer(torch.eye(inputs)).T


def awq(module, name, case):
    group, inputs = case.settings["group_size"], module.weight.shape[1]
    codes, scale, zero = grouped(module.weight.data, 4, torch.arange(inputs) // group, case.scale_dtype)
    packing = of_package("awq", "utils/packing_utils.py")
    order = numpy.arange(codes.shape[1]).reshape(-1, 8)[:, packing.AWQ_ORDER].reshape(-1)
    stored = {
        "qweight": words(codes.numpy()[:, order], 4, 1), "qzeros": words(zero.numpy()[:, order], 4, 1),
        "scales": scale,
    }
    return stored, packing.dequantize_gemm(stored["qweight"], stored["qzeros"], scale.float(), 4, group).T


def fp8(module, name, case):
    rows, columns = case.settings["weight_block_size"]
    weight = module.weight.data
    scale = torch.stack([
        torch.stack([part.abs().max() / 448 for part in band.split(columns, 1)]) for band in weight.split(rows, 0)
    ]).to(case.scale_dtype)
    full = scale.float().repeat_interleave(rows, 0)[:weight.shape[0]].repeat_interleave(columns, 1)[:, :weight.shape[1]]
    codes = (weight / full).to(torch.float8_e4m3fn)
    stored = {"weight": codes, "weight_scale_inv": scale}
    return stored, _dequantize_fp8_weight(codes, scale, [rows, columns], torch.float32)


def llama(**changes):
    sizes = dict(hidden_size=48, intermediate_size=80, num_attention_heads=6, head_dim=8, rms_norm_eps=3e-3)
    return tiny("LlamaConfig", **(sizes | changes))


def scheme(ignore=(HEAD,), activations=None, **weights):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"config_groups": {"group_0": group}, "ignore": list(ignore)}


def cases():
    gptq_settings = dict(
        quant_method="gptq", group_size=16, damp_percent=0.01, true_sequential=True, model_name_or_path=None,
    )
    dynamic = dict(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=True)
    dynamic_float = dynamic | dict(type="float")
    return {
        "compressed-int8": Case(
            901, llama(attention_bias=True), compress,
            scheme(num_bits=8, type="int", strategy="channel", symmetric=True, activations=dynamic), torch.bfloat16),
        "compressed-int8-tensor": Case(
            902, llama(tie_word_embeddings=True), compress,
            scheme(num_bits=8, type="int", strategy="tensor", symmetric=False, activations=dynamic)),
        "compressed-int4": Case(
            903, tiny("Phi3Config", hidden_size=48, intermediate_size=64, rms_norm_eps=3e-3), compress,
            scheme(num_bits=4, type="int", strategy="group", group_size=16, symmetric=True), torch.bfloat16),
        "compressed-int4-zeros": Case(
            904, tiny("Qwen3Config", hidden_size=48, intermediate_size=80, head_dim=8, rms_norm_eps=3e-3), compress,
            scheme(num_bits=4, type="int", strategy="group", group_size=16, symmetric=False), torch.float16),
        "compressed-packed8": Case(
            905, llama(hidden_size=54, intermediate_size=61, head_dim=10), compress,
            scheme(num_bits=8, type="int", strategy="channel", symmetric=True), options={"format": "pack-quantized"}),
        "compressed-fp8": Case(
            906, llama(hidden_size=54, intermediate_size=61, head_dim=10), compress,
            scheme(num_bits=8, type="float", strategy="channel", symmetric=True, activations=dynamic_float),
            torch.bfloat16),
        "gptq": Case(
            911, llama(attention_bias=True), gptq,
            gptq_settings | dict(bits=4, sym=False, desc_act=False, checkpoint_format="gptq"), torch.float16),
        "gptq-order": Case(
            912, llama(), gptq,
            gptq_settings | dict(bits=8, sym=False, desc_act=True, checkpoint_format="gptq_v2"), torch.float16),
        "awq": Case(
            913, tiny("Qwen2Config", hidden_size=48, intermediate_size=80, rms_norm_eps=3e-3), awq,
            dict(quant_method="awq", bits=4, group_size=16, zero_point=True, version="gemm",
                 modules_to_not_convert=None),
            torch.float16),
        "fp8": Case(
            914, tiny("Qwen3Config", hidden_size=46, intermediate_size=59, head_dim=12, rms_norm_eps=3e-3), fp8,
            dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[32, 16],
                 modules_to_not_convert=[HEAD]), torch.bfloat16),
    }


def quantize(model, case):
    """Stored tensors of each quantized module, its weights as they are read back, and the settings for config.json."""
    if case.method is compress:
        return compress(model, case)
    stored, weights = {}, {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name not in case.keep:
            stored[name], weights[name] = case.method(module, name, case)
    return stored, weights, case.settings


def check(model, sequences, logits, weights):
    """A change of any quantized matrix must move the logits."""
    for name, weight in weights.items():
        parameter = model.get_submodule(name).weight
        parameter.data = weight * torch.linspace(0.95, 1.05, weight.shape[0])[:, None]
        moved = distance(run(model, sequences), logits)
        parameter.data = weight
        if moved < BITES / 10:
            sys.exit(f"'{name}' moves the logits by {moved:.1e} only")


def make(name, case):
    folder = MODELS / "tiny" / name
    model = AutoModelForCausalLM.from_config(case.config, attn_implementation="eager").float().eval()
    randomise(model, case.seed, torch.float32)
    stored, weights, settings = quantize(model, case)
    plain = {key: value for key, value in model.state_dict().items() if key.removesuffix(".weight") not in stored}
    if case.config.tie_word_embeddings:
        plain.pop("lm_head.weight", None)
    far = max(float((model.get_submodule(n).weight - w).norm() / w.norm()) for n, w in weights.items())
    if not 0 < far < 0.2:
        sys.exit(f"{name}: quantized weights are {far:.1e} away")
    for module, weight in weights.items():
        model.get_submodule(module).weight.data = weight.contiguous()

    random = numpy.random.RandomState(case.seed + 1000)
    sequences = [random.randint(0, case.config.vocab_size, length).tolist() for length in SEQUENCE_LENS]
    logits = run(model, sequences)
    check(model, sequences, logits, weights)

    shutil.rmtree(folder, ignore_errors=True)
    case.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = plain | {f"{m}.{key}": value for m, state in stored.items() for key, value in state.items()}
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    floats = Floats()
    golden = {
        "made_by": "tests/oracle/make_tiny_quantized.py", "transformers": transformers.__version__,
        "torch": torch.__version__, "seed": case.seed,
        "sequences": [{"ids": ids, "logits": floats.add(rows.numpy())} for ids, rows in zip(sequences, logits)],
    }
    floats.write(folder / "golden.bin")
    write_json(folder / "golden.json", golden)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name}: {size} bytes, weights {far:.1e} away from plain ones")


def main():
    torch.set_num_threads(1)
    make_named(cases(), make)


if __name__ == "__main__":
    main()
