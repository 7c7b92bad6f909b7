"""Pattern matching of quantised tensors: the 8-bit data, zero point and scale that an expression
represents.

    multiply(cast(subtract(cast(%q u8, i32), 3), f32), 0.5f)      %q, zero point 3, scale 0.5
    transpose(qnn.dequantize(%q, 0.5f, 3))                        transpose(%q), 3, 0.5
    subtract(clip(add(round(%x), 3f), 0, 255), 3f)                cast(.., uint8), 3

Quantisers write this in many ways: in int16, int32 or float32; with the operators of the dialect;
as numbers that were rounded and clipped but stayed floats (fake quantisation); with a
transposition, a reshape or a border between. What follows from dtypes and bounds is enough for all
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ekiden.ir.dtype import int_range, is_int
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import is_const
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.fold_scale_axis import op_definition_of, op_name_of
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import are_equal_dims

INT8_DTYPES = ("int8", "uint8")
MAX_MATCHED_STEPS = 16
"""Maximum operators between a product and its 8-bit operand; quantisers emit at most eight."""
MAX_INTEGRALITY_STEPS = 8
"""Maximum operators searched in the proof that values are integers."""
AXIS_MOVING_OPS = ("transpose", "expand_dims", "squeeze")
"""Operators that permute, insert or remove whole axes."""
WIDE_DTYPES = ("int32", "int64", "float32", "float64")
"""Dtypes that represent bytes less their zero point."""
ROUNDING_OPS = ("round", "rint", "floor", "ceil", "trunc")


def is_reshape_only(expr: RelayExpr) -> bool:
    """Return whether an expression only reshapes its argument."""
    row = op_definition_of(expr)
    return row is not None and row.reshape_only


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Quantised tensor (data - zero point) * scale with int8 or uint8 data.

    The zero point (int32) and the scale (float32) broadcast over the data without making them
    larger; None stands for 0 and 1.
    """

    data: RelayExpr
    zero_point: RelayExpr | None = None
    scale: RelayExpr | None = None

    @property
    def rank(self) -> int:
        """Return the rank of the data."""
        return len(tensor_type_of(self.data).shape)

    def varying_axes(self, parameter: RelayExpr | None) -> set[int]:
        """Return the data axes along which a parameter has more than one element."""
        if parameter is None:
            return set()
        shape = tensor_type_of(parameter).shape
        return {self.rank - len(shape) + n for n, d in enumerate(shape) if not is_const(d, 1)}


def tensor_type_of(expr: RelayExpr) -> TensorType:
    """Return the tensor type of an expression, or one with an empty dtype for other values."""
    kind = infer_new_types(expr).checked_type
    return kind if isinstance(kind, TensorType) else TensorType((), "")


def match_quantized_tensor(expr: RelayExpr) -> QuantizedTensor | None:
    """Match an expression as a quantised tensor, or return None.

    None means that its elements are not known to have been bytes.
    """
    above: list[tuple[Call, int]] = []
    while (levels := _match_quantized_source(expr)) is None:
        operand = _quantized_operand(expr)
        # The limit keeps the search short in graphs that are not quantized.
        if operand is None or len(above) == MAX_MATCHED_STEPS:
            return None
        assert isinstance(expr, Call)
        above.append((expr, operand))
        expr = expr.args[operand]
    # The steps are applied from the bytes outwards.
    for call, operand in reversed(above):
        levels = _RULE_BY_OP[op_name_of(call)](levels, call, operand)
        if levels is None:
            return None
    return levels


# --- where bytes begin ---------------------------------------------------------------------------


def _match_quantized_source(expr: RelayExpr) -> QuantizedTensor | None:
    """Match the source of a chain: 8-bit data, or integral values within the range of 8 bits."""
    dtype = tensor_type_of(expr).dtype
    if dtype in INT8_DTYPES:
        return QuantizedTensor(expr)
    if isinstance(expr, Constant):
        return _match_integer_constant(expr)
    if op_name_of(expr) != "clip" or not _is_integral(expr):
        return None
    low, high = (getattr(expr.attrs, name) for name in ("a_min", "a_max"))  # type: ignore[attr-defined]
    fits = (d for d in INT8_DTYPES if (r := int_range(d)) and r[0] <= low <= high <= r[1])
    narrow = next(fits, None)
    return None if narrow is None else QuantizedTensor(infer_new_types(op.cast(expr, narrow)))


