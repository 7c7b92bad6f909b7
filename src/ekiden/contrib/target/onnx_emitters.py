"""Converters of Relay operators to ONNX nodes for `to_onnx`, one table entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.ir.dtype import to_numpy
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Expr
from ekiden.topi.dimensions import known_int

Array: TypeAlias = np.ndarray[Any, Any]
Emitter: TypeAlias = "Callable[[GraphWriter, Call, list[str]], str | list[str]]"
"""Emits the nodes of a call whose arguments have the given names; returns the names of its results,
"" for one that ONNX does not have."""


class NotWritableError(Exception):
    """Error of an expression without an ONNX equivalent."""


class GraphWriter:
    """Nodes and initializers of the ONNX graph under construction."""

    def __init__(self, used_names: set[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._used_names = used_names

    def emit(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        """Append a node with one output; return the output's name."""
        return self.emit_many(op_type, inputs, 1, **attributes)[0]

    def emit_many(
        self, op_type: str, inputs: Sequence[str], count: int, **attributes: object
    ) -> list[str]:
        """Append a node with several outputs; return their names."""
        outputs = [self._unique_name(op_type) for _ in range(count)]
        stated = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(
            onnx.helper.make_node(op_type, list(inputs), outputs, name=outputs[0], **stated)
        )
        return outputs

    def add_constant(self, value: Array) -> str:
        """Add an initializer; return its name."""
        name = self._unique_name("constant")
        self.add_initializer(name, value)
        return name

    def add_int64_constant(self, *values: int) -> str:
        """Add an initializer of int64 numbers; return its name."""
        return self.add_constant(np.array(values, np.int64))

    def add_initializer(self, name: str, value: Array) -> None:
        """Add an initializer under a given name."""
        self.initializers.append(
            onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        )

    def emit_reshape(self, data: str, *sizes: int) -> str:
        """Emit a reshape to sizes, of which one may be -1."""
        return self.emit("Reshape", [data, self.add_int64_constant(*sizes)])

    def _unique_name(self, stem: str) -> str:
        number = len(self._used_names)
        while f"{stem}_{number}" in self._used_names:
            number += 1
        self._used_names.add(f"{stem}_{number}")
        return f"{stem}_{number}"


def _tensor_type(expr: Expr) -> TensorType:
    """Return the tensor type of an expression."""
    kind = expr.checked_type
    if not isinstance(kind, TensorType):
        raise NotWritableError(f"{kind} where a tensor is expected")
    return kind


def _static_sizes(call: Call, expr: Expr) -> list[int]:
    """Return the static sizes of a tensor. Raises NotWritableError for unknown ones."""
    sizes = [known_int(dim) for dim in _tensor_type(expr).shape]
    if None in sizes:
        raise NotWritableError(f"{_operator_name(call)} of unknown sizes")
    return [size for size in sizes if size is not None]


def _tensor_rank(expr: Expr) -> int:
    return len(_tensor_type(expr).shape)


def _operator_name(call: Call) -> str:
    return str(getattr(call.op, "name", "a call"))


def _call_attrs(call: Call) -> Any:  # noqa: ANN401 - each operator has a class of attributes
    return call.attrs


def _to_ints(values: Any) -> list[int]:  # noqa: ANN401 - numbers, or expressions of numbers
    return [int(value) for value in values]


def _require_supported(condition: bool, call: Call, what: str) -> None:
    """Raise NotWritableError for an unsupported form of an operator."""
    if not condition:
        raise NotWritableError(f"{_operator_name(call)} with {what}")


def _check_out_dtype(call: Call) -> None:
    """Require that a product has its operands' dtype, as ONNX products do."""
    same = (
        _tensor_type(call).dtype
        == _tensor_type(call.args[0]).dtype
        == _tensor_type(call.args[1]).dtype
    )
    _require_supported(same, call, "an out_dtype of its own")


