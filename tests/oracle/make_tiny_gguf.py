"""Makes the tiny GGUF files of tests/models/tiny-gguf.

    python3 tests/oracle/make_tiny_gguf.py [NAME ...]

Most are twins of a checkpoint in tests/models/tiny: the same numbers to the bit, as the converters of llama.cpp write
them, so that the golden of the checkpoint is theirs too. What the converters do beside giving tensors other names:
- llama: the rows of query and key (and of their biases) are permuted, so that rotary pairs lie side by side;
- llama3 scaling becomes a tensor of divisors, `rope_freqs.weight`; linear scaling two keys;
- gemma3: norm weights are stored with the 1 added. GGUF cannot say `query_pre_attn_scalar`, and llama.cpp takes the head's
  width (hidden / heads for 27B): here the query norms are multiplied by what is missing;
- other families: tiny_gguf_families.py.
A checkpoint whose file cannot say what it computes (a window of Qwen2, biases that llama.cpp does not read) has no twin.

`llama-quantised` has no twin: its matrices are random blocks of every quantized type, F16 and BF16, and its golden
(llama-quantised.{json,bin}, as those of make_tiny.py) is what transformers computes with the values that the gguf
package gives them. `phi3-quantised` is such a file whose matrices are joined, `qwen3_moe-quantised` one with experts.

Needs torch, transformers, safetensors, gguf, numpy. CPU only; all seeds are literals.
"""

import math
import sys

from golden import MODELS, Floats, need, write_json

need("torch", "transformers", "safetensors", "gguf", "numpy")

import gguf
import numpy
import torch
import transformers
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, Qwen3MoeConfig

from tiny_gguf_families import FORMS, add_keys

FOLDER = MODELS / "tiny-gguf"
SEQUENCE_LENS = (7, 33, 61)
SEED = 301

# Name of the twin: how its matrices are stored.
TWINS = {
    "llama-bias": "F32", "llama-linear": "F32", "llama-bf16": "BF16", "gemma3-linear": "F32", "gemma3-bf16": "BF16",
    "qwen2-yarn": "BF16", "qwen3": "F32", "gemma": "F32", "gemma2": "F32", "phi3": "F32", "phi3-long": "F32",
    "phi3-short": "F32", "smollm3-plain": "F16", "olmo2": "F32", "olmo3": "F32", "olmo3-old": "F16", "granite": "F32",
    "exaone4": "F32", "exaone4-full": "F32", "glm4": "F32", "starcoder2-full": "F16", "ernie4_5": "F32",
    "ernie4_5-plain": "F16", "seed_oss": "F32", "arcee": "BF16", "arcee-plain": "BF16", "hunyuan": "F32", "stablelm": "F32",
    "stablelm-parallel": "F32",
    "cohere": "F32", "cohere-plain": "F16", "cohere2-plain": "F16", "gpt2": "F32", "lfm2-plain": "BF16",
    "gemma4": "F32", "gemma4-plain": "F32", "qwen3_5": "F32",
    "ministral3": "F32", "qwen3_moe": "F32", "mixtral": "F32", "qwen2_moe": "F32", "olmoe": "F32",
}  # fmt: skip

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA_NAMES = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name, names):
    """`names` has modules, and parameters that have another name than that of their module."""
    if name.startswith(("model.layers.", "transformer.h.")):
        _, _, layer, name = name.split(".", 3)
        start = f"blk.{layer}."
    else:
        start, name = "", name.removeprefix("transformer.")
    if name in names:
        return start + names[name]
    module, parameter = name.rsplit(".", 1)
    return f"{start}{names[module]}.{parameter}"


def permute(rows, n_heads):
    """Row i of the first half of a head goes to 2i, row i of the second half to 2i + 1."""
    return rows.reshape(n_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows, n_heads):
    return rows.reshape(n_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_divisors(rope, head_dim):
    """What each frequency is divided by // [head_dim / 2]"""
    divisors = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * i / head_dim)
        context, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return numpy.array(divisors, numpy.float32)