def _match_integer_constant(constant: Constant) -> QuantizedTensor | None:
    """Match an integer constant whose range fits 8 bits, or return None.

    A zero point makes room for integers of nine bits.
    """
    data = constant.data
    if data.dtype.kind not in "iu" or not data.size:
        return None
    low, high = int(data.min()), int(data.max())
    for dtype in INT8_DTYPES:
        lower, upper = int_range(dtype) or (0, 0)
        if lower <= low and high <= upper:
            return QuantizedTensor(_typed_constant(data.astype(dtype)))
    # No zero point brings the values into one byte.
    if high - low > int_range("uint8")[1]:  # type: ignore[index]
        return None
    # The range is shifted to begin at 0.
    wide = data.astype(np.int64) - low
    return QuantizedTensor(
        _typed_constant(wide.astype(np.uint8)), _typed_constant(np.asarray(-low, np.int32))
    )


def _is_integral(root: RelayExpr) -> bool:
    """Return whether all elements of a float tensor are integers.

    They are if they were rounded, or are sums of rounded tensors.
    """
    waiting, steps = [root], 0
    while waiting:
        expr, steps = waiting.pop(), steps + 1
        name, dtype = op_name_of(expr), tensor_type_of(expr).dtype
        if is_int(dtype) or name in ROUNDING_OPS:
            continue
        if isinstance(expr, Constant):
            if not np.array_equal(expr.data, np.rint(expr.data)):
                return False
        elif is_reshape_only(expr):
            waiting += expr.args[:1]  # type: ignore[attr-defined]
        elif name == "cast" and is_int(tensor_type_of(expr.args[0]).dtype):  # type: ignore[attr-defined]
            continue
        elif (
            name in ("clip", "add", "subtract", "minimum", "maximum")
            and steps < MAX_INTEGRALITY_STEPS
        ):
            assert isinstance(expr, Call)
            ends = (getattr(expr.attrs, n, 0.0) for n in ("a_min", "a_max"))
            # A fractional bound is itself a possible result of the clip.
            if any(end != int(end) for end in ends):
                return False
            waiting += expr.args
        else:
            return False
    return True


# --- what is done to them ------------------------------------------------------------------------

QuantizedRule = Callable[[QuantizedTensor, Call, int], QuantizedTensor | None]
"""Function (quantised operand, call, argument index) -> quantised result, or None."""


def _quantized_operand(expr: RelayExpr) -> int | None:
    """Return the index of the operator's argument that carries the quantised data, or None.

    It has the shape of the result, unless the operator moves elements.
    """
    name = op_name_of(expr)
    if name not in _RULE_BY_OP:
        return None
    assert isinstance(expr, Call)
    if name in _REARRANGING_OPS or name in ("cast", "qnn.dequantize"):
        return 0
    shape = tensor_type_of(expr).shape
    # An operand that is broadcast is a parameter, not the data.
    full = [
        n
        for n, arg in enumerate(expr.args)
        if len(tensor_type_of(arg).shape) == len(shape)
        and all(map(are_equal_dims, tensor_type_of(arg).shape, shape))
    ]
    wide = [n for n in full if not isinstance(expr.args[n], Constant)] or full
    if name == "subtract":
        return 0 if 0 in wide else None
    if len(wide) == 2:  # a parameter may have the shape of the data: it is no result of a cast
        wide = [n for n in wide if op_name_of(expr.args[n]) in _RULE_BY_OP]
    return wide[0] if wide else None


def _typed_constant(array: np.ndarray) -> Constant:
    constant = infer_new_types(const(array))
    assert isinstance(constant, Constant)
    return constant


