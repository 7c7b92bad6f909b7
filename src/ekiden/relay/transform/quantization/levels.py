"""What a tensor's numbers are that were bytes: those bytes, their zero point, their scale.

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
from ekiden.relay.transform.graph.calls import typed
from ekiden.relay.transform.graph.fold_scale_axis import op_of, row_of
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import equal

BYTES = ("int8", "uint8")
MAX_STEPS = 16
"""Operators between a product and the bytes of its operand: quantisers write at most eight."""
MAX_TERMS = 8
"""Operators below a bound that are looked at for whether they give whole numbers."""
AXES = ("transpose", "expand_dims", "squeeze")
"""What moves, adds or drops whole axes."""
WIDE = ("int32", "int64", "float32", "float64")
"""Types that hold bytes less their zero point."""
ROUNDED = ("round", "rint", "floor", "ceil", "trunc")


def is_reshape(expr: RelayExpr) -> bool:
    """Return whether an expression leaves the elements of its argument in their order."""
    row = row_of(expr)
    return row is not None and row.reshape_only


@dataclass(frozen=True, slots=True)
class Levels:
    """A tensor (data - point) * scale with data of int8 or uint8.

    The zero point (int32) and the scale (float32) broadcast over the data without making them
    larger; None stands for 0 and 1.
    """

    data: RelayExpr
    point: RelayExpr | None = None
    scale: RelayExpr | None = None

    @property
    def rank(self) -> int:
        """Return the number of dimensions of the data."""
        return len(type_of(self.data).shape)

    def varies(self, parameter: RelayExpr | None) -> set[int]:
        """Return the axes of the data along which a parameter has more than one element."""
        if parameter is None:
            return set()
        shape = type_of(parameter).shape
        return {self.rank - len(shape) + n for n, d in enumerate(shape) if not is_const(d, 1)}


def type_of(expr: RelayExpr) -> TensorType:
    """Return the type of a tensor, or one without a dtype for any other expression."""
    kind = typed(expr).checked_type
    return kind if isinstance(kind, TensorType) else TensorType((), "")


def levels_of(expr: RelayExpr) -> Levels | None:
    """Return the quantisation of a tensor with a checked type, or None.

    None means that its elements are not known to have been bytes.
    """
    above: list[tuple[Call, int]] = []
    while (levels := _bytes(expr)) is None:
        operand = _operand(expr)
        if operand is None or len(above) == MAX_STEPS:
            return None
        assert isinstance(expr, Call)
        above.append((expr, operand))
        expr = expr.args[operand]
    # The steps are applied from the bytes outwards.
    for call, operand in reversed(above):
        levels = _STEPS[op_of(call)](levels, call, operand)
        if levels is None:
            return None
    return levels


# --- where bytes begin ---------------------------------------------------------------------------


def _bytes(expr: RelayExpr) -> Levels | None:
    """Return a tensor of bytes, or one whose elements are whole numbers that fit bytes, as
    levels.
    """
    dtype = type_of(expr).dtype
    if dtype in BYTES:
        return Levels(expr)
    if isinstance(expr, Constant):
        return _known_bytes(expr)
    if op_of(expr) != "clip" or not _is_whole(expr):
        return None
    low, high = (getattr(expr.attrs, name) for name in ("a_min", "a_max"))  # type: ignore[attr-defined]
    fits = (d for d in BYTES if (r := int_range(d)) and r[0] <= low <= high <= r[1])
    narrow = next(fits, None)
    return None if narrow is None else Levels(typed(op.cast(expr, narrow)))


def _known_bytes(constant: Constant) -> Levels | None:
    """Return a constant of integers as levels, or None.

    A zero point makes room for integers of nine bits.
    """
    data = constant.data
    if data.dtype.kind not in "iu" or not data.size:
        return None
    low, high = int(data.min()), int(data.max())
    for dtype in BYTES:
        lower, upper = int_range(dtype) or (0, 0)
        if lower <= low and high <= upper:
            return Levels(_constant(data.astype(dtype)))
    if high - low > int_range("uint8")[1]:  # type: ignore[index]
        return None
    # The range is shifted to begin at 0.
    wide = data.astype(np.int64) - low
    return Levels(_constant(wide.astype(np.uint8)), _constant(np.asarray(-low, np.int32)))


def _is_whole(root: RelayExpr) -> bool:
    """Return whether the elements of a float tensor are whole numbers.

    They are if they were rounded, or are sums of rounded tensors.
    """
    waiting, steps = [root], 0
    while waiting:
        expr, steps = waiting.pop(), steps + 1
        name, dtype = op_of(expr), type_of(expr).dtype
        if is_int(dtype) or name in ROUNDED:
            continue
        if isinstance(expr, Constant):
            if not np.array_equal(expr.data, np.rint(expr.data)):
                return False
        elif is_reshape(expr):
            waiting += expr.args[:1]  # type: ignore[attr-defined]
        elif name == "cast" and is_int(type_of(expr.args[0]).dtype):  # type: ignore[attr-defined]
            continue
        elif name in ("clip", "add", "subtract", "minimum", "maximum") and steps < MAX_TERMS:
            assert isinstance(expr, Call)
            ends = (getattr(expr.attrs, n, 0.0) for n in ("a_min", "a_max"))
            if any(end != int(end) for end in ends):
                return False
            waiting += expr.args
        else:
            return False
    return True


# --- what is done to them ------------------------------------------------------------------------

Step = Callable[[Levels, Call, int], Levels | None]
"""(what the operand stands for, the call, which argument it is) -> what the result stands for."""


def _operand(expr: RelayExpr) -> int | None:
    """Return the argument below which the bytes of an operator are, or None.

    It has the shape of the result, unless the operator moves elements.
    """
    name = op_of(expr)
    if name not in _STEPS:
        return None
    assert isinstance(expr, Call)
    if name in _MOVES or name in ("cast", "qnn.dequantize"):
        return 0
    shape = type_of(expr).shape
    full = [
        n
        for n, arg in enumerate(expr.args)
        if len(type_of(arg).shape) == len(shape) and all(map(equal, type_of(arg).shape, shape))
    ]
    wide = [n for n in full if not isinstance(expr.args[n], Constant)] or full
    if name == "subtract":
        return 0 if 0 in wide else None
    if len(wide) == 2:  # a parameter may have the shape of the data: it is no result of a cast
        wide = [n for n in wide if op_of(expr.args[n]) in _STEPS]
    return wide[0] if wide else None


def _constant(array: np.ndarray) -> Constant:
    constant = typed(const(array))
    assert isinstance(constant, Constant)
    return constant


def _cast(levels: Levels, call: Call, operand: int) -> Levels | None:
    """Return the same levels in a type that holds them, or None."""
    dtype = type_of(call).dtype
    if levels.scale is not None:
        return levels if dtype == type_of(call.args[0]).dtype else None
    if dtype in WIDE:
        return levels
    return levels if dtype == "int16" and levels.point is None else None


def _whole_parameter(expr: RelayExpr) -> RelayExpr | None:
    """Return a parameter of whole numbers as int32, or None if it is not known to be one."""
    shaped: list[Call] = []
    while isinstance(expr, Call) and (is_reshape(expr) or op_of(expr) == "cast"):
        if op_of(expr) == "cast":
            is_wide = type_of(expr).dtype in WIDE
            if not is_wide or not is_int(type_of(expr.args[0]).dtype):
                break
        else:
            shaped.append(expr)
        expr = expr.args[0]
    if isinstance(expr, Constant):
        numbers = expr.data.astype(np.float64)
        rounded = np.rint(numbers)
        if not np.all(np.abs(rounded) < 1 << 30) or not np.array_equal(rounded, numbers):
            return None
        parameter: RelayExpr = _constant(rounded.astype(np.int32))
    elif type_of(expr).dtype in ("int8", "uint8", "int16", "uint16", "int32"):
        parameter = typed(op.cast(expr, "int32"))
    else:
        return None
    # Reshapes are applied again to the narrow parameter.
    for call in reversed(shaped):
        parameter = typed(Call(call.op, (parameter,), call.attrs))
    return parameter


def _moved(sign: int) -> Step:
    def step(levels: Levels, call: Call, operand: int) -> Levels | None:
        """Move the zero point by the parameter that is added to the bytes or subtracted
        from them.
        """
        dtype = type_of(call).dtype
        by = _whole_parameter(call.args[1 - operand])
        # int16 holds bytes less a byte; sums of more than it holds wrap
        is_safe = dtype in WIDE or (dtype == "int16" and by is not None and _fits_short(by))
        if levels.scale is not None or by is None or not is_safe:
            return None
        by = by if sign < 0 else typed(op.negative(by))
        if isinstance(by, Call) and isinstance(by.args[0], Constant) and sign > 0:
            by = _constant(-by.args[0].data)
        point = by if levels.point is None else typed(op.add(levels.point, by))
        return Levels(levels.data, point)

    return step


def _fits_short(point: RelayExpr) -> bool:
    """Return whether bytes less a zero point fit int16, whichever bytes they are."""
    while isinstance(point, Call) and is_reshape(point):
        point = point.args[0]
    if isinstance(point, Constant):
        return bool(np.all(np.abs(point.data.astype(np.int64)) < 1 << 14))
    return isinstance(point, Call) and type_of(point.args[0]).dtype in BYTES


def _scaled(levels: Levels, call: Call, operand: int) -> Levels | None:
    by = call.args[1 - operand]
    if type_of(call).dtype != "float32":
        return None
    scale = by if levels.scale is None else typed(op.multiply(levels.scale, by))
    return Levels(levels.data, levels.point, scale)


def _dequantized(levels: Levels, call: Call, operand: int) -> Levels | None:
    """Scales and zero points that are vectors run along an axis."""
    if levels.point is not None or getattr(call.attrs, "out_dtype", "float32") != "float32":
        return None
    axis, rank = int(getattr(call.attrs, "axis", -1)) % max(levels.rank, 1), levels.rank

    def along(parameter: RelayExpr) -> RelayExpr:
        if not type_of(parameter).shape or rank <= 1:
            return parameter
        return typed(op.reshape(parameter, (-1, *(1,) * (rank - 1 - axis))))

    return Levels(levels.data, along(call.args[2]), along(call.args[1]))


def _rearranged(levels: Levels, call: Call, operand: int) -> Levels | None:
    """Bytes in another order; parameters that vary follow where each axis stays one."""
    parameters = [levels.point, levels.scale]
    if any(map(levels.varies, parameters)):
        if op_of(call) not in AXES:
            return None
        parameters = [p and _followed(levels, call, p) for p in parameters]
    else:
        parameters = [p and _scalar(p) for p in parameters]
    moved = Call(call.op, (levels.data, *call.args[1:]), call.attrs, span=call.span)
    return Levels(typed(moved), *parameters)


def _followed(levels: Levels, call: Call, parameter: RelayExpr) -> RelayExpr:
    missing = levels.rank - len(type_of(parameter).shape)
    wide = op.expand_dims(parameter, 0, missing) if missing else parameter
    return typed(Call(call.op, (typed(wide),), call.attrs))


def _scalar(parameter: RelayExpr) -> RelayExpr:
    return typed(op.reshape(parameter, ())) if type_of(parameter).shape else parameter


def _padded(levels: Levels, call: Call, operand: int) -> Levels | None:
    """Turn a border of zeros into a border of the zero point."""
    border = call.args[1]
    is_zero = isinstance(border, Constant) and not np.any(border.data)
    mode = getattr(call.attrs, "pad_mode", "constant")
    if any(map(levels.varies, (levels.point, levels.scale))) or (
        mode == "constant" and not is_zero
    ):
        return None
    dtype = type_of(levels.data).dtype
    point = None if levels.point is None else _scalar(levels.point)
    if isinstance(point, Constant):
        low, high = int_range(dtype) or (0, 0)
        if not low <= int(point.data) <= high:
            return None
    elif isinstance(point, Call) and type_of(point.args[0]).dtype != dtype:
        return None  # it may be none of the bytes
    value = _constant(np.zeros((), dtype)) if point is None else typed(op.cast(point, dtype))
    padded = Call(call.op, (levels.data, value), call.attrs, span=call.span)
    return Levels(typed(padded), point, levels.scale and _scalar(levels.scale))


_MOVES = ("reshape", "transpose", "squeeze", "expand_dims", "strided_slice", "nn.pad")
_STEPS: Mapping[str, Step] = {
    **dict.fromkeys(_MOVES, _rearranged),
    "nn.pad": _padded,
    "cast": _cast,
    "subtract": _moved(-1),
    "add": _moved(1),
    "multiply": _scaled,
    "qnn.dequantize": _dequantized,
}
"""Operators that leave it known what a tensor of bytes stands for."""

__all__ = ["BYTES", "Levels", "levels_of", "type_of"]
