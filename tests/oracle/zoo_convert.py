"""Converts a subject of the zoo into a function of the MIL protobuf that has no weights."""

import coremltools as ct
import numpy as np
import torch
from coremltools import proto
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.backend.mil import load
from coremltools.converters.mil.frontend.torch import ops
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.ops.defs.iOS15.elementwise_unary import cast
from coremltools.converters.mil.mil.passes.defs.cleanup import const_deduplication
from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipeline, PassPipelineManager

import zoo_compress

LARGEST_IMMEDIATE = 256
VERSIONS = {"iOS15": 6, "iOS16": 7, "iOS17": 8, "iOS18": 9, "macOS15": 9}


class Exporter(load.MILProtoExporter):
    """Writes no weights: an array is its type, its shape and `@zeros`."""

    def get_milproto_value(self, var):
        value = var.val
        if not isinstance(value, np.ndarray) or value.dtype.kind in "US":
            return load.create_immediate_value(var)
        if value.dtype == np.bool_:  # no weight file holds them
            return load.create_immediate_value(var)
        # Sizes of splits and the like are read; coremltools would store those of ten or more.
        is_read = value.dtype == np.int32
        if value.nbytes > LARGEST_IMMEDIATE or not is_read and load.should_use_weight_file(
            value, self.specification_version
        ):
            return zeros(var)
        return load.create_immediate_value(var)


def zeros(var):
    """A reference to `@zeros` in the type and shape of the var."""
    return load.create_file_value_tensor(
        file_name="@zeros",
        offset=0,
        dim=var.val.shape,
        data_type=load.types_to_proto_primitive(var.sym_type.get_primitive()),
    )


def cast_stretched(cls, var, dtype):
    """A cast of a stretched array stays one number, where numpy would write all of them."""
    value = var.val
    if isinstance(value, np.ndarray) and value.size > 1 and not any(value.strides):
        kind = types.nptype_from_builtin(types.string_to_builtin(dtype))
        one = value[(slice(0, 1),) * value.ndim]
        return np.broadcast_to(one.astype(kind), value.shape)
    return CAST(cls, var, dtype)


def cast_number(context, node, dtype, dtype_name):
    """Reads a constant of one element, which numpy 2.4 and later do not take as a scalar."""
    value = ops._get_inputs(context, node, expected=1)[0].val
    if isinstance(value, np.ndarray) and value.size == 1:
        context.add(mb.const(val=dtype(value.item()), name=node.name), node.name)
    else:
        CAST_NUMBER(context, node, dtype, dtype_name)


def equal_tables(blocks):
    """Consts that are equal, such as tables of positions; weights of one number only look so."""
    found = FIND_CONSTANTS(blocks)
    return {var: [] if uniform(var.val) else same for var, same in found.items()}


def uniform(value):
    return not any(value.strides) or bool((value == value.reshape(-1)[0]).all())


FIND_CONSTANTS = const_deduplication.find_constants
const_deduplication.find_constants = staticmethod(equal_tables)
CAST = cast.get_cast_value.__func__
CAST_NUMBER = ops._cast
cast.get_cast_value = classmethod(cast_stretched)
ops._cast = cast_number


def convert(subject):
    """The subject as a Function of the MIL protobuf, with all names of coremltools."""
    with torch.no_grad():
        module, inputs = subject.build()
        examples = tuple(example(each) for each in inputs)
        traced = torch.jit.trace(module.eval(), examples, check_trace=False, strict=False)
    pipeline = PassPipeline.DEFAULT
    pipeline.remove_passes(set(subject.without))
    program = ct.convert(
        traced,
        pass_pipeline=pipeline,
        inputs=inputs,
        outputs=subject.outputs,
        states=subject.states,
        convert_to="milinternal",
        minimum_deployment_target=getattr(ct.target, subject.target),
        compute_precision=getattr(ct.precision, subject.precision.upper()),
    )
    target = subject.target
    if subject.compress and target == "iOS15":
        target = "iOS16"  # the first with ops for compressed weights
        for function in program.functions.values():
            function.opset_version = getattr(ct.target, target)
    zoo_compress.compress(program, subject.compress)
    backend = PassPipeline.get_pipeline("backend_mlprogram")
    backend.remove_passes({"common::const_deduplication"})  # compressed weights look equal
    PassPipelineManager.apply_pipeline(program, backend)
    version = VERSIONS[target]
    ranges = {k.name: k.shape.shape for k in inputs if any(map(is_range, k.shape.shape))}
    if ranges:
        settle(program.functions["main"], ranges)
    exporter = Exporter(prog=program, weights_dir="", specification_version=version)
    return exporter.export().functions["main"]