def _apply_cast(levels: QuantizedTensor, call: Call, operand: int) -> QuantizedTensor | None:
    """Apply a cast to a dtype that represents the levels exactly, or return None."""
    dtype = tensor_type_of(call).dtype
    # Casts of scaled values round, unless they change nothing.
    if levels.scale is not None:
        return levels if dtype == tensor_type_of(call.args[0]).dtype else None
    if dtype in WIDE_DTYPES:
        return levels
    return levels if dtype == "int16" and levels.zero_point is None else None


def _as_int32_parameter(expr: RelayExpr) -> RelayExpr | None:
    """Return an integral parameter as int32, or None if it is not known to be one."""
    shaped: list[Call] = []
    while isinstance(expr, Call) and (is_reshape_only(expr) or op_name_of(expr) == "cast"):
        if op_name_of(expr) == "cast":
            is_wide = tensor_type_of(expr).dtype in WIDE_DTYPES
            if not is_wide or not is_int(tensor_type_of(expr.args[0]).dtype):
                break
        else:
            shaped.append(expr)
        expr = expr.args[0]
    if isinstance(expr, Constant):
        numbers = expr.data.astype(np.float64)
        rounded = np.rint(numbers)
        # Sums with bytes must stay within int32.
        if not np.all(np.abs(rounded) < 1 << 30) or not np.array_equal(rounded, numbers):
            return None
        parameter: RelayExpr = _typed_constant(rounded.astype(np.int32))
    elif tensor_type_of(expr).dtype in ("int8", "uint8", "int16", "uint16", "int32"):
        parameter = infer_new_types(op.cast(expr, "int32"))
    else:
        return None
    # Reshapes are applied again to the narrow parameter.
    for call in reversed(shaped):
        parameter = infer_new_types(Call(call.op, (parameter,), call.attrs))
    return parameter


def _make_zero_point_shift(sign: int) -> QuantizedRule:
    def shift_zero_point(
        levels: QuantizedTensor, call: Call, operand: int
    ) -> QuantizedTensor | None:
        """Shift the zero point by the parameter added to or subtracted from the data."""
        dtype = tensor_type_of(call).dtype
        by = _as_int32_parameter(call.args[1 - operand])
        # int16 holds bytes less a byte; sums of more than it holds wrap
        is_safe = dtype in WIDE_DTYPES or (dtype == "int16" and by is not None and fits_int16(by))
        if levels.scale is not None or by is None or not is_safe:
            return None
        by = by if sign < 0 else infer_new_types(op.negative(by))
        # Negated at once, so that the zero point stays a constant that later steps can read.
        if isinstance(by, Call) and isinstance(by.args[0], Constant) and sign > 0:
            by = _typed_constant(-by.args[0].data)
        point = by if levels.zero_point is None else infer_new_types(op.add(levels.zero_point, by))
        return QuantizedTensor(levels.data, point)

    return shift_zero_point


def fits_int16(point: RelayExpr) -> bool:
    """Return whether 8-bit data less a zero point always fits int16."""
    while isinstance(point, Call) and is_reshape_only(point):
        point = point.args[0]
    if isinstance(point, Constant):
        return bool(np.all(np.abs(point.data.astype(np.int64)) < 1 << 14))
    return isinstance(point, Call) and tensor_type_of(point.args[0]).dtype in INT8_DTYPES


def _apply_scale(levels: QuantizedTensor, call: Call, operand: int) -> QuantizedTensor | None:
    by = call.args[1 - operand]
    if tensor_type_of(call).dtype != "float32":
        return None
    scale = by if levels.scale is None else infer_new_types(op.multiply(levels.scale, by))
    return QuantizedTensor(levels.data, levels.zero_point, scale)