def add(writer, name, array, ty):
    """Vectors stay F32; a matrix must survive its type unharmed."""
    array = numpy.ascontiguousarray(array, dtype=numpy.float32)
    if array.ndim == 1 or ty == "F32":
        return writer.add_tensor(name, array)
    stored = gguf.quants.quantize(array, GGMLQuantizationType[ty])
    assert (gguf.quants.dequantize(stored, GGMLQuantizationType[ty]) == array).all(), name
    writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[ty])


def add_sizes(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_linear(writer, rope):
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def write_llama(writer, config, tensors, ty):
    add_sizes(writer, config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    add_linear(writer, rope)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, config.head_dim))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, array in tensors.items():
        n_heads = heads.get(name.split(".")[-2])
        add(writer, gguf_name(name, NAMES | LLAMA_NAMES), permute(array, n_heads) if n_heads else array, ty)


def write_gemma(writer, config, tensors, ty):
    add_sizes(writer, config)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    add_linear(writer, rope["full_attention"])
    writer.add_sliding_window(config.sliding_window)
    pattern = config.layer_types.index("full_attention") + 1
    kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(len(config.layer_types))]
    assert kinds == config.layer_types
    writer.add_sliding_window_pattern(pattern)
    for name, array in tensors.items():
        if name.endswith("norm.weight"):
            array = array + numpy.float32(1)
        if name.endswith("q_norm.weight"):
            of_27b = config.num_hidden_layers == 62
            width = config.hidden_size // config.num_attention_heads if of_27b else config.head_dim
            array = array * numpy.float32(math.sqrt(width / config.query_pre_attn_scalar))
        add(writer, gguf_name(name, NAMES | GEMMA_NAMES), array, ty)


def write_family(writer, config, tensors, ty, form):
    if form.plus_one:
        # The factors of norms alone: there are no others in a vector of these families.
        tensors = {name: array + numpy.float32(array.ndim == 1) for name, array in tensors.items()}
    if form.more:
        tensors = form.more(writer, config, tensors)
    add_keys(writer, config, form, tensors)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if form.permuted else {}
    for name, array in tensors.items():
        n_heads = heads.get(name.split(".")[-2])
        # Taps and positions stay F32, as vectors do.
        kept = name.startswith("rope_") or any(part in name for part in ("conv.conv", "conv1d", ".wpe."))
        stored = name if name.startswith("rope_") else gguf_name(name, NAMES | form.names)
        add(writer, stored, permute(array, n_heads) if n_heads else array, "F32" if kept else ty)


def write_model(path, config, tensors, ty):
    """Writes a model as its family is stored."""
    form = FORMS.get(config.model_type)
    gemma = config.model_type == "gemma3_text"
    writer = gguf.GGUFWriter(path, form.architecture if form else "gemma3" if gemma else "llama")
    if form:
        write_family(writer, config, tensors, ty, form)
    else:
        (write_gemma if gemma else write_llama)(writer, config, tensors, ty)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_twin(name, ty):
    folder = MODELS / "tiny" / name
    config = transformers.AutoConfig.from_pretrained(folder)
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= {key: tensor.float().numpy() for key, tensor in load_file(path).items()}
    write_model(FOLDER / f"{name}.gguf", config, tensors, ty)
    print(f"{name}: {(FOLDER / f'{name}.gguf').stat().st_size} bytes")


