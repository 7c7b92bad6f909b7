"""Converters of composite ATen operators, for programs imported without PyTorch's decompositions.

Each mirrors PyTorch's own decomposition, by the converters of its parts. A converter that does not
support an argument says so: PyTorch then decomposes the program, and the result is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ekiden.frontend.common.float_functions import log1p
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import per_part_rule
from ekiden.frontend.torch.converters import convolution, data_movement, elementwise, norm
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode, Operand
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int

Ints = Sequence[int]
ConverterResults = list[Expr | Value | None]
ConverterResult = Any
"""What the converter of another operator gives."""

PRIMITIVE_CONVERTERS: dict[str, Callable[..., ConverterResult]] = {
    row[0]: row[1]
    for family in (convolution, data_movement, norm, elementwise)
    for row in family.ROWS
}
"""The operators that these are made of."""


def _conv(
    node: FxNode, x: Value, weight: Value, bias: Value | None = None, stride: Ints = (1,),
    padding: Ints = (0,), dilation: Ints = (1,), groups: int = 1,
) -> ConverterResult:  # fmt: skip
    sizes = (stride, padding, dilation, False, (), groups)
    return PRIMITIVE_CONVERTERS["convolution"](node, x, weight, bias, *sizes)


def _conv_transpose(
    node: FxNode, x: Value, weight: Value, bias: Value | None = None, stride: Ints = (1,),
    padding: Ints = (0,), output_padding: Ints = (0,), groups: int = 1, dilation: Ints = (1,),
) -> ConverterResult:  # fmt: skip
    sizes = (stride, padding, dilation, True, output_padding, groups)
    return PRIMITIVE_CONVERTERS["convolution"](node, x, weight, bias, *sizes)


def _first_result_converter(name: str) -> Converter:
    """Return the converter of an operator's first result."""
    return lambda *args, **kwargs: PRIMITIVE_CONVERTERS[name](*args, **kwargs)[0]


def _batch_norm(
    node: FxNode, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
    variance: Value | None, training: bool, momentum: float, eps: float, *_: object,
) -> ConverterResult:  # fmt: skip
    """Convert aten::batch_norm in inference, by the running statistics."""
    # Training changes the running statistics, which only the decomposed graph expresses.
    if training or mean is None or variance is None:
        node.reject("statistics of the batch")
    operands = (x, weight, bias, mean, variance, momentum, eps)
    return PRIMITIVE_CONVERTERS["_native_batch_norm_legit_no_training"](node, *operands)[0]


def _layer_norm(
    node: FxNode, x: Value, normalized: Sequence[object], weight: Value | None = None,
    bias: Value | None = None, eps: float = 1e-5, *_: object,
) -> ConverterResult:  # fmt: skip
    return PRIMITIVE_CONVERTERS["native_layer_norm"](node, x, normalized, weight, bias, eps)[0]


def _group_norm(
    node: FxNode, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, *_: object,
) -> ConverterResult:  # fmt: skip
    sizes = (None, None, None)  # which the shape says
    return PRIMITIVE_CONVERTERS["native_group_norm"](node, x, weight, bias, *sizes, groups, eps)[0]


def _pad(
    node: FxNode,
    x: Value,
    pad: Sequence[object],
    mode: str = "constant",
    value: float | None = None,
) -> ConverterResult:
    if mode == "constant":
        return PRIMITIVE_CONVERTERS["constant_pad_nd"](node, x, pad, 0 if value is None else value)
    kinds = {"reflect": "reflection", "replicate": "replication"}
    if mode not in kinds:
        node.reject(f"mode '{mode}'")
    return PRIMITIVE_CONVERTERS[f"{kinds[mode]}_pad{len(pad) // 2}d"](node, x, pad)


def _unbind(node: FxNode, x: Value, dim: int = 0) -> ConverterResults:
    axis = node.axis(dim, len(x.type.shape))
    count = known_int(x.type.shape[axis])
    if count is None:
        node.reject("the number of parts must be constant")
    slices = (op.strided_slice(node.to_expr(x), [i], [i + 1], axes=[axis]) for i in range(count))
    return [op.squeeze(piece, axis=[axis]) for piece in slices]


def _repeat_interleave(
    node: FxNode, x: Value, repeats: Operand, dim: int | None = None, *, output_size: object = None
) -> Expr:
    """Convert repeat_interleave with a constant count, along an axis or of the flattened tensor."""
    # A tensor of repeats makes the result's extent data dependent; the decomposition handles it.
    if not isinstance(repeats, int):
        node.reject("the number of repeats must be constant")
    if dim is None:
        return op.repeat(op.reshape(node.to_expr(x), (-1,)), repeats, axis=0)
    return op.repeat(node.to_expr(x), repeats, axis=node.axis(dim, len(x.type.shape)))


