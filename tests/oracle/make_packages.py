"""Makes tests/packages/<name>.mlpackage: packages as coremltools writes them, for our reader.

    python3 tests/oracle/make_packages.py [name..]    # write all of them, or those that are named

Small on purpose; each is there for what its name says. Dates and random identifiers are replaced, so that a second run
gives the same bytes. Needs coremltools and numpy, and torch for those that are
traced; all seeds are literals.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

FOLDER = Path(__file__).resolve().parents[1] / "packages"
F16, F32 = np.float16, np.float32


def weight(seed, *shape, dtype=F32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def linear(x, seed, n_out, n_in, dtype=F32):
    return mb.linear(x=x, weight=weight(seed, n_out, n_in, dtype=dtype), bias=weight(seed + 1, n_out, dtype=dtype))


def program(specs, body, target, dtype=types.fp32):
    specs = [mb.TensorSpec(shape=s, dtype=dtype) if isinstance(s, tuple) else s for s in specs]
    return mb.program(input_specs=specs, opset_version=target)(body)


def convert(prog, target, **more):
    options = {"compute_precision": ct.precision.FLOAT32, **more}
    return ct.convert(prog, convert_to="mlprogram", minimum_deployment_target=target, **options)


def ios15():
    return convert(program([(3, 5)], lambda x: mb.relu(x=linear(x, 1, 7, 5)), ct.target.iOS15), ct.target.iOS15)


def ios16_half():
    """Inputs, outputs and weights in half precision."""
    specs = [mb.TensorSpec(shape=(2, 6), dtype=types.fp16)]
    prog = program(specs, lambda x: mb.tanh(x=linear(x, 3, 4, 6, F16)), ct.target.iOS16)
    return convert(prog, ct.target.iOS16, compute_precision=ct.precision.FLOAT16)


def ios17_integers():
    """Constants of many types: an index table of int32, masks of bool, scalars."""

    def body(x):
        picked = mb.gather(x=x, indices=np.array([4, 0, 2, 1, 3, 0, 4, 2, 2, 1, 3], dtype=np.int32), axis=1)
        mask = np.array([[True, False, True] * 3 + [True, False]] * 3)
        return mb.select(cond=mask, a=picked, b=mb.mul(x=picked, y=F32(0.5)))

    return convert(program([(3, 5)], body, ct.target.iOS17), ct.target.iOS17)


def ios18_palettized():
    """constexpr_lut_to_dense over sub-byte indices, then shifted and scaled by block."""

    def body(x):
        rng = np.random.default_rng(5)
        indices = rng.integers(0, 16, (8, 12)).astype(types.np_uint4_dtype)
        lut = rng.standard_normal((2, 1, 16, 1)).astype(F16)
        dense = mb.constexpr_lut_to_dense(indices=indices, lut=lut)
        codes = rng.integers(-8, 8, (8, 12)).astype(types.np_int4_dtype)
        scale = rng.standard_normal((8, 3)).astype(F16)
        scaled = mb.constexpr_blockwise_shift_scale(data=codes, scale=scale)
        return mb.add(x=mb.linear(x=x, weight=dense), y=mb.linear(x=x, weight=scaled))

    specs = [mb.TensorSpec(shape=(3, 12), dtype=types.fp16)]
    return convert(program(specs, body, ct.target.iOS18), ct.target.iOS18, compute_precision=ct.precision.FLOAT16)


def ios18_state():
    """A state that is read, changed and read again; one update whose result nobody uses."""

    def body(x, cache, count):
        old = mb.read_state(input=cache)
        new = mb.coreml_update_state(state=cache, value=mb.add(x=old, y=x))
        mb.coreml_update_state(state=count, value=mb.add(x=mb.read_state(input=count), y=F16(1)))
        return mb.mul(x=new, y=x)

    specs = [
        mb.TensorSpec(shape=(2, 11), dtype=types.fp16),
        mb.StateTensorSpec((2, 11), dtype=types.fp16),
        mb.StateTensorSpec((1,), dtype=types.fp16),
    ]
    prog = program(specs, body, ct.target.iOS18)
    return convert(prog, ct.target.iOS18, compute_precision=ct.precision.FLOAT16)


def ranges():
    """A dimension within bounds."""
    prog = program([mb.TensorSpec(shape=(1, ct.converters.mil.mil.program.get_new_symbol(), 4)), (1, 4)],
                   lambda x, y: mb.softmax(x=mb.add(x=x, y=y), axis=-1), ct.target.iOS16)
    name, other = list(prog.functions["main"].inputs)
    rows = ct.RangeDim(lower_bound=2, upper_bound=64, default=5)
    return convert(prog, ct.target.iOS16, inputs=[
        ct.TensorType(name=name, shape=(1, rows, 4)), ct.TensorType(name=other, shape=(1, 4))])


def enumerated():
    prog = program([mb.TensorSpec(shape=(1, ct.converters.mil.mil.program.get_new_symbol(), 4))],
                   lambda x: mb.softmax(x=x, axis=-1), ct.target.iOS17)
    (name,) = prog.functions["main"].inputs
    shapes = ct.EnumeratedShapes(shapes=[(1, 3, 4), (1, 9, 4), (1, 27, 4)], default=(1, 9, 4))
    return convert(prog, ct.target.iOS17, inputs=[ct.TensorType(name=name, shape=shapes)])


def image():
    prog = program([(1, 3, 6, 8)], lambda x: mb.mul(x=x, y=F32(0.25), name="y"), ct.target.iOS16)
    (name,) = prog.functions["main"].inputs
    layout = ct.colorlayout.BGR
    return convert(prog, ct.target.iOS16, inputs=[ct.ImageType(name=name, shape=(1, 3, 6, 8), color_layout=layout)],
                   outputs=[ct.ImageType(name="y", color_layout=layout)])


def optional_input():
    prog = program([(2, 3), (2, 3)], lambda x, y: mb.add(x=x, y=y), ct.target.iOS16)
    name, other = list(prog.functions["main"].inputs)
    return convert(prog, ct.target.iOS16, inputs=[
        ct.TensorType(name=name, shape=(2, 3)),
        ct.TensorType(name=other, shape=(2, 3), default_value=np.full((2, 3), 1.5, F32))])


def control_flow():
    """A loop with a condition inside of it; names of one block come again in another."""

    def body(x):
        def turn(i, a):
            small = mb.less(x=mb.reduce_sum(x=a, axes=[0, 1]), y=F32(100))
            b = mb.cond(pred=small, _true_fn=lambda: mb.mul(x=a, y=F32(2)), _false_fn=lambda: mb.exp(x=a))
            return mb.add(x=i, y=np.int32(1)), b

        _, out = mb.while_loop(
            _cond=lambda i, a: mb.less(x=i, y=np.int32(3)), _body=turn, loop_vars=(np.int32(0), x))
        return out

    return convert(program([(2, 3)], body, ct.target.iOS16), ct.target.iOS16)


def lists():
    """A list that grows in a loop, is read, gathered from and scattered to; its elements have one size that is not known."""

    def body(x, n):
        empty = mb.make_list(init_length=0, elem_shape=("size", np.int32(3)), dtype="fp32")
        _, full = mb.while_loop(
            _cond=lambda i, ls: mb.less(x=i, y=mb.squeeze(x=n, axes=[0])),
            _body=lambda i, ls: (mb.add(x=i, y=np.int32(1)), mb.list_write(ls=ls, index=i, value=x)),
            loop_vars=(np.int32(0), empty))
        places = np.array([1, 0], dtype=np.int32)
        some = mb.list_gather(ls=full, indices=places)
        other = mb.list_scatter(ls=full, indices=places, value=mb.mul(x=some, y=F32(2)))
        return mb.list_read(ls=other, index=np.int32(0)), mb.expand_dims(x=mb.list_length(ls=other), axes=[0])

    specs = [(2, 3), mb.TensorSpec(shape=(1,), dtype=types.int32)]
    return convert(program(specs, body, ct.target.iOS15), ct.target.iOS15)


def spatial():
    """Convolutions, one in groups, one transposed; pooling; a batch norm that stays an op."""

    def body(x):
        y = mb.conv(x=x, weight=weight(21, 6, 4, 3, 2), bias=weight(22, 6), pad_type="same", strides=[2, 1])
        y = mb.batch_norm(x=y, mean=weight(23, 6), variance=np.abs(weight(24, 6)), gamma=weight(25, 6), beta=weight(26, 6))
        y = mb.conv(x=mb.relu(x=y), weight=weight(27, 6, 2, 2, 2), groups=3, pad_type="custom", pad=[1, 0, 0, 1])
        y = mb.max_pool(x=y, kernel_sizes=[2, 3], strides=[1, 2], pad_type="valid")
        return mb.conv_transpose(x=y, weight=weight(28, 6, 5, 2, 2), strides=[2, 2])

    prog = program([(1, 4, 9, 8)], body, ct.target.iOS16)
    return convert(prog, ct.target.iOS16, pass_pipeline=ct.PassPipeline.EMPTY)


def classes(labels, target):
    """A classifier: its outputs are a label and a dictionary."""
    prog = program([(1, 4)], lambda x: mb.softmax(x=linear(x, 31, 3, 4), axis=-1), target)
    return convert(prog, target, classifier_config=ct.ClassifierConfig(labels))


def classifier():
    return classes(["cat", "a \"dog\"", "\u725b"], ct.target.iOS15)


def classifier_int64():
    return classes([10, -20, 30], ct.target.iOS18)


def optimized(dtype, target, *steps):
    """Linear layers of 24 x 15, each compressed by its own steps, which are an optimizer and its config."""

    def body(x):
        for i in range(len(steps)):
            last = mb.linear(x=x, weight=weight(40 + i, 24, 15, dtype=dtype), name=f"linear_{i}")
            total = last if i == 0 else mb.add(x=total, y=last)
        return total

    specs = [mb.TensorSpec(shape=(2, 15), dtype=types.fp32 if dtype is F32 else types.fp16)]
    precision = ct.precision.FLOAT32 if dtype is F32 else ct.precision.FLOAT16
    model = convert(program(specs, body, target), target, compute_precision=precision)
    for i, turns in enumerate(steps):
        for turn, (compress, config) in enumerate(turns):
            config.weight_threshold = 100
            chosen = cto.OptimizationConfig()
            chosen.set_op_name(f"linear_{i}", config)
            model = compress(model, chosen, **({"joint_compression": True} if turn else {}))
    return model


def ios16_compressed():
    """The three forms of compressed constants that came with iOS 16, whose parameters are attributes."""
    return optimized(
        F32, ct.target.iOS16,
        [(cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(mode="linear", dtype="uint8"))],
        [(cto.palettize_weights, cto.OpPalettizerConfig(nbits=4, mode="uniform"))],
        [(cto.prune_weights, cto.OpMagnitudePrunerConfig(target_sparsity=0.7))])


def ios18_joint():
    """Constants that are computed from constants: a sparse palette, sparse integers, a palette of integers."""
    prune = (cto.prune_weights, cto.OpMagnitudePrunerConfig(target_sparsity=0.6))
    palette = (cto.palettize_weights, cto.OpPalettizerConfig(nbits=3, mode="uniform"))
    blocks = {"granularity": "per_block", "block_size": 5}
    whole = (cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(granularity="per_tensor"))
    return optimized(
        F16, ct.target.iOS18,
        [prune, palette],
        [prune, (cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(dtype="int4", **blocks))],
        [palette, whole])


def infinite():
    """A mask of infinities, in the model file and in the weight file."""

    def body(x):
        mask = np.triu(np.full((4, 4), -np.inf, F32), 1)
        return mb.maximum(x=mb.add(x=x, y=mask), y=F32(-np.inf))

    return convert(program([(4, 4)], body, ct.target.iOS16), ct.target.iOS16)


def of_torch(module, inputs, outputs, target=ct.target.iOS16):
    """A traced module; what torch makes of the inputs travels in the metadata, as JSON, by the names of both."""
    import torch

    module = module.eval()
    with torch.no_grad():
        results = module(*inputs.values())
    traced = torch.jit.trace(module, tuple(inputs.values()))
    model = ct.convert(
        traced, convert_to="mlprogram", minimum_deployment_target=target, compute_precision=ct.precision.FLOAT32,
        inputs=[ct.TensorType(name=name, shape=x.shape) for name, x in inputs.items()],
        outputs=[ct.TensorType(name=name) for name in outputs])
    results = results if isinstance(results, tuple) else (results,)
    for name, tensor in [*inputs.items(), *zip(outputs, results)]:
        model.user_defined_metadata[f"torch.{name}"] = json.dumps(tensor.flatten().tolist())
    return model


def gru():
    """A recurrent layer of torch: a loop whose condition gives a vector of one truth value."""
    import torch

    torch.manual_seed(3)
    return of_torch(torch.nn.GRU(4, 3), {"x": torch.randn(5, 2, 4), "h": torch.randn(1, 2, 3)}, ["y", "last"])


def infinite_mask():
    """Attention's mask as torch users write it: minus infinity where a key is hidden. coremltools writes masked_fill itself
    with the least finite number."""
    import torch

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf")))

        def forward(self, scores):
            return (scores + self.mask).softmax(-1)

    torch.manual_seed(4)
    return of_torch(Masked(), {"scores": torch.randn(2, 5, 5)}, ["y"])


def multifunction():
    """Two functions over one weight, by save_multifunction, which stores it once."""
    saved = []
    bodies = [lambda x: mb.relu(x=linear(x, 11, 6, 4), name="y"), lambda x: mb.tanh(x=linear(x, 11, 6, 4), name="y")]
    for n, body in zip((3, 5), bodies):
        prog = program([(n, 4)], body, ct.target.iOS18)
        path = Path(tempfile.mkdtemp()) / f"{n}.mlpackage"
        convert(prog, ct.target.iOS18).save(str(path))
        saved.append(path)
    description = ct.utils.MultiFunctionDescriptor()
    description.add_function(str(saved[0]), src_function_name="main", target_function_name="prefill")
    description.add_function(str(saved[1]), src_function_name="main", target_function_name="decode")
    description.default_function_name = "prefill"
    out = Path(tempfile.mkdtemp()) / "multifunction.mlpackage"
    ct.utils.save_multifunction(description, str(out))
    return out


def described():
    """Metadata and descriptions of features."""
    model = ios15()
    model.author, model.license, model.version = "somebody", "MIT", "1.2.3"
    model.short_description = "A line.\nAnother."
    model.user_defined_metadata["ai.thane.key"] = "value"
    spec = model.get_spec()
    model.input_description[spec.description.input[0].name] = "what goes in"
    model.output_description[spec.description.output[0].name] = "what comes out"
    return model


CASES = [
    ios15, ios16_half, ios17_integers, ios18_palettized, ios18_state, ranges, enumerated, image, optional_input,
    control_flow, lists, spatial, classifier, classifier_int64, ios16_compressed, ios18_joint, infinite, multifunction, described,
    gru, infinite_mask,
]


def save(name, model):
    target = FOLDER / f"{name}.mlpackage"
    if target.exists():
        shutil.rmtree(target)
    if isinstance(model, Path):
        shutil.copytree(model, target)
    else:
        model.user_defined_metadata["com.github.apple.coremltools.conversion_date"] = "2025-01-01"
        model.save(str(target))
    manifest = json.loads((target / "Manifest.json").read_text())
    fixed = {old: f"00000000-0000-4000-8000-{i:012}" for i, old in enumerate(sorted(
        manifest["itemInfoEntries"], key=lambda i: manifest["itemInfoEntries"][i]["path"]))}
    text = json.dumps(manifest)
    for old, new in fixed.items():
        text = text.replace(old, new)
    # Sorted: the order of entries follows from the identifiers that were.
    (target / "Manifest.json").write_text(json.dumps(json.loads(text), indent=4, sort_keys=True) + "\n")
    model_file = target / "Data/com.apple.CoreML/model.mlmodel"
    message = ct.proto.Model_pb2.Model.FromString(model_file.read_bytes())
    keys = message.description.metadata.userDefined
    if keys.get("com.github.apple.coremltools.conversion_date"):
        keys["com.github.apple.coremltools.conversion_date"] = "2025-01-01"
    model_file.write_bytes(message.SerializeToString(deterministic=True))
    model_file.chmod(0o644)


if __name__ == "__main__":
    for case in CASES:
        if not sys.argv[1:] or case.__name__ in sys.argv[1:]:
            save(case.__name__, case())
            print(case.__name__)