# Where the fp16 scale of a block is, its fp16 minimum, and the minimum, in scales, that centres random codes.
HALVES = {
    "Q4_0": (0, None, 0), "Q4_1": (0, 2, -7.5), "Q5_0": (0, None, 0), "Q5_1": (0, 2, -15.5), "Q8_0": (0, None, 0),
    "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0),
    "IQ4_NL": (0, None, 0), "IQ4_XS": (0, None, 0),
}  # fmt: skip
QUANTISED_TYPES = [
    {"attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q3_K", "attn_output": "Q4_0", "ffn_gate": "Q2_K", "ffn_up": "IQ4_XS",
     "ffn_down": "Q5_1"},
    {"attn_q": "Q6_K", "attn_k": "Q8_0", "attn_v": "F16", "attn_output": "IQ4_NL", "ffn_gate": "Q4_1", "ffn_up": "Q5_0",
     "ffn_down": "BF16"},
]  # fmt: skip
EMBEDDING_TYPE, OUTPUT_TYPE = "Q6_K", "Q4_K"
# Query, key and value are rows of one matrix, gate and up projection of another.
JOINED_TYPES = [
    {"attn_qkv": "Q4_0", "attn_output": "Q5_0", "ffn_up": "Q8_0", "ffn_down": "Q4_1"},
    {"attn_qkv": "Q8_0", "attn_output": "IQ4_NL", "ffn_up": "Q5_1", "ffn_down": "Q4_0"},
]
# The matrices of all experts are one tensor.
EXPERT_TYPES = [
    {"attn_q": "Q8_0", "attn_k": "Q5_0", "attn_v": "F16", "attn_output": "Q4_0", "ffn_gate_inp": "F32",
     "ffn_gate_exps": "Q4_0", "ffn_up_exps": "Q8_0", "ffn_down_exps": "Q5_1"},
    {"attn_q": "Q4_1", "attn_k": "Q8_0", "attn_v": "Q5_0", "attn_output": "IQ4_NL", "ffn_gate_inp": "F32",
     "ffn_gate_exps": "IQ4_NL", "ffn_up_exps": "BF16", "ffn_down_exps": "Q8_0"},
]


def stored_parts(key):
    """The parameters that the file has instead of this one, in the order of its rows."""
    if key.endswith("experts.gate_up_proj"):
        return [key.replace("gate_up_proj", part) + ".weight" for part in ("gate_proj", "up_proj")]
    return [key if key.endswith((".weight", ".bias")) else f"{key}.weight"]


def random_blocks(random, shape, ty, size):
    """Blocks of random codes whose values have about this standard deviation, and those values."""
    kind = GGMLQuantizationType[ty]
    if ty not in HALVES:
        blocks = gguf.quants.quantize((size * random.standard_normal(shape)).astype(numpy.float32), kind)
        return blocks, gguf.quants.dequantize(blocks, kind)
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = random.randint(0, 256, (shape[0], shape[1] // block_len, block_bytes)).astype(numpy.uint8)
    scale, minimum, centre = HALVES[ty]

    def set_scales(scales):
        for at, factor in ((scale, 1), (minimum, centre)):
            if at is not None:
                halves = (scales * factor).astype("<f2")
                blocks[:, :, at : at + 2] = halves[..., None].view(numpy.uint8)
        return gguf.quants.dequantize(blocks.reshape(shape[0], -1), kind)

    jitter = 1 + 0.5 * random.random_sample(blocks.shape[:2])
    # 2^-6: far from fp16's ends for each type.
    values = set_scales(jitter / 64)
    values = set_scales(jitter / 64 * size / values.std())
    assert numpy.isfinite(values).all() and 0.9 < values.std() / size < 1.1
    return blocks.reshape(shape[0], -1), values.astype(numpy.float32)


def quantized_models():
    """Name, configuration, types of each layer, of the embedding and of the head."""
    rope = {"rope_type": "default", "rope_theta": 700.0}
    sizes = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, bos_token_id=1, eos_token_id=2)
    llama = LlamaConfig(
        **sizes, vocab_size=131, hidden_size=256, intermediate_size=64, head_dim=16, max_position_embeddings=512,
        rms_norm_eps=3e-3, tie_word_embeddings=False, rope_parameters=rope,
    )
    phi3 = Phi3Config(
        **sizes, vocab_size=97, hidden_size=64, intermediate_size=32, max_position_embeddings=256, rms_norm_eps=3e-3,
        tie_word_embeddings=False, rope_parameters=rope | {"partial_rotary_factor": 1.0}, pad_token_id=0,
    )
    qwen3_moe = Qwen3MoeConfig(
        **sizes, vocab_size=97, hidden_size=64, intermediate_size=96, head_dim=16, max_position_embeddings=256,
        rms_norm_eps=3e-3, tie_word_embeddings=False, rope_parameters=rope, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=32, norm_topk_prob=True,
    )
    return {
        "llama-quantised": (llama, QUANTISED_TYPES, EMBEDDING_TYPE, OUTPUT_TYPE),
        "phi3-quantised": (phi3, JOINED_TYPES, "Q8_0", "Q5_0"),
        "qwen3_moe-quantised": (qwen3_moe, EXPERT_TYPES, "Q8_0", "Q5_0"),
    }


def add_random(writer, random, name, shape, types):
    """Adds random blocks of the type that `types` gives the tensor, and answers their values."""
    parts = name.split(".")
    layer_types, embedding_type, output_type = types
    of_layers = layer_types[int(parts[1])] if parts[0] == "blk" else {}
    ty = of_layers.get(parts[-2]) or {"token_embd": embedding_type, "output": output_type}[parts[0]]
    size = 0.5 if parts[0] == "token_embd" else 1.6 / math.sqrt(shape[-1])
    blocks, values = random_blocks(random, (math.prod(shape[:-1]), shape[-1]), ty, size)
    writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=GGMLQuantizationType[ty])
    return values.reshape(shape)