def _tile(node: FxNode, x: Value, dims: Sequence[object]) -> ConverterResult:
    """Convert tile: `repeat` with 1 for leading axes without a count."""
    missing = max(len(x.type.shape) - len(dims), 0)
    return PRIMITIVE_CONVERTERS["repeat"](node, x, (*(1,) * missing, *dims))


def _diff(node: FxNode, x: Value, n: int = 1, dim: int = -1, *more: Value | None) -> Expr:
    if n != 1 or any(extra is not None for extra in more) or x.type.dtype == "bool":
        node.reject("another difference than that of neighbours")
    axis = node.axis(dim, len(x.type.shape))
    data, count = node.to_expr(x), x.type.shape[axis]
    after = op.strided_slice(data, [1], [count], axes=[axis])
    return op.subtract(after, op.strided_slice(data, [0], [count - 1], axes=[axis]))


def _glu(node: FxNode, x: Value, dim: int = -1) -> Expr:
    axis = node.axis(dim, len(x.type.shape))
    size = known_int(x.type.shape[axis])
    if size is None:
        node.reject("the size of the axis must be constant")
    data, half = node.to_expr(x), size // 2
    # GLU(a, b) = a * sigmoid(b), where a and b are the halves of the axis (Dauphin et al. 2017).
    gate = op.sigmoid(op.strided_slice(data, [half], [size], axes=[axis]))
    return op.multiply(op.strided_slice(data, [0], [half], axes=[axis]), gate)


def _rsub(node: FxNode, a: Operand, b: Operand, alpha: float = 1) -> ConverterResult:
    """Convert rsub: b - alpha * a."""
    if alpha != 1:
        node.reject("'alpha' must be 1")
    return PRIMITIVE_CONVERTERS["sub"](node, b, a)


def _to(node: FxNode, x: Value, *_: object, **__: object) -> ConverterResult:
    """Convert `to`: a cast to the dtype that PyTorch inferred."""
    return PRIMITIVE_CONVERTERS["_to_copy"](node, x)


def _square(node: FxNode, x: Value) -> Expr:
    data = node.to_expr(x, node.out_dtype)
    return op.multiply(data, data)


def _vector_norm(
    node: FxNode, x: Value, ord: float = 2, dim: Ints | None = None,
    keepdim: bool = False, *, dtype: object = None,
) -> Expr:  # fmt: skip
    """Convert linalg_vector_norm of order 2."""
    if ord != 2 or not is_float(x.type.dtype):
        node.reject(f"a norm of order {ord}")
    rank = len(x.type.shape)
    axes = [node.axis(d, rank) for d in dim] if dim else list(range(rank))
    data = node.to_expr(x, node.out_dtype)
    return op.sqrt(op.sum(op.multiply(data, data), axis=axes, keepdims=keepdim))


def _log_sigmoid(node: FxNode, x: Value) -> Expr:
    dtype, data = node.out_dtype, node.to_expr(x)
    # min(x, 0) - log1p(exp(-|x|)) never overflows.
    tail = log1p(op.exp(op.negative(op.abs(data))), dtype)
    return op.subtract(op.minimum(data, const(0, dtype)), tail)


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    *((f"conv{n}d.default", _conv) for n in (1, 2, 3)),
    *((name, _conv_transpose) for name in (
        "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")),
    *((f"max_pool{n}d", _first_result_converter(f"max_pool{n}d_with_indices")) for n in (1, 2, 3)),
    *((f"adaptive_avg_pool{n}d", PRIMITIVE_CONVERTERS[f"_adaptive_avg_pool{n}d"]) for n in (2, 3)),
    ("batch_norm", _batch_norm),
    ("layer_norm", _layer_norm),
    ("group_norm", _group_norm),
    *((name, elementwise.identity_cast, per_part_rule) for name in (  # outside of training
        "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")),
    *((name, _to) for name in (
        "to.dtype", "to.device", "to.dtype_layout", "to.other", "type_as")),
    *((f"__{name}__", PRIMITIVE_CONVERTERS[f"bitwise_{name}"]) for name in ("and", "or", "xor")),
    ("max.other", PRIMITIVE_CONVERTERS["maximum"]),
    ("min.other", PRIMITIVE_CONVERTERS["minimum"]),
    ("square", _square),
    ("rsub", _rsub),
    ("log_sigmoid", _log_sigmoid),
    ("glu", _glu),
    ("linalg_vector_norm", _vector_norm),
    ("pad", _pad),
    ("expand_as", PRIMITIVE_CONVERTERS["expand"]),
    *((name, PRIMITIVE_CONVERTERS["view"], per_part_rule) for name in ("reshape_as", "view_as")),
    ("unbind.int", _unbind),
    ("chunk", PRIMITIVE_CONVERTERS["split"]),
    ("tile", _tile),
    ("repeat_interleave.self_int", _repeat_interleave),
    ("diff", _diff),
)
# fmt: on