def _onnx_pads(call: Call) -> list[int]:
    """Return an image's padding in ONNX order: rows and columns before, then after."""
    padding = _to_ints(_call_attrs(call).padding)
    return padding * (4 // len(padding))


def _reduction_axes(call: Call) -> list[int] | None:
    """Return the axes of a reduction, None for all."""
    axis, rank = _call_attrs(call).axis, _tensor_rank(call.args[0])
    axes = None if axis is None else [a % rank for a in _to_ints(np.ravel(axis))] if rank else []
    if _call_attrs(call).exclude:
        return [a for a in range(rank) if a not in (axes or [])]
    return axes


def _direct_emitter(op_type: str) -> Emitter:
    """Return the emitter of an operator with an attribute-free ONNX counterpart of the same
    operands.
    """
    return lambda writer, call, args: writer.emit(op_type, args)


def _reduction_emitter(op_type: str) -> Emitter:
    """Return the emitter of a reduction whose axes are an attribute."""

    def emit(writer: GraphWriter, call: Call, args: list[str]) -> str:
        """Emit a reduction over axes; one over no axis is an Identity."""
        axes = _reduction_axes(call)
        if axes == []:
            return writer.emit("Identity", args)
        return writer.emit(op_type, args, axes=axes, keepdims=int(_call_attrs(call).keepdims))

    return emit


def _arg_reduction_emitter(op_type: str) -> Emitter:
    """Return the emitter of ArgMax or ArgMin along one axis."""

    def emit(writer: GraphWriter, call: Call, args: list[str]) -> str:
        """Emit an ArgMax or ArgMin over one axis."""
        axes, attrs = _reduction_axes(call), _call_attrs(call)
        _require_supported(axes is not None and len(axes) == 1, call, "other than one axis")
        assert axes is not None
        index = writer.emit(
            op_type, args, axis=axes[0], keepdims=int(attrs.keepdims),
            select_last_index=int(attrs.select_last_index),
        )  # fmt: skip
        return _emit_dtype_cast(writer, index, _tensor_type(call).dtype)

    return emit


def _emit_dtype_cast(writer: GraphWriter, data: str, dtype: str) -> str:
    """Emit a conversion to a dtype."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to_numpy(dtype)))
    return writer.emit("Cast", [data], to=int(element))


def _emit_sum(writer: GraphWriter, call: Call, args: list[str]) -> str:
    axes = _reduction_axes(call)
    if axes == []:
        return writer.emit("Identity", args)
    inputs = args if axes is None else [*args, writer.add_int64_constant(*axes)]
    return writer.emit("ReduceSum", inputs, keepdims=int(_call_attrs(call).keepdims))


def _emit_conv2d(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs = _call_attrs(call)
    layouts = attrs.data_layout == "NCHW" and attrs.kernel_layout == "OIHW"
    _require_supported(layouts, call, "layouts other than NCHW and OIHW: run ConvertLayout first")
    _check_out_dtype(call)
    return writer.emit(
        "Conv", args, strides=_to_ints(attrs.strides), pads=_onnx_pads(call),
        dilations=_to_ints(attrs.dilation), group=int(attrs.groups),
    )  # fmt: skip


def _emit_conv2d_transpose(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs = _call_attrs(call)
    layouts = attrs.data_layout == "NCHW" and attrs.kernel_layout == "IOHW"
    _require_supported(layouts, call, "layouts other than NCHW and IOHW: run ConvertLayout first")
    _check_out_dtype(call)
    return writer.emit(
        "ConvTranspose", args, strides=_to_ints(attrs.strides), pads=_onnx_pads(call),
        dilations=_to_ints(attrs.dilation), group=int(attrs.groups),
        output_padding=_to_ints(attrs.output_padding),
    )  # fmt: skip


def _pool_emitter(op_type: str) -> Emitter:
    """Return the emitter of 2-D pooling."""

    def emit(writer: GraphWriter, call: Call, args: list[str]) -> str:
        """Emit a pooling of layout NCHW."""
        attrs, is_average = _call_attrs(call), op_type == "AveragePool"
        _require_supported(
            attrs.layout == "NCHW", call, "a layout other than NCHW: run ConvertLayout first"
        )
        dilation = _to_ints(attrs.dilation)
        # Windows that ceil_mode adds, and dilated ones, are averaged otherwise by ONNX 17.
        _require_supported(
            not (is_average and (attrs.ceil_mode or dilation != [1, 1])), call, "ceil_mode"
        )
        return writer.emit(
            op_type, args, kernel_shape=_to_ints(attrs.pool_size), strides=_to_ints(attrs.strides),
            pads=_onnx_pads(call), ceil_mode=int(attrs.ceil_mode),
            dilations=None if is_average else dilation,
            count_include_pad=int(attrs.count_include_pad) if is_average else None,
        )  # fmt: skip

    return emit


def _global_pool_emitter(op_type: str) -> Emitter:
    """Return the emitter of global 2-D pooling."""

    def emit(writer: GraphWriter, call: Call, args: list[str]) -> str:
        """Emit a global pooling of layout NCHW."""
        attrs = _call_attrs(call)
        _require_supported(
            attrs.layout == "NCHW", call, "a layout other than NCHW: run ConvertLayout first"
        )
        sizes = getattr(attrs, "output_size", (1, 1))
        is_whole = sizes is not None and _to_ints(np.ravel(sizes)) in ([1], [1, 1])
        _require_supported(is_whole, call, "an output_size other than 1")
        return writer.emit(op_type, args)

    return emit


def _emit_dense(writer: GraphWriter, call: Call, args: list[str]) -> str:
    _check_out_dtype(call)
    return writer.emit("MatMul", [args[0], writer.emit("Transpose", [args[1]], perm=[1, 0])])


def _emit_batch_matmul(writer: GraphWriter, call: Call, args: list[str]) -> str:
    _check_out_dtype(call)
    stated = (_call_attrs(call).transpose_a, _call_attrs(call).transpose_b)
    operands = [
        writer.emit("Transpose", [name], perm=[0, 2, 1]) if is_transposed else name
        for name, is_transposed in zip(args, stated, strict=True)
    ]
    return writer.emit("MatMul", operands)


def _emit_bias_add(writer: GraphWriter, call: Call, args: list[str]) -> str:
    rank = _tensor_rank(call.args[0])
    behind = rank - 1 - int(_call_attrs(call).axis) % rank
    return writer.emit("Add", [args[0], writer.emit_reshape(args[1], -1, *[1] * behind)])


def _emit_prelu(writer: GraphWriter, call: Call, args: list[str]) -> str:
    rank = _tensor_rank(call.args[0])
    behind = rank - 1 - int(_call_attrs(call).axis) % rank
    return writer.emit("PRelu", [args[0], writer.emit_reshape(args[1], -1, *[1] * behind)])


def _emit_batch_norm(writer: GraphWriter, call: Call, args: list[str]) -> list[str]:
    attrs = _call_attrs(call)
    _require_supported(int(attrs.axis) == 1, call, "an axis other than 1: run ConvertLayout first")
    data, gamma, beta, mean, variance = args
    zeros = np.zeros(_static_sizes(call, call.args[1]), to_numpy(_tensor_type(call.args[1]).dtype))
    gamma = gamma if attrs.scale else writer.add_constant(zeros + 1)
    beta = beta if attrs.center else writer.add_constant(zeros)
    inputs = [data, gamma, beta, mean, variance]
    return [writer.emit("BatchNormalization", inputs, epsilon=float(attrs.epsilon)), "", ""]


def _emit_layer_norm(writer: GraphWriter, call: Call, args: list[str]) -> str:
    """Emit layer normalization as primitive operators, since LayerNormalization needs opset 17."""
    attrs, rank, dtype = _call_attrs(call), _tensor_rank(call.args[0]), _tensor_type(call).dtype
    axis = int(attrs.axis) % rank
    mean = writer.emit("ReduceMean", args[:1], axes=[axis], keepdims=1)
    centered = writer.emit("Sub", [args[0], mean])
    square = writer.emit("Mul", [centered, centered])
    variance = writer.emit("ReduceMean", [square], axes=[axis], keepdims=1)
    epsilon = writer.add_constant(np.array(attrs.epsilon, to_numpy(dtype)))
    deviation = writer.emit("Sqrt", [writer.emit("Add", [variance, epsilon])])
    result = writer.emit("Div", [centered, deviation])
    aligned = [writer.emit_reshape(name, -1, *[1] * (rank - 1 - axis)) for name in args[1:]]
    result = writer.emit("Mul", [result, aligned[0]]) if attrs.scale else result
    return writer.emit("Add", [result, aligned[1]]) if attrs.center else result


def _softmax_emitter(op_type: str) -> Emitter:
    """Return the emitter of a softmax along one axis."""
    return lambda writer, call, args: writer.emit(op_type, args, axis=int(_call_attrs(call).axis))


def _emit_pad(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs = _call_attrs(call)
    widths = [_to_ints(pair) for pair in attrs.pad_width]
    pads = writer.add_int64_constant(*(w[0] for w in widths), *(w[1] for w in widths))
    if attrs.pad_mode != "constant":
        return writer.emit("Pad", [args[0], pads], mode=attrs.pad_mode)
    value = _emit_dtype_cast(writer, args[1], _tensor_type(call).dtype)
    return writer.emit("Pad", [args[0], pads, value], mode="constant")


def _emit_clip(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs, dtype = _call_attrs(call), to_numpy(_tensor_type(call).dtype)
    bounds = [writer.add_constant(np.array(bound, dtype)) for bound in (attrs.a_min, attrs.a_max)]
    return writer.emit("Clip", [*args, *bounds])


def _emit_reshape(writer: GraphWriter, call: Call, args: list[str]) -> str:
    sizes = [known_int(dim) for dim in _tensor_type(call).shape]
    _require_supported(sizes.count(None) <= 1, call, "two unknown sizes")
    return writer.emit_reshape(args[0], *(-1 if size is None else size for size in sizes))


def _emit_transpose(writer: GraphWriter, call: Call, args: list[str]) -> str:
    axes, rank = _call_attrs(call).axes, _tensor_rank(call)
    return writer.emit(
        "Transpose", args, perm=None if axes is None else [a % rank for a in _to_ints(axes)]
    )


def _emit_expand_dims(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs, rank = _call_attrs(call), _tensor_rank(call)
    first = int(attrs.axis) if attrs.axis >= 0 else int(attrs.axis) + rank - attrs.num_newaxis + 1
    axes = range(first, first + int(attrs.num_newaxis))
    return writer.emit("Unsqueeze", [*args, writer.add_int64_constant(*axes)]) if axes else args[0]


def _emit_squeeze(writer: GraphWriter, call: Call, args: list[str]) -> str:
    axis = _call_attrs(call).axis
    if axis is None:
        axis = [i for i, size in enumerate(_static_sizes(call, call.args[0])) if size == 1]
    axes = _to_ints(np.ravel(axis))
    return writer.emit("Squeeze", [*args, writer.add_int64_constant(*axes)]) if axes else args[0]


def _emit_concatenate(writer: GraphWriter, call: Call, args: list[str]) -> str:
    return writer.emit("Concat", args, axis=int(_call_attrs(call).axis))


def _emit_stack(writer: GraphWriter, call: Call, args: list[str]) -> str:
    axis = int(_call_attrs(call).axis) % _tensor_rank(call)
    expanded = [writer.emit("Unsqueeze", [name, writer.add_int64_constant(axis)]) for name in args]
    return writer.emit("Concat", expanded, axis=axis)


def _emit_split(writer: GraphWriter, call: Call, args: list[str]) -> list[str]:
    kinds: Any = call.checked_type
    axis = int(_call_attrs(call).axis) % _tensor_rank(call.args[0])
    sizes = [known_int(kind.shape[axis]) for kind in kinds.fields]
    _require_supported(None not in sizes, call, "unknown sizes")
    lengths = writer.add_int64_constant(*(size for size in sizes if size is not None))
    return writer.emit_many("Split", [*args, lengths], len(sizes), axis=axis)


def _emit_strided_slice(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs = _call_attrs(call)
    _require_supported(len(args) == 1, call, "bounds that are data")
    _require_supported(attrs.slice_mode == "end", call, f"slice_mode {attrs.slice_mode!r}")
    begin, end = _to_ints(attrs.begin), _to_ints(attrs.end)
    strides = _to_ints(attrs.strides)
    strides += strides[:1] * (len(begin) - len(strides)) if len(strides) == 1 else []
    axes = range(len(begin)) if attrs.axes is None else _to_ints(attrs.axes)
    _require_supported(len(begin) == len(end) == len(strides), call, "bounds of some axes only")
    bounds = [writer.add_int64_constant(*numbers) for numbers in (begin, end, axes, strides)]
    return writer.emit("Slice", [*args, *bounds])


def _emit_take(writer: GraphWriter, call: Call, args: list[str]) -> str:
    attrs = _call_attrs(call)
    _require_supported(int(attrs.batch_dims) == 0, call, "batch_dims")
    _require_supported(attrs.mode in ("clip", "fast"), call, f"mode {attrs.mode!r}")
    data, indices = args
    axis = None if attrs.axis is None else int(attrs.axis) % _tensor_rank(call.args[0])
    sizes = _static_sizes(call, call.args[0])
    size = int(np.prod(sizes)) if axis is None else sizes[axis]
    data = writer.emit_reshape(data, -1) if axis is None else data
    # Gather counts negative indices from the end and refuses those behind it.
    limits = [writer.add_constant(np.array(bound, np.int64)) for bound in (0, max(size - 1, 0))]
    clipped = writer.emit("Clip", [_emit_dtype_cast(writer, indices, "int64"), *limits])
    return writer.emit("Gather", [data, clipped], axis=axis or 0)


def _emit_broadcast_to(writer: GraphWriter, call: Call, args: list[str]) -> str:
    return writer.emit("Expand", [args[0], writer.add_int64_constant(*_static_sizes(call, call))])


def _emit_tile(writer: GraphWriter, call: Call, args: list[str]) -> str:
    repeats, rank = _to_ints(_call_attrs(call).reps), _tensor_rank(call)
    data = args[0]
    if _tensor_rank(call.args[0]) < rank:
        data = writer.emit_reshape(
            data, *[1] * (rank - _tensor_rank(call.args[0])), *_static_sizes(call, call.args[0])
        )
    return writer.emit(
        "Tile", [data, writer.add_int64_constant(*[1] * (rank - len(repeats)), *repeats)]
    )


def _emit_leaky_relu(writer: GraphWriter, call: Call, args: list[str]) -> str:
    return writer.emit("LeakyRelu", args, alpha=float(_call_attrs(call).alpha))


def _emit_cast(writer: GraphWriter, call: Call, args: list[str]) -> str:
    return _emit_dtype_cast(writer, args[0], _tensor_type(call).dtype)


def _emit_dropout(writer: GraphWriter, call: Call, args: list[str]) -> list[str]:
    """Emit the data unchanged, as inference drops nothing; the mask is not emitted."""
    return [writer.emit("Identity", args), ""]


# fmt: off
EMITTERS: dict[str, Emitter] = {
    **{name: _direct_emitter(op_type) for name, op_type in {
        "abs": "Abs", "acos": "Acos", "add": "Add", "asin": "Asin", "atan": "Atan", "ceil": "Ceil",
        "copy": "Identity", "cos": "Cos", "cosh": "Cosh", "divide": "Div", "equal": "Equal",
        "erf": "Erf", "exp": "Exp", "floor": "Floor", "greater": "Greater",
        "greater_equal": "GreaterOrEqual", "less": "Less", "less_equal": "LessOrEqual",
        "log": "Log",
        "logical_and": "And", "logical_not": "Not", "logical_or": "Or", "logical_xor": "Xor",
        "maximum": "Max", "minimum": "Min", "multiply": "Mul", "negative": "Neg",
        "nn.batch_flatten": "Flatten", "nn.relu": "Relu", "power": "Pow", "sigmoid": "Sigmoid",
        "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "subtract": "Sub",
        "tan": "Tan", "tanh": "Tanh", "where": "Where",
    }.items()},
    "argmax": _arg_reduction_emitter("ArgMax"),
    "argmin": _arg_reduction_emitter("ArgMin"),
    "max": _reduction_emitter("ReduceMax"),
    "mean": _reduction_emitter("ReduceMean"),
    "min": _reduction_emitter("ReduceMin"),
    "prod": _reduction_emitter("ReduceProd"),
    "sum": _emit_sum,
    "nn.adaptive_avg_pool2d": _global_pool_emitter("GlobalAveragePool"),
    "nn.adaptive_max_pool2d": _global_pool_emitter("GlobalMaxPool"),
    "nn.avg_pool2d": _pool_emitter("AveragePool"),
    "nn.batch_matmul": _emit_batch_matmul,
    "nn.batch_norm": _emit_batch_norm,
    "nn.bias_add": _emit_bias_add,
    "nn.conv2d": _emit_conv2d,
    "nn.conv2d_transpose": _emit_conv2d_transpose,
    "nn.dense": _emit_dense,
    "nn.dropout": _emit_dropout,
    "nn.global_avg_pool2d": _global_pool_emitter("GlobalAveragePool"),
    "nn.global_max_pool2d": _global_pool_emitter("GlobalMaxPool"),
    "nn.layer_norm": _emit_layer_norm,
    "nn.leaky_relu": _emit_leaky_relu,
    "nn.log_softmax": _softmax_emitter("LogSoftmax"),
    "nn.max_pool2d": _pool_emitter("MaxPool"),
    "nn.pad": _emit_pad,
    "nn.prelu": _emit_prelu,
    "nn.softmax": _softmax_emitter("Softmax"),
    "broadcast_to": _emit_broadcast_to,
    "cast": _emit_cast,
    "clip": _emit_clip,
    "concatenate": _emit_concatenate,
    "expand_dims": _emit_expand_dims,
    "reshape": _emit_reshape,
    "split": _emit_split,
    "squeeze": _emit_squeeze,
    "stack": _emit_stack,
    "strided_slice": _emit_strided_slice,
    "take": _emit_take,
    "tile": _emit_tile,
    "transpose": _emit_transpose,
}
# fmt: on
"""Relay operator -> its emitter."""