def _apply_dequantize(levels: QuantizedTensor, call: Call, operand: int) -> QuantizedTensor | None:
    """Apply a qnn.dequantize, whose vector parameters run along its axis."""
    if levels.zero_point is not None or getattr(call.attrs, "out_dtype", "float32") != "float32":
        return None
    axis, rank = int(getattr(call.attrs, "axis", -1)) % max(levels.rank, 1), levels.rank

    def along(parameter: RelayExpr) -> RelayExpr:
        """Return the parameter with its values along the quantised axis."""
        if not tensor_type_of(parameter).shape or rank <= 1:
            return parameter
        return infer_new_types(op.reshape(parameter, (-1, *(1,) * (rank - 1 - axis))))

    return QuantizedTensor(levels.data, along(call.args[2]), along(call.args[1]))


def _apply_data_movement(
    levels: QuantizedTensor, call: Call, operand: int
) -> QuantizedTensor | None:
    """Apply a data movement; varying parameters follow where axes are preserved."""
    parameters = [levels.zero_point, levels.scale]
    if any(map(levels.varying_axes, parameters)):
        # A reshape can merge the axis of a parameter with others.
        if op_name_of(call) not in AXIS_MOVING_OPS:
            return None
        parameters = [p and _rearrange_parameter(levels, call, p) for p in parameters]
    else:
        parameters = [p and _as_scalar(p) for p in parameters]
    moved = Call(call.op, (levels.data, *call.args[1:]), call.attrs, span=call.span)
    return QuantizedTensor(infer_new_types(moved), *parameters)


def _rearrange_parameter(levels: QuantizedTensor, call: Call, parameter: RelayExpr) -> RelayExpr:
    missing = levels.rank - len(tensor_type_of(parameter).shape)
    wide = op.expand_dims(parameter, 0, missing) if missing else parameter
    return infer_new_types(Call(call.op, (infer_new_types(wide),), call.attrs))


def _as_scalar(parameter: RelayExpr) -> RelayExpr:
    return (
        infer_new_types(op.reshape(parameter, ())) if tensor_type_of(parameter).shape else parameter
    )


def _apply_pad(levels: QuantizedTensor, call: Call, operand: int) -> QuantizedTensor | None:
    """Apply a padding: a border of zeros becomes one of the zero point."""
    border = call.args[1]
    is_zero = isinstance(border, Constant) and not np.any(border.data)
    mode = getattr(call.attrs, "pad_mode", "constant")
    # A border has one value, so it cannot follow several zero points.
    if any(map(levels.varying_axes, (levels.zero_point, levels.scale))) or (
        mode == "constant" and not is_zero
    ):
        return None
    dtype = tensor_type_of(levels.data).dtype
    point = None if levels.zero_point is None else _as_scalar(levels.zero_point)
    if isinstance(point, Constant):
        low, high = int_range(dtype) or (0, 0)
        # The border would need a byte that does not exist.
        if not low <= int(point.data) <= high:
            return None
    elif isinstance(point, Call) and tensor_type_of(point.args[0]).dtype != dtype:
        return None  # it may be none of the bytes
    value = (
        _typed_constant(np.zeros((), dtype))
        if point is None
        else infer_new_types(op.cast(point, dtype))
    )
    padded = Call(call.op, (levels.data, value), call.attrs, span=call.span)
    return QuantizedTensor(
        infer_new_types(padded), point, levels.scale and _as_scalar(levels.scale)
    )


_REARRANGING_OPS = ("reshape", "transpose", "squeeze", "expand_dims", "strided_slice", "nn.pad")
_RULE_BY_OP: Mapping[str, QuantizedRule] = {
    **dict.fromkeys(_REARRANGING_OPS, _apply_data_movement),
    "nn.pad": _apply_pad,
    "cast": _apply_cast,
    "subtract": _make_zero_point_shift(-1),
    "add": _make_zero_point_shift(1),
    "multiply": _apply_scale,
    "qnn.dequantize": _apply_dequantize,
}
"""Rules of the operators that preserve a quantised tensor."""

__all__ = [
    "INT8_DTYPES",
    "QuantizedTensor",
    "fits_int16",
    "match_quantized_tensor",
    "tensor_type_of",
]