def make_quantized(name, config, *types):
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").float().eval()
    random = numpy.random.RandomState(SEED)
    form = FORMS.get(config.model_type)
    writer = gguf.GGUFWriter(FOLDER / f"{name}.gguf", form.architecture if form else "llama")
    if form:
        add_keys(writer, config, form, model.state_dict())
        if form.more:
            form.more(writer, config, {})
    else:
        write_llama(writer, config, {}, "F32")
    names = NAMES | (form.names if form else LLAMA_NAMES)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for key, parameter in model.named_parameters():
        parts = [gguf_name(part, names) for part in stored_parts(key)]
        shape = list(parameter.shape)
        if parameter.dim() == 1:
            values = [(1 + 0.4 * random.standard_normal(shape)).astype(numpy.float32)]
            writer.add_tensor(parts[0], values[0])
        else:
            shape[-2] //= len(parts)
            values = [add_random(writer, random, part, shape, types) for part in parts]
            n_heads = None if form else heads.get(parts[0].split(".")[-2])
            values = [unpermute(values[0], n_heads)] if n_heads else values
        joined = numpy.concatenate(values, axis=max(parameter.dim() - 2, 0))
        parameter.data = torch.from_numpy(numpy.ascontiguousarray(joined))
    finish(writer)

    floats, sequences = Floats(), []
    for length in SEQUENCE_LENS:
        ids = random.randint(0, config.vocab_size, length).tolist()
        with torch.no_grad():
            sequences.append({"ids": ids, "logits": floats.add(model(torch.tensor([ids])).logits[0].numpy())})
    floats.write(FOLDER / f"{name}.bin")
    write_json(FOLDER / f"{name}.json", {
        "made_by": "tests/oracle/make_tiny_gguf.py", "transformers": transformers.__version__,
        "torch": torch.__version__, "seed": SEED, "sequences": sequences,
    })


def main():
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    sample = numpy.arange(24).reshape(12, 2)
    assert (unpermute(permute(sample, 2), 2) == sample).all()
    assert permute(sample, 2)[:, 0].tolist() == [0, 6, 2, 8, 4, 10, 12, 18, 14, 20, 16, 22]
    quantized = quantized_models()
    for name in sys.argv[1:] or [*TWINS, *quantized]:
        if name in quantized:
            make_quantized(name, *quantized[name])
        else:
            make_twin(name, TWINS[name])


if __name__ == "__main__":
    main()
