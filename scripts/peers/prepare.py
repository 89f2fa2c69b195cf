"""Makes what other programs need of an encoder: texts, ONNX, int8 forms, GGUF. `table.py` calls it for what is not there.

    ENCODERS/bin/python scripts/peers/prepare.py texts MODEL OUT.jsonl [--count 64] [--longest 240]
    ENCODERS/bin/python scripts/peers/prepare.py onnx MODEL OUT.onnx
    ENCODERS/bin/python scripts/peers/prepare.py onnx-int8 FROM.onnx OUT.onnx
    ENCODERS/bin/python scripts/peers/prepare.py openvino-int8 FROM.onnx OUT.xml --ids TEXTS.jsonl
    ENCODERS/bin/python scripts/peers/prepare.py gguf MODEL OUT.gguf [--type bf16]

MODEL is a Hugging Face folder: BERT, or Qwen3 that sees both ways. `texts` writes rows of `text` and `ids`. `onnx` has fp32
and the inputs `ids` and `mask`; int8 is that of onnxruntime (weights by channel, activations when they come) and of nncf (both
ahead, calibrated on the rows of `--ids`). Of a large vocabulary ONNX and GGUF get the first 4,096 tokens: else llama.cpp computes a head that no vector needs,
and the fp32 form is too large for ONNX. OUT is whole or not there.
"""

import argparse
import json
import pathlib
import sys

MAX_VOCABULARY = 4096
WORDS = "the sea a stone light of wind and house river they went over under slowly because every night was long".split()


def read_ids(path):
    with open(path) as file:
        return [json.loads(line)["ids"] for line in file]


def load(folder, dtype="float32"):
    """The model without a head, in torch."""
    import torch
    import transformers

    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    how = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
    if config["model_type"] == "bidirectional_pplx_qwen3":
        config = transformers.Qwen3Config(**config | {"model_type": "qwen3", "is_causal": False})
        return transformers.Qwen3Model.from_pretrained(folder, config=config, **how).eval()
    return transformers.AutoModel.from_pretrained(folder, **how).eval()


def texts(args):
    import numpy
    import tokenizers

    random = numpy.random.default_rng(3)
    lengths = numpy.exp(random.uniform(numpy.log(8), numpy.log(args.longest), args.count)).astype(int)
    rows = [" ".join(random.choice(WORDS, int(n))) for n in lengths]
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(args.model) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with open(args.out, "w") as out:
        out.writelines(json.dumps({"text": text, "ids": tokenizer.encode(text).ids}) + "\n" for text in rows)


def onnx(args):
    import torch

    model = load(args.model)
    table = model.get_input_embeddings()
    if table.num_embeddings > MAX_VOCABULARY and model.config.model_type == "qwen3":
        model.set_input_embeddings(torch.nn.Embedding.from_pretrained(table.weight[:MAX_VOCABULARY].clone()))

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            extra = {"token_type_ids": torch.zeros_like(ids)} if model.config.model_type == "bert" else {"use_cache": False}
            return self.model(input_ids=ids, attention_mask=mask, **extra).last_hidden_state

    # Traced with padding, so that the mask is not taken for one of ones.
    ids, mask = torch.ones(2, 8, dtype=torch.long), torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    axes = {name: {0: "batch", 1: "tokens"} for name in ("ids", "mask", "hidden")}
    with torch.no_grad():
        torch.onnx.export(
            Hidden(), (ids, mask), args.out, input_names=["ids", "mask"], output_names=["hidden"],
            dynamic_axes=axes, opset_version=17, dynamo=False,
        )


def onnx_int8(args):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(args.model, args.out, per_channel=True, weight_type=QuantType.QInt8)


def openvino_int8(args):
    import nncf
    import numpy
    import openvino

    rows = [numpy.array([ids], dtype=numpy.int64) for ids in read_ids(args.ids)]
    inputs = [{"ids": ids, "mask": numpy.ones_like(ids)} for ids in rows]
    model = openvino.Core().read_model(args.model)
    data = nncf.Dataset(inputs)
    openvino.save_model(nncf.quantize(model, data, subset_size=len(inputs), model_type=nncf.ModelType.TRANSFORMER), args.out)


QWEN3_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
}


def gguf_form(args):
    import gguf
    import safetensors
    import torch

    config = json.loads((pathlib.Path(args.model) / "config.json").read_text())
    if "qwen3" not in config["model_type"]:
        sys.exit(f"{args.model}: a {config['model_type']}; GGUF is made of Qwen3")
    kind = gguf.GGMLQuantizationType[args.type.upper()]
    writer = gguf.GGUFWriter(args.out, "qwen3", use_temp_file=True)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(min(config["vocab_size"], MAX_VOCABULARY))
    with safetensors.safe_open(pathlib.Path(args.model) / "model.safetensors", "pt") as file:
        for name in file.keys():
            module, parameter = name.rsplit(".", 1)
            parts = module.split(".", 2) if module.startswith("layers.") else [module]
            stored = ".".join([*(["blk", parts[1]] if len(parts) == 3 else []), QWEN3_NAMES[parts[-1]], parameter])
            tensor = file.get_slice(name)[:MAX_VOCABULARY] if module == "embed_tokens" else file.get_tensor(name)
            array = tensor.to(torch.float32).numpy()
            if array.ndim == 1:
                writer.add_tensor(stored, array)
            else:
                writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


KINDS = {"texts": texts, "onnx": onnx, "onnx-int8": onnx_int8, "openvino-int8": openvino_int8, "gguf": gguf_form}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--longest", type=int, default=240)
    parser.add_argument("--ids")
    parser.add_argument("--type", default="bf16", choices=["bf16", "q8_0"])
    args = parser.parse_args()
    if not pathlib.Path(args.model).exists():
        parser.error(f"{args.model} is not there")
    if args.kind == "openvino-int8" and not args.ids:
        parser.error("openvino-int8 needs --ids: texts to calibrate on")
    out = args.out
    # The suffix says what is written; .xml has its weights beside it.
    unfinished = out.with_name(f"unfinished-{out.name}")
    args.out = str(unfinished)
    KINDS[args.kind](args)
    for suffix in (".bin", out.suffix):
        if (part := unfinished.with_name(unfinished.stem + suffix)).exists():
            part.rename(out.with_name(out.stem + suffix))


if __name__ == "__main__":
    main()