def is_range(size):
    return isinstance(size, ct.RangeDim)


def settle(function, ranges):
    """Gives each flexible size of a function its default, so that every type has a shape.

    The ops that compute with those sizes, such as the zeros that an LSTM starts from, stay.
    """
    for name, shape in ranges.items():
        var = function.inputs[name]
        var._sym_type = types.tensor(
            var.dtype, tuple(each.default if is_range(each) else each for each in shape)
        )
    with function:
        for op in function.operations:
            if op.op_type != "const" and not op.op_type.startswith("constexpr_"):
                op.type_value_inference(overwrite_output=True)


def example(kind):
    """Zeros for tracing: the shape and type of an input."""
    shape = tuple(each.default if is_range(each) else each for each in kind.shape.shape)
    integer = getattr(kind, "dtype", None) is not None and types.is_int(kind.dtype)
    return torch.zeros(shape, dtype=torch.int32 if integer else torch.float32)


class Renamer:
    """Short sequential names for the values and ops of one function; equal small consts merge."""

    def __init__(self, function):
        self.names = {}
        self.consts = {}
        for each in function.inputs:
            each.name = self.new(each.name)
        for block in function.block_specializations.values():
            self.block(block)

    def new(self, name):
        self.names[name] = f"v{len(self.names) + 1}"
        return self.names[name]

    def block(self, block):
        for each in block.inputs:
            each.name = self.new(each.name)
        outer = dict(self.consts)  # a const of an inner block is not seen outside
        kept = [op for op in block.operations if self.op(op)]
        self.consts = outer
        del block.operations[:]
        block.operations.extend(kept)
        block.outputs[:] = [self.names[name] for name in block.outputs]

    def op(self, op):
        """Renames the op; whether it stays."""
        op.attributes.pop("name", None)
        if op.type == "const" and op.attributes["val"].HasField("immediateValue"):
            value = op.attributes["val"].SerializeToString(deterministic=True)
            if value in self.consts:
                self.names[op.outputs[0].name] = self.consts[value]
                return False
            self.consts[value] = self.new(op.outputs[0].name)
            op.outputs[0].name = self.consts[value]
            return True
        for argument in op.inputs.values():
            for binding in argument.arguments:
                if binding.HasField("name"):
                    binding.name = self.names[binding.name]
        for each in op.outputs:
            each.name = self.new(each.name)
        for block in op.blocks:
            self.block(block)
        return True


def operations(block):
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from operations(inner)


def count(function):
    """Ops without consts and constexprs, and numbers in weights."""
    ops, numbers = 0, 0
    for block in function.block_specializations.values():
        for op in operations(block):
            if op.type == "const":
                value = op.attributes["val"]
                if value.HasField("blobFileValue"):
                    numbers += size(value.type.tensorType)
            elif op.type.startswith("constexpr_"):
                numbers += sum(size(each.type.tensorType) for each in op.outputs)
            else:
                ops += 1
    return ops, numbers


def size(kind):
    return int(np.prod([each.constant.size for each in kind.dimensions], dtype=np.int64))


def function(subject):
    """The subject as a Function of the MIL protobuf, renamed and without weights."""
    found = convert(subject)
    Renamer(found)
    return found
