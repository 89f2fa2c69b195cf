"""The models of packages.py: torch modules with random weights, as Core ML packages and as ONNX.

    python scripts/peers/package_models.py FOLDER MODEL BATCH

Needs torch, torchvision, transformers, coremltools, onnx and onnxscript. Writes into FOLDER, for a
fixed seed:

    FORM.mlpackage          fp32 and fp16 (`compute_precision` of coremltools), and for some models
                            compressed from fp16 by coremltools.optimize: lut4, lut6, int8, int4
    fp32.onnx, fp16.onnx    torch.onnx.export; in fp16.onnx the weights are stored in fp16 and cast
                            to fp32, because the CPU provider of ONNX Runtime has few fp16 kernels
    inputs, states          NAME.npy for each input and state of the packages
    onnx                    NAME.npy for each input of the ONNX files
    expected                NAME.npy for each output, computed by torch in fp32
"""

import argparse
import pathlib
import shutil

import coremltools as ct
import coremltools.optimize as cto
import numpy as np
import onnx
import torch
import torchvision
import transformers
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.torch import ops
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional as F

SEED = 0
# A block of int4 weights that share a scale.
INT4_BLOCK = 32


def cast_number(context, node, dtype, dtype_name):
    """Reads a constant of one element, which numpy 2.4 and later do not take as a scalar."""
    value = ops._get_inputs(context, node, expected=1)[0].val
    if isinstance(value, np.ndarray) and value.size == 1:
        context.add(mb.const(val=dtype(value.item()), name=node.name), node.name)
    else:
        CAST_NUMBER(context, node, dtype, dtype_name)


CAST_NUMBER, ops._cast = ops._cast, cast_number


class Subject:
    """A module with its inputs; `onnx_module` and `onnx_inputs` where ONNX needs another form."""

    def __init__(self, module, inputs, onnx_module=None, onnx_inputs=None, states=None):
        self.module, self.inputs = module.eval(), inputs
        self.onnx_module = (onnx_module or module).eval()
        self.onnx_inputs = onnx_inputs or inputs
        self.states = states or {}


def floats(*shape):
    return torch.rand(*shape) * 2 - 1


def eager(config):
    """Attention in plain ops, which coremltools 9 converts."""
    config._attn_implementation = "eager"
    return config


class Hidden(nn.Module):
    """The last hidden state of a model of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).last_hidden_state


def classifier(model, batch):
    """With the statistics of a batch in its norms; without, activations underflow in fp16."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()(floats(16, 3, 224, 224))
    return Subject(model, {"image": floats(batch, 3, 224, 224)})


def mobilenet_v2(batch):
    return classifier(torchvision.models.mobilenet_v2(weights=None), batch)


def resnet50(batch):
    return classifier(torchvision.models.resnet50(weights=None), batch)


def distilbert(batch):
    model = transformers.DistilBertModel(eager(transformers.DistilBertConfig()))
    ids = torch.randint(1000, 30000, (batch, 128), dtype=torch.int32)
    return Subject(Hidden(model), {"input_ids": ids})


def siglip(batch):
    config = eager(transformers.SiglipVisionConfig(vision_use_head=False))
    model = transformers.SiglipVisionModel(config)
    return Subject(Hidden(model), {"pixels": floats(batch, 3, 224, 224)})


def whisper_tiny(batch):
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    encoder = transformers.models.whisper.modeling_whisper.WhisperEncoder(eager(config))
    return Subject(Hidden(encoder), {"mel": floats(batch, 80, 3000)})


class Recurrent(nn.Module):
    def __init__(self, n_in=256, n=512, n_out=256):
        super().__init__()
        self.lstm = nn.LSTM(n_in, n, num_layers=2, batch_first=True)
        self.head = nn.Linear(n, n_out)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def lstm(batch):
    return Subject(Recurrent(), {"x": floats(batch, 128, 256)})


def convolutions(n_in, n_out, n_groups):
    """Two times: convolution, group norm, SiLU."""
    layers = []
    for n in (n_in, n_out):
        layers += [nn.Conv2d(n, n_out, 3, padding=1), nn.GroupNorm(n_groups, n_out), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """One level of a U-Net: down, attention, up by a transposed convolution, skip."""

    def __init__(self, n=128, n_heads=4, n_in=64, n_groups=16):
        super().__init__()
        self.n_heads = n_heads
        self.before = convolutions(n_in, n, n_groups)
        self.down = nn.Conv2d(n, n, 3, stride=2, padding=1)
        self.middle = convolutions(n, 2 * n, n_groups)
        self.norm = nn.GroupNorm(n_groups, 2 * n)
        self.qkv, self.out = nn.Linear(2 * n, 6 * n), nn.Linear(2 * n, 2 * n)
        self.up = nn.ConvTranspose2d(2 * n, n, 2, stride=2)
        self.after = convolutions(2 * n, n, n_groups)
        self.last = nn.Conv2d(n, n_in, 1)

    def attend(self, x):
        batch, n, height, width = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        shape = (batch, height * width, 3, self.n_heads, n // self.n_heads)
        q, k, v = self.qkv(tokens).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-1, -2)) * (n // self.n_heads) ** -0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, height * width, n)
        return x + self.out(mixed).transpose(1, 2).reshape(batch, n, height, width)

    def forward(self, x):
        skip = self.before(x)
        x = self.attend(self.middle(self.down(skip)))
        return self.last(self.after(torch.cat([self.up(x), skip], 1)))


def unet_block(batch):
    return Subject(UNet(), {"x": floats(batch, 64, 64, 64)})


class Block(nn.Module):
    """A layer of a decoder; `cache` stores the new key and value and returns all of them."""

    def __init__(self, n, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(n, 1e-6), nn.RMSNorm(n, 1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(n, n, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, 3 * n, bias=False)
        self.narrow = nn.Linear(3 * n, n, bias=False)

    def heads(self, x):
        batch, n = x.shape[0], x.shape[2]
        return x.reshape(batch, 1, self.n_heads, n // self.n_heads).transpose(1, 2)

    def forward(self, x, cos, sin, mask, cache):
        def rotated(y):
            low, high = y.chunk(2, dim=-1)
            return y * cos + torch.cat([-high, low], -1) * sin

        y = self.norm_1(x)
        q, k = rotated(self.heads(self.q(y))), rotated(self.heads(self.k(y)))
        keys, values = cache(k, self.heads(self.v(y)))
        scores = q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
        mixed = (scores.softmax(-1) @ values).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        y = self.norm_2(x)
        return x + self.narrow(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """One token of a small Llama; the caches are states of the package."""

    def __init__(self, batch, n=512, n_layers=8, n_heads=8, context=512, vocab=8192):
        super().__init__()
        self.context = context
        self.embed, self.head = nn.Embedding(vocab, n), nn.Linear(n, vocab, bias=False)
        self.layers = nn.ModuleList(Block(n, n_heads) for _ in range(n_layers))
        self.norm = nn.RMSNorm(n, 1e-6)
        size = n // n_heads
        angles = torch.arange(context)[:, None] * 1e4 ** (-torch.arange(0, size, 2) / size)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        shape = (n_layers, batch, n_heads, context, size)
        self.register_buffer("k_cache", torch.zeros(shape))
        self.register_buffer("v_cache", torch.zeros(shape))

    def run(self, input_ids, position, mask, cache):
        # Not an index: that is exported as an op without int32.
        cos, sin = F.embedding(position, self.cos), F.embedding(position, self.sin)
        x = self.embed(input_ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, lambda k, v, i=i: cache(i, k, v))
        return self.head(self.norm(x))

    def forward(self, input_ids, position, mask):
        begin = position[0]
        end = begin + 1

        def cache(i, k, v):
            self.k_cache[i, :, :, begin:end, :] = k
            self.v_cache[i, :, :, begin:end, :] = v
            return self.k_cache[i], self.v_cache[i]

        return self.run(input_ids, position, mask, cache)


class Past(nn.Module):
    """The decoder with its caches as inputs and outputs, as exporters for ONNX write it."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids, position, mask, past_k, past_v):
        keys, values = [], []

        def cache(i, k, v):
            keys.append(torch.cat([past_k[i], k], 2))
            values.append(torch.cat([past_v[i], v], 2))
            return keys[-1], values[-1]

        logits = self.decoder.run(input_ids, position, mask, cache)
        return logits, torch.stack(keys), torch.stack(values)


def decoder(batch):
    model = Decoder(batch)
    last = model.context - 1
    inputs = {
        "input_ids": torch.randint(0, 8192, (batch, 1), dtype=torch.int32),
        "position": torch.tensor([last], dtype=torch.int32),
        "mask": torch.zeros(1, 1, 1, model.context),
    }
    # Numbers that fp16 has, because the states of a package are fp16.
    caches = [floats(*model.k_cache.shape).half().float() for _ in range(2)]
    for cache in caches:
        cache[:, :, :, last:, :] = 0
    past = {f"past_{n}": c[:, :, :, :last, :] for n, c in zip("kv", caches)}
    states = {"k_cache": caches[0], "v_cache": caches[1]}
    return Subject(model, inputs, Past(model), inputs | past, states)


MODELS = {
    f.__name__: f
    for f in (mobilenet_v2, resnet50, distilbert, siglip, whisper_tiny, lstm, unet_block, decoder)
}


def save(folder, arrays):
    folder.mkdir(exist_ok=True)
    for name, value in arrays.items():
        np.save(folder / f"{name}.npy", value.numpy())


def write_packages(folder, subject, compress):
    examples = tuple(subject.inputs.values())
    traced = torch.jit.trace(subject.module, examples, check_trace=False)
    number = lambda t: np.int32 if t.dtype == torch.int32 else np.float32
    inputs = [
        ct.TensorType(n, shape=tuple(t.shape), dtype=number(t)) for n, t in subject.inputs.items()
    ]
    state = lambda t: ct.TensorType(shape=tuple(t.shape), dtype=np.float16)
    states = [ct.StateType(wrapped_type=state(t), name=n) for n, t in subject.states.items()]
    made = {}
    for form, precision in (("fp32", ct.precision.FLOAT32), ("fp16", ct.precision.FLOAT16)):
        package = ct.convert(
            traced,
            inputs=inputs,
            outputs=[ct.TensorType(name="output", dtype=np.float32)],
            states=states or None,
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=precision,
            compute_units=ct.ComputeUnit.CPU_ONLY,
            skip_model_load=True,
        )
        package.save(str(folder / f"{form}.mlpackage"))
        made[form] = package
    for form in compress:
        compressed(made["fp16"], form).save(str(folder / f"{form}.mlpackage"))


def compressed(package, form):
    optimize = cto.coreml
    if form.startswith("lut"):
        # Uniform tables: k-means takes minutes and changes no shape.
        config = optimize.OpPalettizerConfig(mode="uniform", nbits=int(form[3:]))
        config = optimize.OptimizationConfig(global_config=config)
        return optimize.palettize_weights(package, config)
    if form == "int8":
        config = optimize.OpLinearQuantizerConfig(mode="linear_symmetric")
    else:
        config = optimize.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=INT4_BLOCK
        )
    config = optimize.OptimizationConfig(global_config=config)
    return optimize.linear_quantize_weights(package, config)


def write_onnx(folder, subject):
    path = folder / "fp32.onnx"
    names = list(subject.onnx_inputs)
    outputs = ["output"] + [f"new_{n}" for n in names if n.startswith("past_")]
    torch.onnx.export(
        subject.onnx_module,
        tuple(subject.onnx_inputs.values()),
        str(path),
        input_names=names,
        output_names=[name.replace("past_", "") for name in outputs],
        opset_version=20,
        dynamo=not isinstance(subject.module, Recurrent),
        external_data=False,
    )
    model = onnx.load(path)
    narrowed(model.graph)
    onnx.save(model, folder / "fp16.onnx")


def narrowed(graph):
    """Stores fp32 weights in fp16, each with a cast to fp32 before its readers."""
    casts = []
    for tensor in graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype != np.float32 or value.size < 256:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float16), f"{name}_fp16"))
        casts.append(helper.make_node("Cast", [f"{name}_fp16"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("--compress", default="", help="forms such as lut4,int8")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    # A folder that is there is whole.
    making = args.folder.with_name(f"{args.folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    with torch.no_grad():
        subject = MODELS[args.model](args.batch)
        save(making / "inputs", subject.inputs)
        save(making / "states", subject.states)
        save(making / "onnx", subject.onnx_inputs)
        result = subject.onnx_module(*subject.onnx_inputs.values())
        save(making / "expected", {"output": result[0] if isinstance(result, tuple) else result})
        write_onnx(making, subject)
        write_packages(making, subject, [form for form in args.compress.split(",") if form])
    making.rename(args.folder)


if __name__ == "__main__":
    main()
